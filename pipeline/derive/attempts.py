"""Take rows down from all attempts at a shard together: the job's, and those of pipeline.retry."""

from collections.abc import Mapping, Sequence

from pipeline.derive.matches import LEDGER, Row, facts_of, find_rows, matching, without
from pipeline.read.takedown import STAGE_OF, TAKEN_DOWN, Kind, TakedownList
from pipeline.report.attempts import keys_of, last_results
from pipeline.report.shards import read_batches
from pipeline.write.attempts import make_retry
from pipeline.write.store import Store
from schemas.attempts import attempt_of
from schemas.manifest import Manifest

Found = Mapping[str, tuple[Kind, Row]]
"""Rows of a shard that go, by key: the kind of the entry that names each, and its columns."""


def find_in_attempts(store: Store, attempts: Sequence[Manifest], entries: TakedownList) -> list[Found]:
    """Return the rows that go of each attempt: a row that the list names in one of them goes from all.

    The hash of an image that pipeline.retry received is in its own shard alone. Rows already taken down are left out.
    """
    if len(attempts) == 1:
        return [find_rows(store, attempts[0], entries)]
    kinds: dict[str, Kind] = {}
    for manifest in attempts:
        batches = read_batches(store, manifest, LEDGER)
        found = matching(entries, (row for batch in batches for row in batch.to_pylist()))
        kinds |= {key: kind for key, (kind, _) in found.items()}
    return [facts_of(store, manifest, kinds) for manifest in attempts]


def without_rows(store: Store, attempts: Sequence[Manifest], found: Sequence[Found]) -> list[Manifest]:
    """Return the manifests of all attempts whose counts have these rows as taken down.

    The drops that an attempt replaces are counted anew, since its rows are taken down in earlier attempts too.
    """
    numbers = [attempt_of(manifest["shard"]) for manifest in attempts]
    taken = {
        (n, key): STAGE_OF[kind] for n, rows in zip(numbers, found, strict=True) for key, (kind, _) in rows.items()
    }
    new = [without(manifest, rows) if rows else manifest for manifest, rows in zip(attempts, found, strict=True)]
    for i, manifest in enumerate(attempts):
        if "retry" not in manifest or not taken:
            continue
        results = last_results(store, attempts[:i])
        drops = list[tuple[int, str, str]]()
        for key in keys_of(store, [manifest]).to_pylist():
            attempt, stage, reason = results[key]
            if (attempt, key) in taken:
                stage, reason = taken[attempt, key], TAKEN_DOWN
            drops.append((attempt, str(stage), str(reason)))
        new[i] = {**new[i], "retry": make_retry(manifest["shard"], drops)}
    return new
