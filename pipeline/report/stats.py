"""Compute stats.json from the summaries of all finished shards, including those that an earlier run finished."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from omegaconf import OmegaConf

from common.config import RESOLVED_FILE
from common.errors import UserError
from common.yaml_text import check_yaml
from pipeline.report.collect import collect
from pipeline.report.rollup import Keeping, Part
from pipeline.report.shards import check_finished, read_manifests_of
from pipeline.report.timings import damaged_error, read_object, stage_speeds
from pipeline.summary.frequent import Frequent
from pipeline.summary.rows import RowCounts
from pipeline.summary.totals import Totals
from pipeline.write.attempts import net_counts
from pipeline.write.failed import read_failed
from pipeline.write.store import Store
from schemas.attempts import attempt_of
from schemas.files import COMMAND_FILE, FILES, JOB_FILE, RUN_TIMINGS_FILE, STATS_FILE
from schemas.manifest import Counts, FailedShard, Manifest, RunTimings
from schemas.rows import VERSION
from schemas.stats import DamagedFile, HostFailures, MostFrequent, RowStatistics, Statistics
from schemas.status import BOX_REMOVALS, PHRASE_REMOVALS

TOP: Final = 30
"""Length of the lists of the most frequent phrases, head nouns and hosts."""


def build_stats(
    output: str,
    truth: dict[str, Any] | None = None,
    shards: Collection[int] | None = None,
    holds_lease: bool = False,
) -> Statistics:
    """Count the finished shards of the folder or URL `output`, write stats.json there and return its content.

    `shards` limits the count to shards with these indices. `truth` is stored unchanged: the precision and recall of the
    boxes, if they are known. `holds_lease`: the caller holds the lease of the output, and rollups are written.

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
    part = collect(store, shards, Keeping(summaries=True, rollups=holds_lease))
    stats = make_stats(store, part, shards)
    if truth is not None:
        stats["truth"] = truth
    store.write(STATS_FILE, json.dumps(stats, ensure_ascii=False, indent=1))  # not sorted: stages keep their order
    return stats


def make_stats(store: Store, part: Part, only: Collection[int] | None = None) -> Statistics:
    """Return the statistics of an output whose shards are counted already; nothing is written.

    Raises UserError if no shard is finished or failed.
    """
    failed = read_failed(store, part.shards, only)
    check_finished(store, part.shards or failed)
    job, summary = read_object(store, JOB_FILE), part.summary
    first = read_manifests_of(store, part.shards[:1])
    stats: Statistics = {
        "schema": VERSION,
        "shards": part.shards,
        "without_rows": summary.without_rows,
        "rows": summary.rows.to_counts(sum(shard["rows"] for shard in failed)),
        **row_statistics(summary.totals),
        "stages": stage_speeds(part.speeds),
        "run": read_run(store),
        "provenance": first[0]["provenance"] if first else job.get("provenance", {}),
        "config": read_job_config(store),
        "places": summary.chosen.to_json(),
    }
    if planned := count_planned(store, job):
        stats["planned"] = planned
    if sizes := {kind: summary.n_bytes[kind] for kind in FILES if kind in summary.n_bytes}:
        stats["bytes"] = sizes
    if damaged := damaged_files(job):
        stats["damaged"] = damaged
    return stats


def count_planned(store: Store, job: Mapping[str, Any]) -> int:
    """Return the number of shards of the job or command that writes an output; 0 if it is not recorded."""
    command = read_object(store, COMMAND_FILE)
    try:
        if command:
            return len([index for index in command["shards"] if not attempt_of(index)])
        return sum(batch["shards"] for batch in job.get("batches", ()))
    except (LookupError, TypeError):
        return 0


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


def read_run(store: Store) -> RunTimings:
    """Return the facts about the last run, {} if there are none. Raises UserError if their file is damaged."""
    return cast(RunTimings, read_object(store, RUN_TIMINGS_FILE))


def damaged_files(job: Mapping[str, Any]) -> list[DamagedFile]:
    """Return the damaged input files of a job, of which only the rows before the damage are read."""
    files = [file for batch in job.get("batches", ()) for file in batch["files"] if "damage" in file]
    return [{"path": file["path"], "rows": file["cuts"][-1][0], "error": file["damage"]} for file in files]


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
        "top": top_lists(totals),
        "failures": failing_hosts(totals.hosts.upper_bounds(), totals.host_rows),
        "http_statuses": dict(most_frequent(totals.http_statuses)),
        "histograms": {name: histogram.to_statistics() for name, histogram in totals.histograms.items()},
    }


def top_lists(totals: Totals) -> MostFrequent:
    """Return the lists of the most frequent texts, and by how much their counts can be too high."""
    removed = {reason: totals.removed[reason] for reason in PHRASE_REMOVALS if reason in totals.removed}
    top: MostFrequent = {
        "phrases": most_frequent(totals.phrases.upper_bounds()),
        "heads": most_frequent(totals.heads.upper_bounds()),
        "kept_heads": most_frequent(totals.kept_heads.upper_bounds()),
        "removed": {reason: most_frequent(texts.upper_bounds()) for reason, texts in removed.items()},
    }
    names = ("phrases", "heads", "kept_heads", "hosts", "host_rows")
    sketches: dict[str, Frequent] = {name: getattr(totals, name) for name in names} | removed
    if errors := {name: sketch.error for name, sketch in sketches.items() if sketch.error}:
        top["errors"] = errors
    return top


def sum_rows(manifests: Iterable[Manifest], failed: Sequence[FailedShard] = ()) -> Counts:
    """Add up the row counts of all shards; stages are in pipeline order, reasons are sorted.

    The rows of failed shards are unfinished: read = kept + dropped + unfinished. Rows that pipeline.retry tried again
    count once, with their last result.

    Raises ValueError if the rows kept and dropped of a shard do not add up to the rows read.
    """
    return RowCounts(map(net_counts, manifests)).to_counts(sum(shard["rows"] for shard in failed))


def select(counter: Mapping[str | None, int], names: Collection[str]) -> dict[str, int]:
    """Return the non-zero counts of `names`, in their order."""
    return {name: counter[name] for name in names if counter[name]}


def most_frequent(counter: Counter[str]) -> list[tuple[str, int]]:
    """Return the TOP most frequent texts with their counts; ties are in alphabetical order."""
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:TOP]


def failing_hosts(hosts: Counter[str], host_rows: Frequent) -> list[HostFailures]:
    """Return the hosts with the most dropped rows, from counts by `reason host` and the rows of each host."""
    reasons: dict[str, dict[str, int]] = {}
    for name, n in sorted(hosts.items()):
        reason, _, host = name.partition(" ")
        reasons.setdefault(host, {})[reason] = n
    totals = Counter({host: sum(counts.values()) for host, counts in reasons.items()})
    return [
        {"host": host, "rows": n, "reasons": reasons[host], "of": max(host_rows.counts[host] + host_rows.error, n)}
        for host, n in most_frequent(totals)
    ]
