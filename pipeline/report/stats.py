"""Compute stats.json from the files of all finished shards, including those that an earlier run finished."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from omegaconf import OmegaConf

from common.config import RESOLVED_FILE
from common.errors import UserError
from common.remote import map_concurrently, one_line
from common.yaml_text import check_yaml
from pipeline.report.attempts import read_latest
from pipeline.report.shards import check_finished, read_manifests
from pipeline.report.totals import COLUMNS, Totals
from pipeline.write.attempts import group_attempts, net_counts
from pipeline.write.failed import read_failed
from pipeline.write.store import Store
from schemas.files import FILES, JOB_FILE, RUN_TIMINGS_FILE, STATS_FILE, TIMINGS_FILE
from schemas.manifest import Counts, FailedShard, Manifest, RunTimings, Timings
from schemas.rows import VERSION
from schemas.stats import DamagedFile, HostFailures, RowStatistics, StageSpeed, Statistics
from schemas.status import BOX_REMOVALS, PHRASE_REMOVALS, STAGES

TOP: Final = 30
"""Length of the lists of the most frequent phrases, head nouns and hosts."""


def build_stats(output: str, truth: dict[str, Any] | None = None, shards: Collection[int] | None = None) -> Statistics:
    """Count the finished shards of the folder or URL `output`, write stats.json there and return its content.

    `shards` limits the count to shards with these indices. `truth` is stored unchanged: the precision and recall of the
    boxes, if they are known.

    Raises UserError if no shard is finished or failed, ValueError if the counts of a shard do not add up.

    >>> from tempfile import TemporaryDirectory
    >>> from pipeline import ShardPlan, WriteConfig, build_stats, write_shard
    >>> from schemas.rows import SCORED
    >>> plan, provenance = ShardPlan(0, 0, 0, ()), {"config_hash": "0", "models": {"scorer": {"name": "miniature"}}}
    >>> with TemporaryDirectory() as output:
    ...     manifest = write_shard(SCORED.empty_table(), plan, WriteConfig(), output, provenance)
    ...     build_stats(output)["rows"]
    {'read': 0, 'kept': 0, 'dropped': {}, 'unfinished': 0}
    """
    store = Store(output)
    manifests = read_manifests(store, shards)
    failed = read_failed(store, [manifest["shard"] for manifest in manifests], shards)
    check_finished(store, manifests or failed)
    stats = collect_stats(store, manifests, sum_rows(manifests, failed), count_shards(store, group_attempts(manifests)))
    if truth is not None:
        stats["truth"] = truth
    store.write(STATS_FILE, json.dumps(stats, ensure_ascii=False, indent=1))  # not sorted: stages keep their order
    return stats


def collect_stats(store: Store, manifests: Sequence[Manifest], rows: Counts, totals: Totals) -> Statistics:
    """Return the statistics of an output, of which `rows` and `totals` are counted already; nothing is written."""
    job = read_object(store, JOB_FILE)
    stats: Statistics = {
        "schema": VERSION,
        "shards": [manifest["shard"] for manifest in manifests],
        "without_rows": sum("arrow" not in manifest["formats"] for manifest in manifests),
        "rows": rows,
        **row_statistics(totals),
        "stages": sum_timings(store, manifests),
        "run": read_run(store),
        "provenance": manifests[0]["provenance"] if manifests else job.get("provenance", {}),
        "config": read_job_config(store),
    }
    if sizes := format_bytes(manifests):
        stats["bytes"] = sizes
    if damaged := damaged_files(job):
        stats["damaged"] = damaged
    return stats


def read_job_config(store: Store) -> dict[str, Any]:
    """Return the resolved configuration of the job, {} if its file does not exist. Raises UserError if it is damaged."""
    try:
        text = (store.read(RESOLVED_FILE) or b"{}").decode()
        check_yaml(text)
        return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(text)))
    except UserError:
        raise
    except Exception as error:  # PyYAML and OmegaConf raise many types for text that they cannot convert
        raise damaged_error(store, RESOLVED_FILE, error) from error


def read_object(store: Store, file: str) -> dict[str, Any]:
    """Return the object in a JSON file, {} if it does not exist. Raises UserError if it is damaged."""
    try:
        value = json.loads(store.read(file) or b"{}")
    except (ValueError, RecursionError) as error:
        raise damaged_error(store, file, error) from error
    if not isinstance(value, dict):
        raise damaged_error(store, file, ValueError("it holds no object"))
    return value


def read_run(store: Store) -> RunTimings:
    """Return the facts about the last run, {} if there are none. Raises UserError if their file is damaged."""
    return cast(RunTimings, read_object(store, RUN_TIMINGS_FILE))


def damaged_error(store: Store, file: str, error: Exception) -> UserError:
    """Return the error for a damaged file besides the shards."""
    return UserError(f"{store.url(file)} is damaged ({one_line(error)}); remove it: the shards do not need it")


def damaged_files(job: Mapping[str, Any]) -> list[DamagedFile]:
    """Return the damaged input files of a job, of which only the rows before the damage are read."""
    files = [file for batch in job.get("batches", ()) for file in batch["files"] if "damage" in file]
    return [{"path": file["path"], "rows": file["cuts"][-1][0], "error": file["damage"]} for file in files]


def format_bytes(manifests: Iterable[Manifest]) -> dict[str, int]:
    """Return the bytes of the files of each format, over all shards."""
    sizes: Counter[str] = Counter()
    for manifest in manifests:
        for name, facts in manifest["files"].items():
            sizes[name.partition("/")[0]] += facts["bytes"]
    return {kind: sizes[kind] for kind in FILES if kind in sizes}


def row_statistics(totals: Totals) -> RowStatistics:
    """Return the part of stats.json that is counted row by row."""
    return {
        "phrases": {
            "found": totals.chunks.total(),
            "removed": select(totals.chunks, PHRASE_REMOVALS),
            "given": totals.chunks[None],
            "grounded": totals.n_grounded,
        },
        "boxes": {
            "found": totals.boxes.total(),
            "removed": select(totals.boxes, BOX_REMOVALS),
            "kept": totals.boxes[None],
        },
        "duplicates": totals.duplicates(),
        "top": {
            "phrases": most_frequent(totals.phrases),
            "heads": most_frequent(totals.heads),
            "kept_heads": most_frequent(totals.kept_heads),
            "removed": {
                reason: most_frequent(totals.removed[reason]) for reason in PHRASE_REMOVALS if reason in totals.removed
            },
        },
        "failures": failing_hosts(totals.hosts, totals.host_rows),
        "http_statuses": dict(most_frequent(totals.http_statuses)),
        "histograms": {name: histogram.to_json() for name, histogram in totals.histograms.items()},
    }


def sum_rows(manifests: Sequence[Manifest], failed: Sequence[FailedShard] = ()) -> Counts:
    """Add up the row counts of all shards; stages are in pipeline order, reasons are sorted.

    The rows of failed shards are unfinished: read = kept + dropped + unfinished. Rows that pipeline.retry tried again
    count once, with their last result.

    Raises ValueError if the rows kept and dropped of a shard do not add up to the rows read.
    """
    total = Counter[str]()
    dropped: dict[str, Counter[str]] = {stage: Counter() for stage in STAGES}
    for manifest in manifests:
        counts = net_counts(manifest)
        total.update({name: counts.get(name, 0) for name in ("read", "kept", "retried", "recovered")})
        for stage, reasons in counts["dropped"].items():
            dropped[stage].update(reasons)
    if negative := [f"{s}: {r}" for s, reasons in dropped.items() for r, n in reasons.items() if n < 0]:
        raise ValueError(f"more rows {negative[0]} were tried again than dropped")
    unfinished = sum(shard["rows"] for shard in failed)
    rows: Counts = {
        "read": total["read"] + unfinished,
        "kept": total["kept"],
        "dropped": {s: dict(sorted((+r).items())) for s, r in dropped.items() if +r},
        "unfinished": unfinished,
    }
    if total["retried"]:
        rows |= {"retried": total["retried"], "recovered": total["recovered"]}
    return rows


def count_shards(store: Store, groups: Iterable[Sequence[Manifest]]) -> Totals:
    """Count the rows of all shards, given as the attempts at each; of a row, the last result counts.

    A shard without arrow/ contributes only the counts of its manifest. Raises ValueError if the rows of a shard and its
    manifests disagree.
    """
    totals = Totals()
    for attempts in groups:
        if "arrow" not in attempts[0]["formats"]:
            totals.add_manifest(attempts[0])
            continue
        kept, drops, has_rows = totals.kept, totals.drops.copy(), False
        for batch in read_latest(store, attempts, COLUMNS):
            totals.add(batch)
            has_rows = True
        found = totals.kept - kept, dict(totals.drops - drops)
        counts = sum_rows(attempts)
        recorded = counts["kept"], {(s, r): n for s, reasons in counts["dropped"].items() for r, n in reasons.items()}
        if has_rows and found != recorded:
            raise ValueError(
                f"shard {attempts[0]['shard']}: the counts of its rows and of its manifest disagree: {found}, {recorded}"
            )
    return totals


def sum_timings(store: Store, manifests: Sequence[Manifest]) -> dict[str, StageSpeed]:
    """Add up the time of each stage over the shards that have a timings file."""
    stages: dict[str, StageSpeed] = {}
    files = [store.file(TIMINGS_FILE, manifest["shard"]) for manifest in manifests]
    for timings in map_concurrently(lambda file: cast(Timings, read_object(store, file)), files):
        for stage, timing in timings.items():
            total = stages.setdefault(stage, {"seconds": 0.0, "rows": 0.0, "rows_per_second": 0.0})
            total["seconds"] += timing["seconds"]
            total["rows"] += timing["rows"]
    for total in stages.values():
        total["rows_per_second"] = round(total["rows"] / total["seconds"], 2) if total["seconds"] else 0.0
        total["seconds"] = round(total["seconds"], 4)
    return {stage: stages[stage] for stage in STAGES if stage in stages}


def select(counter: Mapping[str | None, int], names: Collection[str]) -> dict[str, int]:
    """Return the non-zero counts of `names`, in their order."""
    return {name: counter[name] for name in names if counter[name]}


def most_frequent(counter: Counter[str]) -> list[tuple[str, int]]:
    """Return the TOP most frequent texts with their counts; ties are in alphabetical order."""
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:TOP]


def failing_hosts(hosts: Counter[tuple[str, str]], host_rows: Mapping[str, int]) -> list[HostFailures]:
    """Return the hosts with the most dropped rows, from counts by (host, reason) and the rows of each host."""
    reasons: dict[str, dict[str, int]] = {}
    for (host, reason), n in sorted(hosts.items()):
        reasons.setdefault(host, {})[reason] = n
    totals = Counter({host: sum(counts.values()) for host, counts in reasons.items()})
    return [
        {"host": host, "rows": n, "reasons": reasons[host], "of": max(host_rows.get(host, 0), n)}
        for host, n in most_frequent(totals)
    ]
