"""Compute stats.json from the summaries of all finished shards, including those that an earlier run finished."""

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypedDict, cast, get_type_hints

from tqdm import tqdm

from hypergrit_common.config import RESOLVED_FILE
from hypergrit_common.errors import UserError
from hypergrit_common.json_file import fits
from hypergrit_common.remote import map_concurrently
from hypergrit_common.text import counted, duration_text, one_line
from hypergrit_common.yaml_text import parse_yaml, plain
from pipeline.output.ledger import (
    check_finished,
    count_shard,
    parse_manifests,
    read_manifests_of,
    stamp_of,
    write_summary,
)
from pipeline.output.manifest import read_failed
from pipeline.output.record import read_command, read_record
from pipeline.output.store import Store, check_own_folders, files_of_shards, indices
from pipeline.read.understood import understood_input
from pipeline.summary.histogram import Frequent
from pipeline.summary.totals import Summary, SummaryFile, Totals, parse_summary
from schemas.files import (
    FILES,
    MANIFEST_FILE,
    MANIFEST_FOLDER,
    ROLLUP_FILE,
    ROLLUP_TIMINGS_FILE,
    RUN_TIMINGS_FILE,
    SHARDS_PER_ROLLUP,
    STATS_FILE,
    SUMMARY_FILE,
    TIMINGS_FILE,
    ShardFile,
    rollup_of,
)
from schemas.manifest import RunTimings
from schemas.rows import VERSION
from schemas.stats import DamagedFile, HostFailures, MostFrequent, RowStatistics, StageSpeed, Statistics
from schemas.status import BOX_REMOVALS, GIVEN_REMOVALS, PHRASE_REMOVALS, ROW_DROPPED, all_reasons
from schemas.training import needs_of, training_line

# The head of the report: when a job ran, how long, how fast, and what it wrote.


class Head(NamedTuple):
    """Facts about the last run; empty texts for what is not known."""

    finished: str
    duration: str
    rate: str
    command: str
    n_bytes: int
    progress: str


def describe_run(stats: Statistics) -> Head:
    """Return the facts about the last run that wrote shards."""
    run = stats["run"]
    seconds = run.get("wall_seconds", 0.0)
    rate = run["rows"] / seconds if seconds and "rows" in run else 0.0
    return Head(
        finished=finish_time(run.get("started", ""), seconds),
        duration=duration_text(seconds) if seconds else "",
        rate=f"{rate:,.1f} rows/s" if rate else "",
        command=run.get("command", ""),
        n_bytes=sum(stats.get("bytes", {}).values()),
        progress=progress_text(stats),
    )


def trainable(stats: Statistics) -> list[str]:
    """Return a line with the models that an output can train; no line without kept rows, or shards of samples."""
    kept, pairs = stats["rows"]["kept"], stats.get("pairs", 0)
    config = stats.get("config", {})
    formats, levels = config.get("write", {}).get("formats", ()), config.get("read", {}).get("levels")
    if not kept or not {"train", "grit"} & {*formats}:
        return []
    parser = stats["provenance"].get("models", {}).get("parser", {"name": "none"})["name"]
    # The input may have labels without the setting, in a column `levels`.
    return [
        training_line(
            needs_of(formats, parser, levels, kept, pairs),
            pairs,
            ("levels",) if "train" in formats and not levels else (),
        )
    ]


def progress_text(stats: Statistics) -> str:
    """Return how many shards are finished, for a job that is running or was stopped; "" if all are, or nobody knows."""
    planned = stats.get("planned", 0)
    return f"{planned - left:,} of {counted(planned, 'shard')} finished" if (left := count_unfinished(stats)) else ""


def count_unfinished(stats: Statistics) -> int:
    """Return the number of planned shards that are not finished; 0 if the plan is not known."""
    return max(stats.get("planned", 0) - len(stats["shards"]), 0)


def finish_time(started: str, seconds: float) -> str:
    """Return the end of a run as date and time in UTC; "" if its start is not known."""
    try:
        end = datetime.fromisoformat(started) + timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        return ""
    return end.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def bytes_text(n: float) -> str:
    """Format a number of bytes with a decimal unit.

    >>> bytes_text(999), bytes_text(48_210_000)
    ('999 B', '48.2 MB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000:
            return f"{n:.0f} B" if unit == "B" else f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:,.3g} PB"


# The time of each stage, added up over shards.

Speeds = dict[str, list[float]]
"""Stage -> seconds, and rows that entered it."""


def read_object(store: Store, file: str) -> dict[str, Any]:
    """Return the object in a JSON file, {} if it does not exist. Raises UserError if it is damaged."""
    try:
        value = json.loads(store.read(file) or b"{}")
    except (ValueError, RecursionError) as error:
        raise damaged_error(store, file, error) from error
    if not isinstance(value, dict):
        raise damaged_error(store, file, ValueError("it holds no object"))
    return value


def read_timings(store: Store, file: str) -> dict[str, Any]:
    """Return the object in a file of times, which nothing needs: {} if it does not exist or is damaged."""
    try:
        return read_object(store, file)
    except UserError as error:
        logger.warning("%s; its times are left out of the report", one_line(error))
        return {}


def damaged_error(store: Store, file: str, error: Exception) -> UserError:
    """Return the error for a damaged file besides the shards."""
    return UserError(f"{store.url(file)} is damaged ({one_line(error)}); remove it: the shards do not need it")


def sum_timings(store: Store, shards: Collection[int]) -> Speeds:
    """Add up the time of each stage over the shards that have a timings file, unless it is damaged."""
    speeds: Speeds = {}
    files = [TIMINGS_FILE.path(index) for index in sorted(shards)]
    for file, timings in zip(files, map_concurrently(partial(read_timings, store), files), strict=True):
        try:
            found = {stage: [float(timing["seconds"]), float(timing["rows"])] for stage, timing in timings.items()}
        except (LookupError, TypeError, ValueError):
            logger.warning("%s is damaged; its times are left out of the report", store.url(file))
        else:
            add_speeds(speeds, found)
    return speeds


def read_speeds(store: Store, file: str) -> Speeds | None:
    """Return the sums in the timings of a rollup; None if the file is missing or damaged."""
    try:
        content = store.read_spare(file)
        value = None if content is None else json.loads(content)
        return None if value is None else {str(stage): [float(x), float(n)] for stage, (x, n) in value.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def add_speeds(speeds: Speeds, others: Mapping[str, list[float]]) -> None:
    """Add the time and rows of each stage."""
    for stage, (seconds, n_rows) in others.items():
        total = speeds.setdefault(stage, [0.0, 0.0])
        total[0] += seconds
        total[1] += n_rows


def stage_speeds(speeds: Speeds, stages: Iterable[str]) -> dict[str, StageSpeed]:
    """Return the sums in the form of stats.json, in the order of the stages."""
    return {
        stage: {
            "seconds": round(seconds, 4),
            "rows": n_rows,
            "rows_per_second": round(n_rows / seconds, 2) if seconds else 0.0,
        }
        for stage in stages
        if stage in speeds
        for seconds, n_rows in [speeds[stage]]
    }


# Read the summaries of up to 1,000 shards, from their rollup or one by one, and write rollups.
#
# A rollup counts while exactly the shards in it are finished and their manifests have the same sizes. Whoever commits a
# shard removes the rollup of its thousand first (pipeline.output.commit), and only holders of the lease write one: it can
# therefore not describe earlier files of a shard.

logger = logging.getLogger("hypergrit")

MIN_SHARDS: Final = 32
"""Shards from which on a rollup is written: fewer summaries are read as fast."""


class ShardSums(NamedTuple):
    """Up to 1,000 shards: the indices of those that are finished, their statistics and the time of each stage."""

    shards: list[int]
    summary: Summary
    speeds: Speeds


Keep = Literal["nothing", "summaries", "rollups"]
"""What a reader stores: nothing, summaries of shards that lack one, or also rollups, which needs the lease."""


def read_sums(store: Store, number: int, sizes: Mapping[int, int], has_rollup: bool, keep: Keep) -> ShardSums:
    """Return the statistics of the shards in `sizes`, index -> bytes of the manifest, which belong to one rollup.

    Raises UserError for a damaged shard, and ValueError if the counts of one do not add up.
    """
    rollup = ROLLUP_FILE.path(number)
    summary = parse_summary(store.read_spare(rollup), sizes) if has_rollup else None
    if summary is not None:
        speeds = read_speeds(store, ROLLUP_TIMINGS_FILE.format(number))
        return ShardSums(sorted(sizes), summary, sum_timings(store, sizes) if speeds is None else speeds)
    part, found = add_shards(store, sizes, keep != "nothing")
    if keep == "rollups" and len(found) >= MIN_SHARDS:
        write_rollup(store, number, part, found)
    elif keep == "rollups" and has_rollup:
        store.remove([rollup, ROLLUP_TIMINGS_FILE.format(number)])
    return part


def add_shards(store: Store, indices: Collection[int], keep: bool) -> tuple[ShardSums, dict[int, int]]:
    """Add up the summaries of finished shards; also return the sizes of their manifests.

    Summaries that are missing, or not those of the present manifests, are computed from arrow/, and stored if `keep`.
    """
    contents = {
        i: content for i, content in read_files(store.read, MANIFEST_FILE, indices).items() if content is not None
    }
    manifests = parse_manifests(store, {MANIFEST_FILE.path(index): content for index, content in contents.items()})
    found = {manifest["shard"]: len(contents[manifest["shard"]]) for manifest in manifests}
    stored = read_files(store.read_spare, SUMMARY_FILE, found)
    summary = Summary()
    for manifest in manifests:
        own = parse_summary(stored[manifest["shard"]], {manifest["shard"]: stamp_of(contents[manifest["shard"]])})
        if own is None:
            own = write_summary(store, manifest) if keep else count_shard(store, manifest)
            own.totals.shrink()
        summary.merge(own)
    summary.totals.shrink()
    return ShardSums(sorted(found), summary, sum_timings(store, found)), found


def read_files(
    read: Callable[[str], bytes | None], kind: ShardFile, indices: Collection[int]
) -> dict[int, bytes | None]:
    """Read one file of each shard; None for those that do not exist."""
    contents = map_concurrently(lambda index: read(kind.path(index)), indices)
    return dict(zip(indices, contents, strict=True))


def write_rollup(store: Store, number: int, part: ShardSums, sizes: Mapping[int, int]) -> None:
    """Write the rollup of shards, whose manifests have these sizes, and their timings. Needs the lease."""
    store.write(ROLLUP_TIMINGS_FILE.format(number), json.dumps(part.speeds, sort_keys=True))
    store.write_bytes(ROLLUP_FILE.path(number), SummaryFile(sizes, part.summary).to_bytes())


def roll_up(store: Store, number: int, indices: Collection[int]) -> None:
    """Write the rollup of those of `indices` that are finished, while a job that holds the lease goes on.

    An error costs only time: the report reads the summaries then.
    """
    try:
        part, sizes = add_shards(store, indices, keep=True)
        if len(sizes) >= MIN_SHARDS:
            write_rollup(store, number, part, sizes)
    except (UserError, OSError, ValueError) as error:
        logger.warning("the statistics of shards %d to %d are left to the report: %s",
                       min(indices), max(indices), error)  # fmt: skip


# Rollups are written while the job runs, so that the report at its end reads one file for each thousand shards.


class Rollups:
    """Writes the rollup of a thousand shards, in a thread, once all of them that a run computes have been reported.

    Thousands with few of these shards are left to the report. The caller holds the lease.
    """

    def __init__(self, store: Store, shards: Iterable[int]) -> None:
        self.store = store
        counts = Counter(map(rollup_of, shards))
        self.left = Counter({number: n for number, n in counts.items() if n >= MIN_SHARDS})
        self.pool = ThreadPoolExecutor(1, "rollup")

    def __enter__(self) -> "Rollups":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.pool.shutdown(wait=True, cancel_futures=kind is not None)

    def add(self, index: int) -> None:
        """Take note of a shard that has been committed or has failed."""
        number = rollup_of(index)
        if number not in self.left:
            return
        self.left[number] -= 1
        if not self.left[number]:
            first = number * SHARDS_PER_ROLLUP
            self.pool.submit(roll_up, self.store, number, range(first, first + SHARDS_PER_ROLLUP))


# Add up the summaries of an output, a thousand shards at a time: a rollup counts where there is one.
#
#     arrow/ of a shard -> _summaries/ -> _rollup/, 1,000 shards each -> the whole output
#
# Memory does not grow with the number of shards, but for their indices and the sizes of their manifests.

AT_A_TIME: Final = 4
"""Rollups that are read at the same time."""


def collect(store: Store, only: Collection[int] | None = None, keep: Keep = "nothing") -> ShardSums:
    """Return the statistics of the finished shards, or of those with an index in `only`.

    Raises UserError for a damaged shard or one of another major schema version, and ValueError if the counts of one do
    not add up.
    """
    groups = finished_shards(store, only)
    rollups = set(indices(store, ROLLUP_FILE))
    if keep == "rollups":  # those in which no shard is finished any more
        store.remove_many(ROLLUP_FILE.path(number) for number in rollups - groups.keys())
    shards, summary, speeds = list[int](), Summary(), Speeds()

    def read(number: int) -> ShardSums:
        return read_sums(store, number, groups[number], number in rollups, keep)

    hidden = not sys.stderr.isatty() or len(groups) < AT_A_TIME
    with tqdm(total=len(groups), desc="statistics", unit=" thousand shards", disable=hidden) as bar:
        for part in map_concurrently(read, sorted(groups), AT_A_TIME):
            shards += part.shards
            summary.merge(part.summary)
            add_speeds(speeds, part.speeds)
            bar.update()
    summary.totals.shrink()
    return ShardSums(sorted(shards), summary, speeds)


def finished_shards(store: Store, only: Collection[int] | None) -> dict[int, dict[int, int]]:
    """Return the bytes of the manifests of the finished shards: number of the rollup -> index -> bytes."""
    chosen = None if only is None else set(only)
    groups: dict[int, dict[int, int]] = {}
    for kind, index, n_bytes in files_of_shards(store, MANIFEST_FOLDER):
        if kind == MANIFEST_FILE and (chosen is None or index in chosen):
            groups.setdefault(rollup_of(index), {})[index] = n_bytes
    return groups


TOP: Final = 30
"""Length of the lists of the most frequent phrases, head nouns and hosts."""


def build_stats(
    output: str | Store,
    truth: dict[str, Any] | None = None,
    shards: Collection[int] | None = None,
    holds_lease: bool = False,
) -> Statistics:
    """Count the finished shards of the folder or URL `output`, write stats.json there and return its content.

    `shards` limits the count to shards with these indices. `truth` is stored unchanged: the precision and recall of the
    boxes, if they are known. `holds_lease`: the caller holds the lease of the output, and rollups are written.

    Raises UserError if no shard is finished or failed and like `check_own_folders`, ValueError if the counts of a shard do
    not add up.

    >>> from tempfile import TemporaryDirectory
    >>> from pipeline import ShardPlan, WriteConfig, build_stats, write_shard
    >>> from schemas.rows import SCORED
    >>> plan, provenance = ShardPlan(0, 0, 0, ()), {"config_hash": "0", "models": {"scorer": {"name": "miniature"}}}
    >>> with TemporaryDirectory() as output:
    ...     manifest = write_shard(SCORED.empty_table(), plan, WriteConfig(), output, provenance)
    ...     build_stats(output)["rows"]
    {'read': 0, 'kept': 0, 'dropped': {}, 'unfinished': 0}
    """
    store = output if isinstance(output, Store) else Store(output)
    check_own_folders(store)
    part = collect(store, shards, "rollups" if holds_lease else "summaries")
    stats = make_stats(store, part, shards)
    if truth is not None:
        stats["truth"] = truth
    store.write(STATS_FILE, stats_text(stats))
    return stats


def stats_text(stats: Statistics) -> str:
    """Return the content of stats.json, of which the report names the hash."""
    return json.dumps(stats, ensure_ascii=False, indent=1)  # not sorted: stages keep their order


def make_stats(store: Store, part: ShardSums, only: Collection[int] | None = None) -> Statistics:
    """Return the statistics of an output whose shards are counted already; nothing is written.

    Raises UserError if no shard is finished or failed.
    """
    failed = read_failed(store, part.shards, only)
    check_finished(store, part.shards or failed)
    job, summary = cast(Mapping[str, Any], read_record(store) or {}), part.summary
    first = read_manifests_of(store, part.shards[:1])
    provenance = first[0]["provenance"] if first else job.get("provenance", {})
    counts = summary.rows.to_counts(sum(shard["rows"] for shard in failed))
    stages = all_reasons(provenance, [*counts["dropped"], *part.speeds])
    counts["dropped"] = {stage: counts["dropped"][stage] for stage in stages if stage in counts["dropped"]}
    stats: Statistics = {
        "schema": VERSION,
        "shards": part.shards,
        "without_rows": summary.without_rows,
        "rows": counts,
        **row_statistics(summary.totals),
        "stages": stage_speeds(part.speeds, stages),
        "run": read_run(store),
        "provenance": provenance,
        "config": read_job_config(store),
        "places": summary.chosen.to_json(),
    }
    if stats["config"].get("ground", {}).get("check_expressions"):
        stats["boxes"]["unconfirmed"] = summary.totals.n_unconfirmed
    n_with_boxes = stats["histograms"]["boxes_per_image"]["n"]["images"]
    if not summary.without_rows and (n_pairs := counts["kept"] - n_with_boxes):
        stats["pairs"] = n_pairs
    if planned := count_planned(store, job):
        stats["planned"] = planned
    if sizes := {kind: summary.n_bytes[kind] for kind in FILES if kind in summary.n_bytes}:
        stats["bytes"] = sizes
    if nulls := part.summary.totals.null_captions:
        stats["null_captions"] = dict(most_frequent(nulls))
    if (understood := understood_input(job)) is not None:
        stats["input"] = understood
    if damaged := damaged_files(job):
        stats["damaged"] = damaged
    return stats


def count_planned(store: Store, job: Mapping[str, Any]) -> int:
    """Return the number of shards of the job or command that writes an output; 0 if it is not recorded."""
    if command := read_command(store):
        return len(command["shards"])
    return sum(batch["shards"] for batch in job.get("batches", ()))


class SavedGroup(TypedDict):
    """The settings of a group that the report reads."""

    formats: list[str]
    levels: str | None
    check_expressions: bool


class SavedConfig(TypedDict):
    """The groups of a saved configuration of which the report reads settings."""

    ground: SavedGroup
    read: SavedGroup
    report: dict[str, Any]
    write: SavedGroup


def read_job_config(store: Store) -> dict[str, Any]:
    """Return the resolved configuration of the job, {} if its file does not exist. Raises UserError if it is damaged."""
    try:
        found = plain(parse_yaml((store.read(RESOLVED_FILE) or b"{}").decode()))
        if not fits(found, SavedConfig):
            raise ValueError("a value has another type")
        return cast(dict[str, Any], found)
    except UserError:
        raise
    except Exception as error:  # PyYAML raises many types for text that it cannot convert
        raise damaged_error(store, RESOLVED_FILE, error) from error


def read_run(store: Store) -> RunTimings:
    """Return the facts about the last run, without those that are missing or damaged."""
    found, kinds = read_timings(store, RUN_TIMINGS_FILE), get_type_hints(RunTimings)
    return cast(
        RunTimings, {name: found[name] for name, kind in kinds.items() if name in found and fits(found[name], kind)}
    )


def damaged_files(job: Mapping[str, Any]) -> list[DamagedFile]:
    """Return the damaged input files of a job, of which only the rows before the damage are read."""
    files = [file for batch in job.get("batches", ()) for file in batch["files"] if "damage" in file]
    return [{"path": file["path"], "rows": file["cuts"][-1][0], "error": file["damage"]} for file in files]


def row_statistics(totals: Totals) -> RowStatistics:
    """Return the part of stats.json that is counted row by row."""
    found: RowStatistics = {
        "phrases": {
            "found": totals.chunks.total(),
            "removed": select(totals.chunks, PHRASE_REMOVALS),
            "given": totals.chunks[None],
            "grounded": totals.n_grounded,
        },
        "boxes": {
            "found": totals.boxes.total(),
            "removed": select(totals.boxes, (*GIVEN_REMOVALS, *BOX_REMOVALS, ROW_DROPPED)),
            "kept": totals.boxes[None],
        },
        "duplicates": totals.duplicates(),
        "top": top_lists(totals),
        "failures": failing_hosts(totals.hosts.upper_bounds(), totals.host_rows),
        "http_statuses": dict(most_frequent(totals.http_statuses)),
        "histograms": {name: histogram.to_statistics() for name, histogram in totals.used_histograms.items()},
    }
    if totals.given:
        found["boxes"]["given"] = {name: totals.given[name] for name in ("boxes", "rows", "split")}
    return found


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
