"""The steps of the job on a sample: they read chosen rows of many shards, and write to a folder that is removed."""

import dataclasses
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.capacity import DOWNLOAD_CPU
from pipeline.config import PipelineConfig
from pipeline.download.permits import PermitAddress
from pipeline.dry_run.download import BUSY_TIME, ROW_TIME, CountedDownload
from pipeline.dry_run.sample import Samples
from pipeline.faults.stage import Stage
from pipeline.read.sizes import batch_sizes
from pipeline.read.stage import PART_BYTES, planned_rows
from pipeline.read.types import ShardPlan
from pipeline.run import Done, Notes, Part, Steps, join
from pipeline.summary.totals import host_of
from pipeline.write.stage import write_shard
from pipeline.write.temporary import remove_abandoned_folders, temporary_folder_prefix
from schemas.files import FILES, INDEX_FILE, MANIFEST_FILE
from schemas.layout import FLAT
from schemas.manifest import Provenance, StageTiming, Timings
from schemas.rows import SCORED
from schemas.status import DROPPED, KEPT
from schemas.table import set_column

COLUMNS: Final = ("key", "status", "stage", "reason")
COLUMNAR: Final = (str(FILES["arrow"][0]), str(FILES["grit"][1]))
"""Files whose rows are compressed together."""


@dataclass(frozen=True)
class Measured(Done):
    """A sample shard.

    `rows` has COLUMNS, `host`, `requests`, `seconds` and `busy` seconds of the download, the bytes of the `image`, the
    size before compression (`weight`), and `bytes FILE` for the kinds of tars, index and manifest. `table` holds the
    rows without images, `fixed` the bytes of the files of a shard without rows, by kind of file.
    """

    rows: pa.Table
    table: pa.Table
    timings: Timings
    fixed: dict[str, int]


class SampleSteps(Steps):
    """The steps of a job, but for the rows of `samples`."""

    def __init__(
        self, config: PipelineConfig, provenance: Provenance, samples: Samples, permits: PermitAddress | None = None
    ) -> None:
        super().__init__(config, provenance, permits)
        self.samples = samples

    def make_stage(self, name: str) -> Stage:
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
        return Measured(done.manifest, done.faults, rows, light, timings, fixed)


def with_efforts(rows: pa.Table, timings: Timings) -> pa.Table:
    """Add the requests of each row, its time in the download stage, and the part of its requests."""
    nothing: StageTiming = {"seconds": 0.0, "rows": 0.0}
    keys = rows["key"].to_pylist()
    whole, busy = ([timings.get(f"{prefix}{key}", nothing) for key in keys] for prefix in (ROW_TIME, BUSY_TIME))
    rows = rows.append_column("requests", pa.array([timing["rows"] for timing in whole], pa.float64()))
    rows = rows.append_column("seconds", pa.array([timing["seconds"] for timing in whole], pa.float64()))
    return rows.append_column("busy", pa.array([timing["seconds"] for timing in busy], pa.float64()))


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
    rows = rows.append_column("weight", pa.array(weights, pa.float64()))
    images = [float(len(image.as_py())) if image.is_valid else 0.0 for image in table["image"]]
    rows = rows.append_column("image", pa.array(images, pa.float64()))
    for kind, n_bytes in sizes.items():
        if kind in COLUMNAR:
            continue
        values = [in_tars[kind].get(key, 0.0) for key in keys] if kind in in_tars else []
        rest = max(n_bytes - fixed.get(kind, 0), 0)
        rows = rows.append_column(f"bytes {kind}", pa.array(values or shared(rest, weights), pa.float64()))
    return rows


def shared(n_bytes: float, weights: Sequence[float]) -> list[float]:
    """Divide bytes by weights."""
    total = sum(weights) or 1.0
    return [n_bytes * weight / total for weight in weights]
