"""Run a dry run: the checks of the job, a sample, and the predictions. Nothing is written to the output."""

import dataclasses
import io
import json
import logging
import math
import os
import tempfile
import threading
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar, Final, NamedTuple

import aiohttp
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from numpy.typing import NDArray

from hypergrit_common.config_help import print_text
from hypergrit_common.errors import UserError
from hypergrit_common.lease import describe
from hypergrit_common.remote import open_store
from hypergrit_common.text import counted, duration_text, message
from pipeline.config import PipelineConfig
from pipeline.explore.quality.curve import wilson
from pipeline.output.finished import find_damaged
from pipeline.output.listing import list_output
from pipeline.output.lock import fenced
from pipeline.output.record import check_secrets
from pipeline.output.store import Store, remove_abandoned_folders, temporary_folder_prefix
from pipeline.output.write.grit import grit_columns, similarity_column, write_arrow, write_grit_parquet
from pipeline.output.write.samples import remove_url_secrets
from pipeline.output.write.stage import write_shard
from pipeline.output.write.tar import file_metadata
from pipeline.read.parquet import batch_sizes
from pipeline.read.plan import list_files
from pipeline.read.source import PART_BYTES, planned_rows, read_parts
from pipeline.read.types import ShardPlan
from pipeline.report.advice import HINTS
from pipeline.report.stats import build_stats, bytes_text
from pipeline.run.job import plan_with_models
from pipeline.run.loop import Run
from pipeline.run.progress import DOWNLOAD_CPU, WAITING, Capacity, local_capacity
from pipeline.run.provenance import check_no_query, check_output_outside_input, make_provenance, with_absolute_paths
from pipeline.run.steps import Done, Notes, Part, Recipe, Steps, join
from pipeline.stages.download.addresses import FetchError
from pipeline.stages.download.client import Client
from pipeline.stages.download.fetch import Request
from pipeline.stages.download.permits import PermitAddress
from pipeline.stages.download.stage import Download, Outcome
from pipeline.stages.order import Step, steps_of
from pipeline.stages.recaption import RecaptionConfig
from pipeline.stages.stage import TableFunction
from pipeline.summary.totals import host_of
from schemas.files import FILES, INDEX_FILE, LEASE_FILE, MANIFEST_FILE, TIMINGS_FILE
from schemas.layout import FLAT
from schemas.manifest import Provenance, StageTiming, Timings
from schemas.rows import SCORED
from schemas.status import DROPPED, KEPT
from schemas.table import set_column

# The download stage with a count of the requests and the time of each row.

ROW: Final[ContextVar["Effort | None"]] = ContextVar("row", default=None)
"""The row for which the present task sends requests."""
ROW_TIME: Final = "row "
BUSY_TIME: Final = "busy "
"""Prefixes of the names of timings: of a row in all, and of its requests alone."""


class Effort:
    """The requests that a row needed, redirects and retries included, and its time in seconds.

    `busy_seconds` is the part in which a request was under way, without the waits for turns, names and retries.
    """

    def __init__(self) -> None:
        self.n_requests, self.seconds, self.busy_seconds = 0, 0.0, 0.0
        self._since = 0.0

    def begin_request(self) -> None:
        """Count a request, and start its time."""
        self.n_requests += 1
        self._since = time.monotonic()

    def go_on(self) -> None:
        """Add the time since the last event of the request."""
        now = time.monotonic()
        self.busy_seconds, self._since = self.busy_seconds + now - self._since, now


class CountedDownload(Download):
    """Downloads like `Download`, and remembers the effort of each row until `take`."""

    _efforts: dict[str, Effort]
    _watched: Client | None = None

    def take(self) -> Timings:
        """Return and forget the efforts as timings, `row KEY` and `busy KEY`, which the notes on a shard carry along.

        The number of requests is in the place of the number of rows.
        """
        found, self._efforts = getattr(self, "_efforts", {}), {}
        timings: Timings = {}
        for key, effort in found.items():
            n = float(effort.n_requests)
            timings[f"{ROW_TIME}{key}"] = StageTiming(seconds=effort.seconds, rows=n)
            timings[f"{BUSY_TIME}{key}"] = StageTiming(seconds=effort.busy_seconds, rows=n)
        return timings

    async def _prepare_all(self, rows: Sequence[tuple[str, str | None, bytes | None]], client: Client) -> list[Outcome]:
        self._efforts = getattr(self, "_efforts", {})
        if client is not self._watched:  # after an exception, there is a new one
            self._watched = client
            tracing = aiohttp.TraceConfig()
            tracing.on_request_start.append(note)
            for event in (tracing.on_response_chunk_received, tracing.on_request_end, tracing.on_request_exception):
                event.append(note)
            tracing.freeze()
            client.session.trace_configs.append(tracing)
        return await super()._prepare_all(rows, client)

    async def _row(
        self, key: str, request: Request | bytes | FetchError, client: Client, pool: ThreadPoolExecutor
    ) -> Outcome:
        effort, start = self._efforts.setdefault(key, Effort()), time.monotonic()
        ROW.set(effort)  # each row has a task, and thus a context, of its own
        try:
            return await super()._row(key, request, client, pool)
        finally:
            effort.seconds += time.monotonic() - start


async def note(_: aiohttp.ClientSession, __: SimpleNamespace, event: object) -> None:
    """Note that a request of the row of this task begins, is still under way, or has ended."""
    if (effort := ROW.get()) is not None:
        (effort.begin_request if isinstance(event, aiohttp.TraceRequestStartParams) else effort.go_on)()


# Requests of a job to the object stores of its input and output.

PROTOCOL: Final = "hypergrit-counted"
REQUESTS: Final = ("cat_file", "info", "ls", "pipe_file", "put_file", "rm_file", "_open")
"""Methods that send a request to an object store."""
BLOCK: Final = 50 << 20
"""Bytes of one read, or of a part of a large upload, in s3fs."""


class Cost(NamedTuple):
    """Requests for each shard, and those of a job besides."""

    per_shard: float
    fixed: float

    def total(self, n_shards: int) -> float:
        """Return the requests for this number of shards."""
        return self.per_shard * n_shards + self.fixed


class CountedStore(MemoryFileSystem):
    """A store in memory that counts requests; the files of several instances are the same."""

    protocol = PROTOCOL
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    calls: ClassVar[list[str]] = []
    thread: ClassVar[threading.local] = threading.local()

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return partial(self._count, value, name) if name in REQUESTS else value

    def _count(self, method: Callable[..., Any], name: str, *arguments: Any, **options: Any) -> Any:
        is_within = getattr(self.thread, "is_within", False)
        if not is_within:  # not for a call within another one
            self.calls.append(name)
        self.thread.is_within = True
        try:
            return method(*arguments, **options)
        finally:
            self.thread.is_within = is_within


def output_cost(config: PipelineConfig, provenance: Provenance) -> Cost:
    """Count the requests to the output: the commit of shards without rows, and the report, with a store in memory.

    A local output needs none.
    """
    if isinstance(open_store(config.output)[0], LocalFileSystem):
        return Cost(0, 0)
    fsspec.register_implementation(PROTOCOL, CountedStore, clobber=True)
    one, three = (count_requests(n, config, provenance) for n in (1, 3))
    return Cost((three - one) / 2, one - (three - one) / 2)


def count_requests(n_shards: int, config: PipelineConfig, provenance: Provenance) -> int:
    """Commit empty shards, look for damaged ones and count the rows; return the number of requests."""
    url = f"{PROTOCOL}://dry-run-{n_shards}"
    CountedStore.calls.clear()
    plans = [ShardPlan(index, 0, 0, ()) for index in range(n_shards)]
    store = Store(url)
    try:
        list_output(store)
        store.write(LEASE_FILE, json.dumps({"token": ""}))  # every commit reads the lease
        store = fenced(url, "")
        for plan in plans:
            write_shard(SCORED.empty_table(), plan, config.write, store, provenance, lease="")
            store.write(store.file(TIMINGS_FILE, plan.index), "{}")
        find_damaged(store, plans, config, provenance)
        build_stats(url)
        return len(CountedStore.calls)
    finally:
        with suppress(FileNotFoundError):
            store.fs.rm(store.root, recursive=True)


def upload_parts(bytes_per_shard: Mapping[str, float]) -> float:
    """Return the further requests for the files of a shard that are uploaded in parts."""
    return float(sum(math.ceil(n / BLOCK) + 1 for n in bytes_per_shard.values() if n >= 2 * BLOCK))


def input_requests(plans: Sequence[ShardPlan]) -> float:
    """Estimate the requests to read these shards from an object store, from the sizes of the files.

    A piece of a file takes one request for the attributes before and after it, and one for each block. Local files take
    none.
    """
    rows: Counter[str] = Counter()
    for plan in plans:
        for piece in plan.pieces:
            rows[piece.path] += piece.n_rows
    remote = {path for path in rows if not isinstance(open_store(path)[0], LocalFileSystem)}
    pieces = [piece for plan in plans for piece in plan.pieces if piece.path in remote]
    return float(sum(2 + math.ceil(piece.size * piece.n_rows / rows[piece.path] / BLOCK) for piece in pieces))


# Choose the rows of a sample: spread over the whole input, the same for the same seed.

LEAST_SHARDS: Final = 4
"""Sample shards, if there are as many rows: the times of a stage differ from shard to shard."""

Source = tuple[ShardPlan, tuple[int, ...]]
"""A shard of the job, and the positions in it of the chosen rows."""
Samples = Mapping[int, Sequence[Source]]
"""Index of a sample shard -> where its rows are."""


def choose_rows(plans: Sequence[ShardPlan], n_rows: int, rows_per_shard: int, seed: int) -> Samples:
    """Choose `n_rows` rows of all plans, and deal them out to sample shards; if there are no more, take the plans.

    The rows are divided into `n_rows` runs of equal length, and one row of each run is chosen at random. Each sample
    shard gets rows of the whole input, at most `rows_per_shard`.
    """
    ends = list(accumulate(plan.n_rows for plan in plans))
    total = ends[-1] if ends else 0
    if n_rows >= total:
        return {plan.index: [(plan, tuple(range(plan.n_rows)))] for plan in plans}
    random = Random(f"dry run {seed}")
    bounds = [i * total // n_rows for i in range(n_rows)] + [total] if n_rows else []
    chosen = [random.randrange(start, end) for start, end in pairwise(bounds)]
    n_shards = min(max(-(-n_rows // rows_per_shard), LEAST_SHARDS), n_rows)
    samples: dict[int, list[Source]] = {}
    for shard in range(n_shards):
        by_plan: dict[int, list[int]] = {}
        for row in chosen[shard::n_shards]:
            number = bisect_right(ends, row)
            by_plan.setdefault(number, []).append(row - (ends[number] - plans[number].n_rows))
        samples[shard] = [(plans[number], tuple(rows)) for number, rows in by_plan.items()]
    return samples


# The steps of the job on a sample: they read chosen rows of many shards, and write to a folder that is removed.

COLUMNS: Final = ("key", "status", "stage", "reason")
COLUMNAR: Final = (str(FILES["arrow"][0]), str(FILES["grit"][1]))
"""Files whose rows are compressed together."""


@dataclass(frozen=True)
class Measured(Done):
    """A sample shard.

    `rows` has COLUMNS, `host`, `requests`, `seconds` and `busy` seconds of the download, the bytes of the `image`, the
    size before compression (`weight`), and `bytes FILE` for the kinds of tars, index and manifest. `table` holds the
    rows without images, `fixed` the bytes of the files of a shard without rows, by kind of file, `sizes` those of its own.
    """

    rows: pa.Table
    table: pa.Table
    timings: Timings
    fixed: dict[str, int]
    sizes: dict[str, int] = field(default_factory=dict)


class SampleSteps(Steps):
    """The steps of a job, but for the rows of `samples`."""

    stores = False

    def __init__(
        self, config: PipelineConfig, provenance: Provenance, samples: Samples, permits: PermitAddress | None = None
    ) -> None:
        super().__init__(config, provenance, permits)
        self.samples = samples

    def make_stage(self, name: str) -> TableFunction:
        """Load a stage; `download` counts requests."""
        if name != "download":
            return super().make_stage(name)
        self.counted = CountedDownload(self.config.download, self.permits)
        return self.counted.isolate

    def read(self, plan: ShardPlan, rows: pa.Table | None = None) -> Iterator[Part]:
        """Yield the chosen rows of a sample shard in parts of bounded size. Raises ShardError."""
        parts: list[Part] = []
        for source, positions in self.samples[plan.index]:
            planned = planned_rows(source)
            keys = planned["key"].take(pa.array(positions, pa.int64()))
            is_chosen = pc.is_in(planned["key"], keys.combine_chunks())
            status = pc.if_else(is_chosen, pa.scalar(KEPT), pa.scalar(DROPPED))
            for table, notes in super().read(source, set_column(planned, "status", status)):
                found = table.filter(pc.is_in(table["key"], keys.combine_chunks()))
                timings: Timings = {"read": {**notes.timings["read"], "rows": float(found.num_rows)}}
                parts.append((found, Notes(timings, notes.faults)))
                if sum(table.nbytes for table, _ in parts) >= PART_BYTES:
                    yield join(parts)
                    parts.clear()
        if parts:
            yield join(parts)

    def download(self, plan: ShardPlan, parts: Iterable[Part]) -> Part:
        """Download as the job does, and add the effort of each row to the notes."""
        start = time.process_time()
        table, notes = super().download(plan, parts)
        on_cpu: Timings = {DOWNLOAD_CPU: {"seconds": time.process_time() - start, "rows": float(table.num_rows)}}
        return table, Notes({**notes.timings, **on_cpu, **self.counted.take()}, notes.faults)

    def write(self, plan: ShardPlan, table: pa.Table, notes: Notes) -> Measured:
        """Write the files of the sample shard to a temporary folder, measure them and remove them."""
        remove_abandoned_folders(tempfile.gettempdir())
        source, positions = self.samples[plan.index][0]
        if len(positions) == source.n_rows == plan.n_rows:
            plan = dataclasses.replace(source, index=plan.index)  # the whole shard, whose manifest names its files
        with tempfile.TemporaryDirectory(prefix=temporary_folder_prefix()) as folder:
            here = Steps(dataclasses.replace(self.config, output=folder), self.provenance)
            empty = write_shard(
                SCORED.empty_table(), ShardPlan(plan.index, 0, 0, ()), self.config.write, folder, self.provenance
            )
            fixed = file_bytes(folder, empty["files"], plan.index)
            start = time.perf_counter()
            done = here.write(plan, table, notes)
            seconds = time.perf_counter() - start
            sizes = file_bytes(folder, done.manifest["files"], plan.index)
            rows = measure_rows(table, folder, plan.index, sizes, fixed)
        rows = with_efforts(rows, notes.timings)
        rows = rows.append_column("host", pa.array([host_of(url) for url in table["url"].to_pylist()], pa.string()))
        timings: Timings = {
            name: timing for name, timing in notes.timings.items() if not name.startswith((ROW_TIME, BUSY_TIME))
        }
        timings["write"] = {"seconds": seconds, "rows": float(done.manifest["counts"]["kept"])}
        light = set_column(table, "image", pa.nulls(table.num_rows, pa.binary()))
        return Measured(done.manifest, done.faults, rows, light, timings, fixed, sizes)


def with_efforts(rows: pa.Table, timings: Timings) -> pa.Table:
    """Add the requests of each row, its time in the download stage, and the part of its requests."""
    nothing: StageTiming = {"seconds": 0.0, "rows": 0.0}
    keys = rows["key"].to_pylist()
    whole, busy = ([timings.get(f"{prefix}{key}", nothing) for key in keys] for prefix in (ROW_TIME, BUSY_TIME))
    rows = with_numbers(rows, "requests", [timing["rows"] for timing in whole])
    rows = with_numbers(rows, "seconds", [timing["seconds"] for timing in whole])
    return with_numbers(rows, "busy", [timing["seconds"] for timing in busy])


def with_numbers(rows: pa.Table, name: str, values: Iterable[float]) -> pa.Table:
    """Add a column of numbers."""
    return rows.append_column(name, pa.array(values, pa.float64()))


def kinds(index: int) -> dict[str, str]:
    """Return the paths of the files of a shard, the manifest included -> their kinds as text."""
    found = [*(kind for kinds in FILES.values() for kind in kinds), INDEX_FILE, MANIFEST_FILE]
    return {FLAT.path(kind, index): str(kind) for kind in found}


def file_bytes(folder: str, files: Iterable[str], index: int) -> dict[str, int]:
    """Return the bytes of the files of a shard, and of its manifest, by kind."""
    names = [*files, FLAT.path(MANIFEST_FILE, index)]
    return {kinds(index)[name]: Path(folder, name).stat().st_size for name in names}


def measure_rows(table: pa.Table, folder: str, index: int, sizes: dict[str, int], fixed: dict[str, int]) -> pa.Table:
    """Divide the bytes of tars, index and manifest, beyond those of an empty shard, among the rows.

    The samples of a tar have their own sizes, which the index holds; the other bytes are divided by the size of the
    rows before compression. arrow/ and the parquet shrink with the number of rows, so `pooled` measures them later.
    """
    keys = table["key"].to_pylist()
    batches = table.drop_columns(["image"]).combine_chunks().to_batches()
    weights = [float(n) for batch in batches for n in batch_sizes(batch)]
    in_tars: dict[str, dict[str, float]] = {}
    if (path := Path(folder, FLAT.path(INDEX_FILE, index))).exists():
        for sample in pa.ipc.open_file(path).read_all().to_pylist():
            in_tars.setdefault(str(FILES[sample["format"]][0]), {})[sample["key"]] = float(sample["size"])
    rows = table.select(list(COLUMNS)).replace_schema_metadata()
    rows = with_numbers(rows, "weight", weights)
    rows = with_numbers(rows, "image", [len(image.as_py()) if image.is_valid else 0.0 for image in table["image"]])
    for kind, n_bytes in sizes.items():
        if kind in COLUMNAR:
            continue
        values = [in_tars[kind].get(key, 0.0) for key in keys] if kind in in_tars else []
        rest = max(n_bytes - fixed.get(kind, 0), 0)
        rows = with_numbers(rows, f"bytes {kind}", values or shared(rest, weights))
    return rows


def shared(n_bytes: float, weights: Sequence[float]) -> list[float]:
    """Divide bytes by weights."""
    total = sum(weights) or 1.0
    return [n_bytes * weight / total for weight in weights]


# The bytes of arrow/ and of the parquet, measured on the whole sample at once, since larger batches compress better.


def pooled(samples: Sequence[Measured], config: PipelineConfig, provenance: Provenance) -> list[Measured]:
    """Return the sample shards with `bytes FILE` of the columnar files, divided by the size of the rows.

    Images in arrow/ are JPEGs and keep their size.
    """
    sizes = pooled_bytes(pa.concat_tables([sample.table for sample in samples]), config, provenance)
    weights = [weight for sample in samples for weight in sample.rows["weight"].to_pylist()]
    found: list[Measured] = []
    first = 0
    for sample in samples:
        rows, last = sample.rows, first + sample.rows.num_rows
        for kind, n_bytes in sizes.items():
            if kind not in sample.fixed:  # a format that is not written
                continue
            values = shared(max(n_bytes - sample.fixed[kind], 0), weights)[first:last]
            if kind == COLUMNAR[0]:
                values = [value + n for value, n in zip(values, stored_images(rows, config), strict=True)]
            rows = with_numbers(rows, f"bytes {kind}", values)
        found.append(dataclasses.replace(sample, rows=rows))
        first = last
    return found


def stored_images(rows: pa.Table, config: PipelineConfig) -> list[float]:
    """Return the bytes of the image of each row in arrow/: of kept rows with `write.image_bytes`, of others if any."""
    pairs = zip(rows["image"].to_pylist(), rows["status"].to_pylist(), strict=True)
    return [n if config.write.image_bytes or status != KEPT else 0.0 for n, status in pairs]


def pooled_bytes(table: pa.Table, config: PipelineConfig, provenance: Provenance) -> Mapping[str, int]:
    """Return the bytes of the columnar files of these rows, without images."""
    rows = [remove_url_secrets(row, strip_query=config.write.strip_url_queries) for row in table.to_pylist()]
    arrow, parquet = io.BytesIO(), io.BytesIO()
    write_arrow(arrow, rows, False, file_metadata(provenance))
    similarity = similarity_column(provenance["models"]["scorer"]["name"])
    columns = [grit_columns(row, config.write.ref_exps, similarity) for row in rows]
    write_grit_parquet(parquet, columns, similarity, file_metadata(provenance))
    return dict(zip(COLUMNAR, (arrow.tell(), parquet.tell()), strict=True))


# Predict a job from a sample of its rows.
#
# An estimate is the value of the sample, scaled to all rows. Its interval of 95 % is a bootstrap (Efron 1979): the rows of
# the sample are drawn again with replacement, and for times, the sample shards too; the interval holds the middle 95 % of
# the results. What depends on the rows alone is narrowed by the finite population correction, sqrt(1 - n / N): a sample of
# all rows leaves no doubt. The share of kept rows has Wilson's interval, which also holds if all rows are kept, or none.

N_DRAWS: Final = 1000
QUANTILES: Final = (0.025, 0.975)

Floats = NDArray[np.float64]
Columns = Mapping[str, NDArray[Any]]
"""The rows of the sample: name -> values [n]."""


class Estimate(NamedTuple):
    """A prediction with its interval of 95 %."""

    value: float
    low: float
    high: float

    def __mul__(self, factor: float) -> "Estimate":  # type: ignore[override]
        """Scale the prediction."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job to predict: its rows and shards to compute, and its workers.

    `concurrency` is the number of requests that a worker has under way, `host_concurrency` that of the whole job to the
    same host, `read_rates` are seconds per row of reading whole shards, `steps` the stages of each step.
    """

    n_rows: int
    n_shards: int
    capacity: Capacity
    concurrency: int
    host_concurrency: int
    read_rates: Sequence[float]
    seed: int = 0
    steps: Mapping[Step, tuple[str, ...]] = field(
        default_factory=lambda: steps_of(PipelineConfig(input="-", output="-"))
    )

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of the stages."""
        return tuple(name for names in self.steps.values() for name in names)


class Clock(NamedTuple):
    """The seconds of each stage, summed over the shards of a job, and of the busiest host.

    Images are downloaded for as long as the slowest row of each shard takes, or all requests with `concurrency` of them
    at a time, or the work of the CPU on them. The requests to one host take their time however many workers there are.
    """

    stages: dict[str, float]
    busiest_host: float


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predictions for a job. `n_bytes` is by kind of file, `drops` counts rows of the sample by stage and reason."""

    n_sampled: int
    kept: Estimate
    n_bytes: dict[str, Estimate]
    hours: Estimate
    model_hours: Estimate
    requests: Estimate
    drops: dict[tuple[str, str], int]
    stage_seconds: dict[str, float]
    start_seconds: float = 0.0


def predict(samples: Sequence[Measured], job: Job) -> Prediction:
    """Predict a job from its sample shards, of which there is at least one with a row."""
    rows = columns(pa.concat_tables([sample.rows for sample in samples]), job.stages)
    n, scale = len(rows["status"]), job.n_rows / len(rows["status"])
    rng = np.random.default_rng(job.seed)
    draws = [rng.integers(0, n, n) for _ in range(N_DRAWS)]
    of_shards = [rng.integers(0, len(samples), len(samples)) for _ in range(N_DRAWS)]
    correction = math.sqrt(max(1 - n / job.n_rows, 0.0))

    def n_bytes(name: str) -> Estimate:
        if n == job.n_rows:  # the shards of the job themselves
            return Estimate(*[float(sum(sample.sizes.get(name, 0) for sample in samples))] * 3)
        more = samples[0].fixed.get(name, 0) * job.n_shards  # the bytes that each file has besides its rows
        return Estimate(*(bound + more for bound in total(rows[f"bytes {name}"])))

    def total(values: Floats) -> Estimate:
        sums = [float(values[draw].sum()) for draw in draws]
        return interval(float(values.sum()), sums, correction) * scale

    kinds_of_files = [name.removeprefix("bytes ") for name in rows if name.startswith("bytes ")]
    n_kept = int(np.sum(rows["status"] == KEPT))
    low, high = (n_kept / n + correction * (bound - n_kept / n) for bound in wilson(n_kept, n))
    clocks = [times(samples, rows, job, draw, shards) for draw, shards in zip(draws, of_shards, strict=True)]
    found = times(samples, rows, job, np.arange(n), np.arange(len(samples)))

    def hours(clock: Clock) -> float:
        return max(job.capacity.wall_seconds(clock.stages, job.n_shards, job.steps["infer"]), clock.busiest_host) / 3600

    def spent(value: Callable[[Clock], float]) -> Estimate:
        return interval(value(found), [value(clock) for clock in clocks])

    return Prediction(
        n_sampled=n,
        kept=Estimate(n_kept / n, low, high) * job.n_rows,
        n_bytes={kind: n_bytes(kind) for kind in kinds_of_files},
        hours=spent(hours),
        model_hours=spent(lambda clock: sum(clock.stages.get(name, 0.0) for name in job.steps["infer"]) / 3600),
        requests=total(rows["requests"]),
        drops=count_drops(rows, job.stages),
        stage_seconds=found.stages,
    )


def times(samples: Sequence[Measured], rows: Columns, job: Job, draw: Any, shards: Any) -> Clock:
    """Return the times of a job for a draw of rows and of sample shards.

    The rate of a stage is its time in the drawn shards by the rows that entered it there; the number of rows that enter
    it is that of the drawn rows.
    """
    n = len(draw)
    dropped = np.bincount(rows["stage code"][draw], minlength=len(job.stages) + 1)
    entering = dict(zip(job.stages, n - np.cumsum(dropped) + dropped, strict=False))
    seconds = {"read": float(np.mean([job.read_rates[i % len(job.read_rates)] for i in shards])) * job.n_rows}
    for stage in (*job.stages[1:], DOWNLOAD_CPU):
        timings = [samples[i].timings[stage] for i in shards if stage in samples[i].timings]
        n_rows = sum(timing["rows"] for timing in timings)
        rate = sum(timing["seconds"] for timing in timings) / n_rows if n_rows else 0.0
        seconds[stage] = rate * int(entering.get(stage, n)) * job.n_rows / n
    if not rows["requests"].any():
        return Clock(seconds, 0.0)
    busy = rows["busy"][draw] * job.n_rows / n
    busiest = float(np.bincount(rows["host code"][draw], busy).max()) / job.host_concurrency
    slowest = float(rows["seconds"][draw].max()) * job.n_shards
    waiting = max(slowest, float(busy.sum()) / job.concurrency, seconds[DOWNLOAD_CPU])
    return Clock(seconds | {WAITING: max(waiting, busiest) if job.capacity.is_sequential else waiting}, busiest)


def interval(value: float, draws: Sequence[float], correction: float = 1.0) -> Estimate:
    """Return an estimate with the quantiles of its draws, moved towards it by `correction`."""
    low, high = (float(bound) for bound in np.quantile(draws, QUANTILES))
    return Estimate(
        value, value + correction * (min(low, value) - value), value + correction * (max(high, value) - value)
    )


def count_drops(rows: Columns, stages: Sequence[str]) -> dict[tuple[str, str], int]:
    """Count the dropped rows by stage and reason: stages in their order, the most frequent reasons first."""
    pairs = [pair for pair in zip(rows["stage"], rows["reason"], strict=True) if pair[0] is not None]
    counts = {pair: pairs.count(pair) for pair in set(pairs)}
    return dict(sorted(counts.items(), key=lambda item: (stages.index(item[0][0]), -item[1], item[0][1])))


def columns(rows: pa.Table, stages: Sequence[str]) -> Columns:
    """Return the columns of a table as arrays [n]: objects for texts (null: None), else float64.

    Hosts and stages also have whole numbers, which can be counted fast: the index of the stage, one more for kept rows.
    """
    found: dict[str, NDArray[Any]] = {
        name: np.array(rows[name].to_pylist(), object if pa.types.is_string(rows[name].type) else np.float64)
        for name in rows.column_names
    }
    found["host code"] = np.unique(found["host"].astype(str), return_inverse=True)[1]
    found["stage code"] = np.array([len(stages) if s is None else stages.index(s) for s in found["stage"]], np.int64)
    return found


# The predictions of a dry run as lines of text.

METHOD = (
    "Brackets hold 95 % of a bootstrap over the rows of the sample, for times also over its shards; for rows kept, "
    "Wilson's interval. The prediction holds if the rest of the input, the network and the cluster are like the sample."
)


def captioner_lines(found: Prediction, job: Job, config: RecaptionConfig) -> Iterator[str]:
    """Yield the requests to a captioner, one for each row that reaches it, and their price."""
    if config.captioner is None:
        return
    before = job.stages[: job.stages.index("recaption")]
    n_dropped = sum(n for (stage, _), n in found.drops.items() if stage in before)
    low, high = wilson(found.n_sampled - n_dropped, found.n_sampled)
    asked = Estimate(1 - n_dropped / found.n_sampled, low, high) * job.n_rows
    yield line("requests to the captioner", asked, "{:,.0f}".format)
    if config.price:
        yield line("price of them", asked * (config.price / 1000), "{:,.2f}".format)


def prediction_lines(found: Prediction, job: Job, n_planned: int, store_requests: float) -> Iterator[str]:
    """Yield the lines of a prediction; `n_planned` counts all shards of the job, `store_requests` those to stores."""
    done = n_planned - job.n_shards
    finished = f"; {done:,} of {n_planned:,} are finished already, and not counted" if done else ""
    rows, shards = counted(job.n_rows, "row"), counted(job.n_shards, "shard")
    yield f"sample: {found.n_sampled:,} of {rows} in {shards} (seed {job.seed}){finished}"
    yield ""
    yield line("rows kept", found.kept, "{:,.0f}".format)
    n_dropped = sum(found.drops.values())
    yield f"dropped in the sample: {n_dropped:,} of {counted(found.n_sampled, 'row')}"
    for (stage, reason), n in found.drops.items():
        yield f"  {stage + ': ' + reason:32}{n:>8,}  {n / found.n_sampled:6.1%}"
        if n == found.n_sampled and reason in HINTS:
            yield f"  all rows: {HINTS[reason]}"
    yield ""
    for name, files in FILES.items():
        parts = [found.n_bytes[str(kind)] for kind in files if str(kind) in found.n_bytes]
        if parts:
            yield line(f"bytes of {name}/", added(parts), bytes_text)
    rest = [estimate for kind, estimate in found.n_bytes.items() if kind.startswith("_")]
    yield line("bytes of index and manifests", added(rest), bytes_text)
    yield ""
    yield line("duration", found.hours * 3600, duration_text)
    yield f"  on {job.capacity.description}, after {duration_text(found.start_seconds)} for the start of its workers"
    unit = "GPU time (ground, score)" if job.capacity.gpus_per_model else "model time (ground, score)"
    yield line(unit, found.model_hours * (job.capacity.gpus_per_model or 1.0) * 3600, duration_text)
    stages = [(stage, seconds) for stage, seconds in found.stage_seconds.items() if seconds and stage != DOWNLOAD_CPU]
    total = sum(seconds for _, seconds in stages)
    yield "  time by stage: " + ", ".join(f"{stage} {seconds / total:.0%}" for stage, seconds in stages)
    yield line("requests to hosts", found.requests, "{:,.0f}".format)
    yield f"{'requests to object stores':32}{store_requests:>14,.0f}  (counted for a shard without rows, and by file sizes)"
    yield ""
    yield METHOD


def line(name: str, estimate: Estimate, show: Callable[[float], str]) -> str:
    """Return a line with an estimate and its interval."""
    return f"{name:32}{show(estimate.value):>14}  [{show(estimate.low)}, {show(estimate.high)}]"


def added(parts: list[Estimate]) -> Estimate:
    """Add estimates that depend on the same rows: the sums of their bounds are bounds."""
    return Estimate(*(sum(bounds) for bounds in zip(*parts, strict=True))) if parts else Estimate(0.0, 0.0, 0.0)


logger = logging.getLogger("hypergrit")

N_ROWS: Final = 200
"""Rows in the sample of `dry_run=true`: a share of rows is then known to about 7 %."""
SEED: Final = 0
"""Random seed of the sample: a dry run that is repeated has the same rows."""

READ_SHARDS: Final = 3
"""Whole shards that are read to measure the reading: the sample opens a file for each of its rows."""


def dry_run(config: PipelineConfig) -> int:
    """Check a job, run a sample of its rows, and print the predictions; return the number of failed sample shards.

    Raises UserError for what the job would raise it for.
    """
    config = with_absolute_paths(config)
    files = list_files(config.input)
    check_no_query(config, [path for path, _ in files])
    check_output_outside_input(config, [path for path, _ in files])
    output = Store(config.output)
    check_may_write(output)
    if (lease := output.read(LEASE_FILE)) is not None:
        logger.warning("the output is in use by %s; the prediction counts its shards as they are now", describe(lease))
    provenance = make_provenance(config)
    start = time.monotonic()
    work = plan_with_models(config, files, provenance, output)
    check_secrets(work.old_record, config)
    logger.info("planning took %.1f s, and takes as long in the job", time.monotonic() - start)
    if not work.unfinished:
        print_text(f"{counted(len(work.plans), 'shard')}, all finished; the job has nothing to compute")
        return 0
    with runner_at_hand(config) as find_capacity:
        measured, n_failed, start_seconds = run_sample(work.unfinished, config, provenance)
        capacity = find_capacity()  # an autoscaler may have added nodes meanwhile
    if not measured:
        print_text("no sample shard was finished, so nothing can be predicted; the log has the errors")
        return n_failed
    job = Job(
        n_rows=sum(plan.n_rows for plan in work.unfinished),
        n_shards=len(work.unfinished),
        capacity=capacity,
        concurrency=config.download.concurrency,
        host_concurrency=config.download.concurrency_per_host,
        read_rates=read_rates(work.unfinished, config),
        seed=SEED,
        steps=steps_of(config),
    )
    found = dataclasses.replace(predict(pooled(measured, config, provenance), job), start_seconds=start_seconds)
    cost = output_cost(config, provenance)
    parts = upload_parts({name: estimate.value / job.n_shards for name, estimate in found.n_bytes.items()})
    requests = cost.total(job.n_shards) + input_requests(work.unfinished) + (parts * job.n_shards if cost.fixed else 0)
    print_text("\n".join(prediction_lines(found, job, len(work.plans), requests)))
    for text in captioner_lines(found, job, config.recaption):
        print_text(text)
    if work.outdated:
        print_text(f"overwrite=true: the job would discard {counted(len(work.outdated), 'finished shard')}")
    return n_failed


def run_sample(
    plans: Sequence[ShardPlan], config: PipelineConfig, provenance: Provenance
) -> tuple[list[Measured], int, float]:
    """Run a sample of the rows of `plans` with the runner of the job.

    Returns its shards, the number that failed, and the seconds until the first one beyond those of its stages.
    """
    n_rows = N_ROWS if config.dry_run is True else int(config.dry_run)
    samples = choose_rows(plans, n_rows, config.rows_per_shard, SEED)
    shards = [ShardPlan(index, 0, sum(len(rows) for _, rows in found), ()) for index, found in samples.items()]
    run = Run(config, limited=shards)
    recipe = Recipe(partial(SampleSteps, run.config, provenance, samples), run.config)
    measured, start, start_seconds = list[Measured](), time.monotonic(), 0.0
    try:
        for result in run.results(recipe, shards):
            if not isinstance(result, Measured):
                continue
            if not measured:
                stages = sum(t["seconds"] for name, t in result.timings.items() if name != DOWNLOAD_CPU)
                start_seconds = max(time.monotonic() - start - stages, 0.0)
            measured.append(result)
    finally:
        remove_abandoned_folders(tempfile.gettempdir())  # of workers that were killed
    return sorted(measured, key=lambda shard: shard.manifest["shard"]), len(run.failed), start_seconds


@contextmanager
def runner_at_hand(config: PipelineConfig) -> Iterator[Callable[[], Capacity]]:
    """Join the cluster for the `with` block, and yield a function that returns its capacity. Raises UserError."""
    if config.ray.runner == "local":
        yield local_capacity
        return
    from pipeline.run.ray import joined
    from pipeline.run.ray_workers import cluster_capacity

    with joined(config.ray):
        yield partial(cluster_capacity, config)


def read_rates(plans: Sequence[ShardPlan], config: PipelineConfig) -> list[float]:
    """Read some whole shards; return the seconds per row of each."""
    chosen = Random(f"read {SEED}").sample(list(plans), min(READ_SHARDS, len(plans)))
    rates = []
    for plan in chosen:
        start = time.perf_counter()
        deque(read_parts(plan, config.read), maxlen=0)
        rates.append((time.perf_counter() - start) / plan.n_rows)
    return rates


def check_may_write(output: Store) -> None:
    """Raise UserError if an output cannot be written, as far as that can be told without writing.

    A remote store is only listed.
    """
    if not output.is_local:
        output.names(".")
        logger.info("%s answers; a dry run does not try to write to it", output.url(""))
        return
    folder = output.root
    while not os.path.lexists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise UserError(message(f"cannot write {output.root}: {folder} is a file; choose another output="))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(message(f"cannot write {output.root}: {folder} is not writable; choose another output="))
