"""The order of the stages, and the three steps that compute one shard.

    prepare: read -> download -> captions -> parse     CPU, waits for the network; images of tars in parts
    infer:   ground -> score                           models
    write:   write                                     CPU

This module starts no process: local.py runs the steps in a child process, on_ray/ on a cluster.
"""

import dataclasses
import json
import logging
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

from common.errors import UserError
from pipeline.config import PipelineConfig, runtime_settings
from pipeline.download.permits import PermitAddress
from pipeline.drawn import UNLIKE_DRAWINGS, are_unlike_drawings, miniature_models
from pipeline.faults.fault import Fault, ShardError, check_limit
from pipeline.faults.stage import Stage, run_isolated
from pipeline.model_files import check_model
from pipeline.read.stage import read_parts
from pipeline.read.takedown import refuse_images
from pipeline.read.types import ShardPlan
from pipeline.report.dropped import DroppedPicture, pick_dropped, write_dropped
from pipeline.stored_images import StoredImages
from pipeline.write.stage import write_shard
from pipeline.write.staging import local_errors
from pipeline.write.store import Store
from schemas.files import TIMINGS_FILE
from schemas.manifest import Manifest, Provenance, StageTiming, Timings
from schemas.rows import BOUNDARIES
from schemas.table import kept_indices, with_images, without_images

if TYPE_CHECKING:
    from pipeline.batches.shards import SharedBatches

Step = Literal["prepare", "infer", "write"]
STAGES_OF: Final[Mapping[Step, tuple[str, ...]]] = {
    "prepare": ("read", "download", "captions", "parse"),
    "infer": ("ground", "score"),
    "write": ("write",),
}


COMPARED_IMAGES: Final = 32
"""Images of a shard that are compared with the drawings of the miniature models."""

logger = logging.getLogger("hypergrit")


@dataclass(frozen=True)
class Notes:
    """Notes on a shard besides its table: the time of each stage, the rows on which one failed, and dropped pictures."""

    timings: Timings
    faults: tuple[Fault, ...] = ()
    dropped: tuple[DroppedPicture, ...] = ()

    def seconds(self, step: Step) -> float:
        """Return the time that the stages of a step took, without loading them."""
        return sum(self.timings[name]["seconds"] for name in STAGES_OF[step] if name in self.timings)

    def __add__(self, other: "Notes") -> "Notes":
        """Join the notes on two parts of a shard, or of two stages."""
        timings: Timings = dict(self.timings)
        for name, new in other.timings.items():
            old = timings.get(name, {"seconds": 0.0, "rows": 0.0})
            timings[name] = {"seconds": old["seconds"] + new["seconds"], "rows": old["rows"] + new["rows"]}
        return Notes(timings, self.faults + other.faults, self.dropped + other.dropped)


Part = tuple[pa.Table, Notes]
"""Rows of a shard, one after another, with the notes on them."""


@dataclass(frozen=True)
class Done:
    """A committed shard, with the host name of the worker that wrote it."""

    manifest: Manifest
    faults: tuple[Fault, ...]
    host: str = field(default="", kw_only=True)


class Steps:
    """The steps of a process. Each stage is loaded when it is first used, and kept for the next shards.

    Stages raise UserError for what the user can fix for the whole job. A step raises ShardError if the input of its
    shard cannot be read, TooManyFaultsError for more than `max_internal_errors` faulty rows, and the exception of a
    stage if no single row is at fault. `permits` is the server of the requests per host that all workers share, `lease`
    the token of the lease without which no shard is committed (pipeline.write.fence).
    """

    def __init__(
        self,
        config: PipelineConfig,
        provenance: Provenance,
        permits: PermitAddress | None = None,
        lease: str | None = None,
    ) -> None:
        self.config, self.provenance, self.permits, self.lease = config, provenance, permits, lease
        self._stages: dict[str, Stage] = {}
        self.has_warned = False

    def load(self, step: Step) -> None:
        """Load the stages of a step."""
        for name in STAGES_OF[step]:
            if name in BOUNDARIES and name != "read":
                self.stage(name)

    def stage(self, name: str) -> Stage:
        """Return the stage `name`, loaded."""
        if name not in self._stages:
            self._stages[name] = self.make_stage(name)
        return self._stages[name]

    def make_stage(self, name: str) -> Stage:
        """Import and load a stage: a process imports only what it runs. Tests override this method to make rows fail."""
        config = self.config
        if name == "download":
            from pipeline.download.stage import Download

            return Download(config.download, self.permits).isolate
        if name == "captions":
            from pipeline.captions.stage import clean_captions

            return partial(clean_captions, config=config.captions)
        if name == "parse":
            from pipeline.parse.stage import Parse

            return Parse(config.parse)
        return self.make_model_stage(name)

    def make_model_stage(self, name: str) -> Stage:
        """Load `ground` or `score`.

        On a CPU a model uses one thread, since the last bits of sums depend on the number of threads; more workers are
        faster.
        """
        import torch

        torch.set_num_threads(1)
        if name == "ground":
            from pipeline.ground.load import grounder_path
            from pipeline.ground.stage import Ground

            self.check_model("grounder", grounder_path(self.config.ground.grounder))
            return Ground(self.config.ground, decode=self.images)
        from pipeline.score.paths import scorer_path
        from pipeline.score.stage import Score
        from pipeline.score.thresholds import resolve_thresholds

        self.check_model("scorer", scorer_path(self.config.score.scorer))
        thresholds = resolve_thresholds(self.config.score, self.config.ground.grounder)
        return Score(self.config.score, thresholds, decode=self.images)

    def check_model(self, role: Literal["grounder", "scorer"], path: str) -> None:
        """Raise UserError if this machine has other files of a model than the one where the job was started."""
        check_model(role, path, self.provenance["models"][role].get("sha256"))

    @cached_property
    def images(self) -> StoredImages:
        """The decoded images of the present shard, which `ground` and `score` share."""
        return StoredImages()

    @cached_property
    def store(self) -> Store:
        """The output, whose layout is read once."""
        return Store(self.config.output)

    def prepare(self, plan: ShardPlan) -> tuple[pa.Table, Notes]:
        """Read, download and parse the rows of a shard."""
        return self.run_stages("prepare", plan, *self.download(plan, self.read(plan)))

    def infer(self, plan: ShardPlan, table: pa.Table, notes: Notes) -> tuple[pa.Table, Notes]:
        """Find boxes for the phrases, and scores for the boxes."""
        try:
            self.warn_about_miniatures(table)
            return self.run_stages("infer", plan, table, notes)
        finally:
            self.images.clear()

    def infer_without_images(self, plan: ShardPlan, table: pa.Table, notes: Notes) -> tuple[pa.Table, Notes]:
        """Find boxes and scores; the table that is returned has no images."""
        table, notes = self.infer(plan, table, notes)
        return without_images(table), notes

    def shared_batches(self) -> "SharedBatches":
        """Return a new group of shards, none yet, whose rows share the batches of `infer`."""
        from pipeline.batches.shards import SharedBatches

        return SharedBatches(self.stage("ground"), self.stage("score"))  # type: ignore[arg-type]

    def add_images(self, table: pa.Table, prepared: pa.Table, notes: Notes) -> Part:
        """Return a table of `infer_without_images` with the images of the prepared one, and thumbnails of dropped rows."""
        whole = with_images(table, prepared)
        known = {picture.key for picture in notes.dropped}
        pictures = pick_dropped(prepared, whole, notes.dropped, self.config.report)
        new = sorted((picture for picture in pictures if picture.key not in known), key=lambda picture: picture.stage)
        return whole, dataclasses.replace(notes, dropped=(*notes.dropped, *new))

    def warn_about_miniatures(self, table: pa.Table) -> None:
        """Log a warning if a miniature model meets images unlike the drawings that it knows, once per process."""
        names = miniature_models(self.config.ground.grounder, self.config.score.scorer)
        if not names or self.has_warned:
            return
        images = [table["image"][i].as_py() for i in kept_indices(table)[:COMPARED_IMAGES]]
        with suppress(Exception):  # advice costs no shard; the stage that needs an image drops its row
            if are_unlike_drawings(self.images(image) for image in images if image is not None):
                self.has_warned = True
                settings = " and ".join(f"{name}=miniature" for name in names)
                logger.warning("%s", UNLIKE_DRAWINGS.format(settings=settings))

    def write(self, plan: ShardPlan, table: pa.Table, notes: Notes) -> Done:
        """Write and commit a shard. The timings are in a separate file because they differ from run to run."""
        start, n_kept = time.perf_counter(), len(kept_indices(table))
        manifest, faults = run_isolated(
            "write", partial(self.commit, plan), table, self.config.max_internal_errors, partial(self.rehearse, plan)
        )
        timings: Timings = {**notes.timings, "write": {"seconds": time.perf_counter() - start, "rows": float(n_kept)}}
        self.store.write(self.store.file(TIMINGS_FILE, plan.index), json.dumps(timings, sort_keys=True))
        write_dropped(self.store, plan.index, notes.dropped)
        return Done(manifest, (*notes.faults, *faults), host=socket.gethostname())

    def read(self, plan: ShardPlan, rows: pa.Table | None = None) -> Iterator[Part]:
        """Yield the rows of a shard in parts of bounded size; `rows` as in `read_parts`.

        Raises ShardError if the input cannot be read.
        """
        parts, found = read_parts(plan, self.config.read, rows), list[Fault]()
        while True:
            start = time.perf_counter()
            try:
                table, faults = next(parts)
            except StopIteration:
                return
            except UserError as error:
                raise ShardError(str(error)) from error
            found += faults
            check_limit(found, self.config.max_internal_errors)
            timing: StageTiming = {"seconds": time.perf_counter() - start, "rows": float(table.num_rows)}
            yield table, Notes({"read": timing}, tuple(faults))

    def download(self, plan: ShardPlan, parts: Iterable[Part]) -> Part:
        """Download the images of a shard part by part, and drop duplicates: the result does not depend on the parts."""
        from pipeline.download.stage import drop_duplicates

        stages = [("download", self.stage("download"))]
        limit = self.config.max_internal_errors
        table, notes = join([run_stages(stages, table, notes, plan, limit) for table, notes in parts])
        check_limit(notes.faults, limit)
        return drop_duplicates(refuse_images(table, self.config.read.takedown)), notes

    def commit(self, plan: ShardPlan, table: pa.Table) -> Manifest:
        """Write the files of a shard to the output."""
        config = self.config
        runtime = runtime_settings(config)
        return write_shard(table, plan, config.write, self.store, self.provenance, runtime, lease=self.lease)

    def rehearse(self, plan: ShardPlan, table: pa.Table) -> None:
        """Write some rows of a shard to a temporary folder, to see if they can be written."""
        part = dataclasses.replace(plan, n_rows=table.num_rows)
        with local_errors(), tempfile.TemporaryDirectory() as folder:
            write_shard(table, part, self.config.write, folder, self.provenance)

    def run_stages(self, step: Step, plan: ShardPlan, table: pa.Table, notes: Notes) -> tuple[pa.Table, Notes]:
        """Apply the stages of a step to a table, except those that work in parts."""
        for name in STAGES_OF[step]:
            if name not in ("read", "download"):
                table, notes = self.run_stage(name, plan, table, notes)
        return table, notes

    def run_stage(self, name: str, plan: ShardPlan, table: pa.Table, notes: Notes) -> Part:
        """Apply a stage that works on whole shards, and note thumbnails of rows that it drops."""
        limit = self.config.max_internal_errors
        result, more = run_stages([(name, self.stage(name))], table, notes, plan, limit)
        pictures = pick_dropped(table, result, notes.dropped, self.config.report)
        return result, dataclasses.replace(more, dropped=(*notes.dropped, *pictures))


def run_stages(
    stages: Sequence[tuple[str, Stage]], table: pa.Table, notes: Notes, plan: ShardPlan, limit: int | None = None
) -> tuple[pa.Table, Notes]:
    """Apply `stages` to a table one after the other; add the time and the faulty rows of each to `notes`.

    Rows on which a stage raises are dropped (`run_isolated`). Raises RuntimeError if a stage loses a row or returns
    another schema than its own, which is a bug. Exceptions of a stage get a note with the stage and the rows.
    """
    timings, faults = dict(notes.timings), list(notes.faults)
    for name, stage in stages:
        n_kept, n_rows, start = len(kept_indices(table)), table.num_rows, time.perf_counter()
        try:
            result, found = run_isolated(name, stage, table, limit)
        except Exception as error:
            last_row = plan.first_row + plan.n_rows - 1
            error.add_note(f"in stage {name!r}, shard {plan.index} (rows {plan.first_row} to {last_row})")
            raise
        table, dropped = result if isinstance(result, tuple) else (result, [])
        if table.num_rows != n_rows:
            raise RuntimeError(f"stage {name!r} received {n_rows} rows and returned {table.num_rows}")
        if not table.schema.equals(BOUNDARIES[name]):
            raise RuntimeError(f"stage {name!r} returned columns that differ from its schema: {table.schema.names}")
        timings[name] = {"seconds": time.perf_counter() - start, "rows": float(n_kept)}
        faults += [*found, *dropped]
    return table, dataclasses.replace(notes, timings=timings, faults=tuple(faults))


def join(parts: Sequence[Part]) -> Part:
    """Join the parts of a shard."""
    return pa.concat_tables([table for table, _ in parts]), sum((notes for _, notes in parts), Notes({}))
