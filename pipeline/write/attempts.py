"""The attempts at the rows of a shard: the job's shard, then those of pipeline.retry, which replace drops of it."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

from pipeline.write.manifest import read_manifest
from pipeline.write.store import Store
from schemas.attempts import attempt_of, index_of, shard_of
from schemas.files import MANIFEST_FILE, TIMINGS_FILE
from schemas.manifest import Counts, Manifest, Retry

logger = logging.getLogger("hypergrit")


def net_counts(manifest: Manifest) -> Counts:
    """Return what a shard adds to the counts of its output; negative drops are those that an attempt replaces.

    The counts of an output are the sums of these over all shards. Raises ValueError if those of the shard do not add up.
    """
    counts, retry = manifest["counts"], manifest.get("retry")
    n_dropped = sum(sum(reasons.values()) for reasons in counts["dropped"].values())
    if counts["read"] != counts["kept"] + n_dropped:
        raise ValueError(
            f"shard {manifest['shard']}: {counts['read']} rows read, but {counts['kept']} kept and {n_dropped} dropped"
        )
    if retry is None:
        return counts
    n_replaced = sum(sum(reasons.values()) for reasons in retry["replaced"].values())
    if counts["read"] != n_replaced or n_replaced != sum(retry["before"].values()):
        raise ValueError(f"shard {manifest['shard']}: {counts['read']} rows read in place of {n_replaced}")
    dropped = {stage: Counter(reasons) for stage, reasons in counts["dropped"].items()}
    for stage, reasons in retry["replaced"].items():
        dropped.setdefault(stage, Counter()).subtract(reasons)
    return {
        "read": 0,
        "kept": counts["kept"],
        "dropped": {stage: dict(reasons) for stage, reasons in dropped.items()},
        "retried": counts["read"],
        "recovered": counts["kept"],
    }


def n_left(attempts: Sequence[Manifest]) -> list[int]:
    """Return the number of dropped rows of each attempt at a shard that no later attempt replaces."""
    gone, counts = Counter[str](), [manifest["counts"] for manifest in attempts]
    for manifest in attempts:
        gone.update(manifest["retry"]["before"] if "retry" in manifest else {})
    numbers = [str(attempt_of(manifest["shard"])) for manifest in attempts]
    return [count["read"] - count["kept"] - gone[number] for number, count in zip(numbers, counts, strict=True)]


def group_attempts(manifests: Iterable[Manifest]) -> list[list[Manifest]]:
    """Return the attempts at each shard, in their order, by the index of the shard."""
    ordered = sorted(manifests, key=lambda manifest: (original(manifest), manifest["shard"]))
    return [list(group) for _, group in groupby(ordered, key=original)]


def later_attempts(manifests: Iterable[Manifest]) -> dict[int, list[Manifest]]:
    """Return by the index of each shard the attempts after it at the same rows."""
    groups = group_attempts(manifests)
    return {manifest["shard"]: group[place:] for group in groups for place, manifest in enumerate(group, 1)}


def original(manifest: Manifest) -> int:
    """Return the index of the job's shard whose rows a shard holds."""
    return manifest["retry"]["shard"] if "retry" in manifest else manifest["shard"]


def with_all_before(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Return the manifests by index, without those of attempts of which an earlier attempt has gone.

    Their rows are about to be computed again from the beginning.
    """
    found: dict[int, Manifest] = {}
    for manifest in sorted(manifests, key=lambda manifest: manifest["shard"]):
        retry = manifest.get("retry")
        if retry is None or found.keys() >= {index_of(int(before), retry["shard"]) for before in retry["before"]}:
            found[manifest["shard"]] = manifest
        else:
            logger.warning("shard %d is left out: an earlier attempt at its rows has gone", manifest["shard"])
    return list(found.values())


def read_earlier(store: Store, index: int) -> list[Manifest]:
    """Return the attempts at the rows of a shard before the one with this index; [] without a finished shard of the job."""
    shard = shard_of(index)
    found = (read_manifest(store, index_of(attempt, shard)) for attempt in range(attempt_of(index)))
    attempts = with_all_before(manifest for manifest in found if manifest is not None)
    return attempts if attempts and "retry" not in attempts[0] else []


def discard_attempts(store: Store, indices: Collection[int]) -> None:
    """Remove shards of pipeline.retry: the manifests of the last attempt first, so that no sum is ever wrong."""
    for attempt in sorted(set(map(attempt_of, indices)), reverse=True):
        store.remove_many(store.file(MANIFEST_FILE, index) for index in indices if attempt_of(index) == attempt)
    store.remove_many(
        name for index in indices for name in (*store.shard_files(index), store.file(TIMINGS_FILE, index))
    )


def make_retry(index: int, drops: Iterable[tuple[int, str, str]]) -> Retry:
    """Return the field of the manifest of a shard, from the last result of each of its rows: (attempt, stage, reason)."""
    replaced: dict[str, Counter[str]] = {}
    before = Counter[str]()
    for attempt, stage, reason in drops:
        replaced.setdefault(stage, Counter())[reason] += 1
        before[str(attempt)] += 1
    counts = {stage: dict(reasons) for stage, reasons in replaced.items()}
    return {"attempt": attempt_of(index), "shard": shard_of(index), "replaced": counts, "before": dict(before)}
