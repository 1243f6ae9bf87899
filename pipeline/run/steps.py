"""The order of the stages, and the three steps that compute one shard.

    prepare: read -> download -> captions -> parse     CPU, waits for the network; images of tars in parts
    infer:   ground -> score                           models
    write:   write                                     CPU

This module starts no process: local.py runs the steps in child processes, ray.py on a cluster.
"""

import dataclasses
import gc
import json
import logging
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, Final

import pyarrow as pa

from hypergrit_common.errors import UserError
from pipeline.config import PipelineConfig, runtime_settings
from pipeline.faults import Fault, ShardError, TooManyFaultsError, check_limit, run_isolated, shard_errors
from pipeline.images import UNLIKE_DRAWINGS, StoredImages, are_unlike_drawings, miniature_models
from pipeline.models import check_model
from pipeline.output.commit import local_errors
from pipeline.output.lock import fenced
from pipeline.output.store import Store, temporary_folder_prefix
from pipeline.output.write.stage import write_shard
from pipeline.read.source import read_parts
from pipeline.read.takedown import TakedownList, entries_of, refuse_images, refuse_urls
from pipeline.read.types import ShardPlan, Task
from pipeline.report.cards import DroppedPicture, dropped_file, pick_dropped
from pipeline.run.provenance import check_plugins
from pipeline.stages.download.permits import PermitAddress
from pipeline.stages.order import SCHEMAS, STEPS, Step, steps_of, with_further
from pipeline.stages.stage import Context, Role, TableFunction
from schemas.files import ANSWERS_FILE, TIMINGS_FILE
from schemas.manifest import FailedShard, Manifest, Provenance, StageTiming, Timings
from schemas.table import check_rows, kept_indices

COMPARED_IMAGES: Final = 32
"""Images of a shard that are compared with the drawings of the miniature models."""

COMPARED_CAPTIONS: Final = 500
"""Captions of a shard whose language is looked at; LEAST_CAPTIONS of them tell a share."""
LEAST_CAPTIONS: Final = 20
OTHER_LANGUAGES: Final = 0.1
"""Share of captions in other languages above which a person should know of it."""
MODEL_SETTINGS: Final = {"ground": "grounder", "score": "scorer"}
"""Stage -> the setting that names its model."""
FIRST_ROWS: Final = 8
"""Rows of which at least one has to succeed before a model is taken for one that works."""

logger = logging.getLogger("hypergrit")


@dataclass(frozen=True)
class Notes:
    """Notes on a shard besides its table.

    They are the time of each stage, the rows on which one failed, dropped pictures, the numbers of rows whose download
    could get an answer, and of those that got none, and the host of the latter if it is a single one.
    """

    timings: Timings
    faults: tuple[Fault, ...] = ()
    dropped: tuple[DroppedPicture, ...] = ()
    asked: int = 0
    unanswered: int = 0
    host: str = ""

    def seconds(self, stages: Iterable[str]) -> float:
        """Return the time that these stages took, without loading them."""
        return sum(self.timings[name]["seconds"] for name in stages if name in self.timings)

    def __add__(self, other: "Notes") -> "Notes":
        """Join the notes on two parts of a shard, or of two stages."""
        timings: Timings = dict(self.timings)
        for name, new in other.timings.items():
            old = timings.get(name, {"seconds": 0.0, "rows": 0.0})
            timings[name] = {"seconds": old["seconds"] + new["seconds"], "rows": old["rows"] + new["rows"]}
        asked, unanswered = self.asked + other.asked, self.unanswered + other.unanswered
        host = self.host or other.host
        return Notes(timings, self.faults + other.faults, self.dropped + other.dropped, asked, unanswered, host)


Part = tuple[pa.Table, Notes]
"""Rows of a shard, one after another, with the notes on them."""


@dataclass(frozen=True)
class Done:
    """A committed shard, with the host name of the worker that wrote it and made this object."""

    manifest: Manifest
    faults: tuple[Fault, ...]
    host: str = field(default_factory=socket.gethostname, kw_only=True)
    outcome: ClassVar[str] = "finished"

    @property
    def index(self) -> int:
        """The index of the shard."""
        return self.manifest["shard"]

    @property
    def rows(self) -> dict[str, int]:
        """The numbers of rows that were kept and dropped."""
        kept = self.manifest["counts"]["kept"]
        return {"kept": kept, "dropped": self.manifest["counts"]["read"] - kept}

    @property
    def drops(self) -> Mapping[str, Mapping[str, int]]:
        """The numbers of dropped rows, by stage and reason."""
        return self.manifest["counts"]["dropped"]

    def committed(self) -> Manifest:
        """Return the manifest."""
        return self.manifest


@dataclass(frozen=True)
class Failed:
    """A shard that could not be computed, by its record."""

    record: FailedShard
    outcome: ClassVar[str] = "failed"
    drops: ClassVar[Mapping[str, Mapping[str, int]]] = {}

    @property
    def index(self) -> int:
        """The index of the shard."""
        return self.record["shard"]

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows that were not finished."""
        return {"unfinished": self.record["rows"]}

    def committed(self) -> Manifest:
        """Raise ShardError."""
        raise ShardError(f"shard {self.index} failed in step {self.record['step']!r}: {self.record['error']}")


Result = Done | Failed
"""The end of a shard. Both answer the same questions."""


@dataclass(frozen=True)
class Recipe:
    """The way a runner computes shards: by the `steps` of the object that the picklable `make` returns in a worker.

    The first step takes the plan, each other one also the table and the notes that the step before it has returned; the last
    one returns the result, which is not None. `job` are the settings of a job, whose stages are searched for faulty rows;
    without it, the subjects of tasks are computed, and `text` names what is done with them.
    """

    make: Callable[..., Any]
    job: PipelineConfig | None = None
    text: str = ""

    @property
    def steps(self) -> tuple[Step, ...]:
        """The names of the steps; those without stages, such as `infer` in a job without models, are left out."""
        if self.job is None:
            return ("compute",)
        stages = steps_of(self.job)
        return tuple(step for step in STEPS if stages[step])

    @classmethod
    def calling(cls, function: Callable[[Any], Any], text: str) -> "Recipe":
        """Return the recipe whose result is that of a picklable function of the subject of a task."""
        return cls(partial(Compute, function), text=text)


class Compute:
    """Calls a function with the subjects of tasks."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def compute(self, task: Task) -> Any:
        """Return the result of the function."""
        return self.function(task.subject)


class Steps:
    """The steps of a process. Each stage is loaded when it is first used, and kept for the next shards.

    Stages raise UserError for what the user can fix for the whole job. A step raises ShardError if the input of its
    shard cannot be read, TooManyFaultsError for more than `max_internal_errors` faulty rows, and the exception of a
    stage if no single row is at fault. `permits` is the server of the requests per host that all workers share, `lease`
    the token of the lease without which no shard is committed (pipeline.output.lock).
    """

    stores: ClassVar[bool] = True
    """False: stages store nothing in the output."""
    replaces: ClassVar[bool] = False
    """True: the shards are finished, and are replaced. Answers are not counted: the rows to fetch had none before."""

    def __init__(
        self,
        config: PipelineConfig,
        provenance: Provenance,
        permits: PermitAddress | None = None,
        lease: str | None = None,
    ) -> None:
        self.config, self.provenance, self.permits, self.lease = config, provenance, permits, lease
        self.classes = with_further(config.further)
        self.stages_of = steps_of(config)
        check_plugins(config, provenance)
        self._stages: dict[str, TableFunction] = {}
        self.has_warned = self.has_judged = False
        self.works = set[str]()

    def load(self, step: Step) -> None:
        """Load the stages of a step."""
        for name in self.stages_of[step]:
            if name not in ("read", "write"):
                self.stage(name)

    def stage(self, name: str) -> TableFunction:
        """Return the stage `name`, loaded."""
        if name not in self._stages:
            self._stages[name] = self.make_stage(name)
            gc.freeze()  # to search packages and models for garbage takes up to a quarter of the time of parsing
        return self._stages[name]

    def make_stage(self, name: str) -> TableFunction:
        """Load a stage. Tests override this method to make rows fail.

        On a CPU a model uses one thread, since the last bits of sums depend on the number of threads; more workers are
        faster.
        """
        stage = next(stage for stage in self.classes if stage.name == name)
        if stage.has_model(getattr(self.config, name)):
            import torch

            torch.set_num_threads(1)
        settings = {stage.name: getattr(self.config, stage.name) for stage in self.classes}
        files = self.store if self.stores else None
        return stage.load(Context(settings, self.permits, self.images, self.check_model, files, self.config.trust))

    def check_model(self, role: Role, path: str) -> None:
        """Raise UserError if this machine has other files of a model than the one where the job was started."""
        check_model(role, path, self.provenance["models"][role].get("sha256"))

    @cached_property
    def images(self) -> StoredImages:
        """The decoded images of the present shard, which `ground` and `score` share."""
        return StoredImages()

    @cached_property
    def store(self) -> Store:
        """The output; only the holder of the lease can write to it."""
        return fenced(self.config.output, self.lease)

    @cached_property
    def takedowns(self) -> TakedownList:
        """The entries of the job's list, which a job has recorded in its output, and those of earlier takedowns."""
        entries = self.store.takedowns
        if self.lease is None:
            entries |= entries_of(self.config.read.takedown)
        return entries.without_queries(self.config.write.strip_url_queries)

    def prepare(self, plan: ShardPlan) -> tuple[pa.Table, Notes]:
        """Read, download and parse the rows of a shard."""
        table, notes = self.run_stages("prepare", plan, *self.download(plan, self.read(plan)))
        self.warn_about_languages(table)
        return table, notes

    def warn_about_languages(self, table: pa.Table) -> None:
        """Log a warning if many captions are in another language than the parser's, once per process."""
        language, _, rest = self.config.parse.model.partition("_")
        if self.has_judged or not rest or self.config.parse.languages:
            return
        from pipeline.stages.parse.parser import share_of_others

        self.has_judged = True
        captions = table["caption"].drop_null().to_pylist()[:COMPARED_CAPTIONS]
        share, n = share_of_others(captions, language)
        if n >= LEAST_CAPTIONS and share > OTHER_LANGUAGES:
            logger.warning("%.0f %% of %d captions are not in the language of parse.model=%s, whose phrases of them mean "
                           "little; parse.languages=[%s] drops them", 100 * share, n, self.config.parse.model, language)  # fmt: skip

    def infer(self, plan: ShardPlan, table: pa.Table, notes: Notes) -> tuple[pa.Table, Notes]:
        """Find boxes for the phrases, and scores for the boxes."""
        try:
            self.warn_about_miniatures(table)
            return self.run_stages("infer", plan, table, notes)
        finally:
            self.images.clear()

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
        commit = partial(self.commit, plan, thumbnails=dropped_file(notes.dropped))
        manifest, faults = run_isolated(
            "write", commit, table, self.config.max_internal_errors, partial(self.rehearse, plan)
        )
        timings: Timings = {**notes.timings, "write": {"seconds": time.perf_counter() - start, "rows": float(n_kept)}}
        self.store.write(TIMINGS_FILE.path(plan.index), json.dumps(timings, sort_keys=True))
        if "recaption" in self.stages_of["prepare"]:
            self.store.remove([ANSWERS_FILE.format(f"{plan.first_row:012d}")])
        return Done(manifest, (*notes.faults, *faults))

    def read(self, plan: ShardPlan, rows: pa.Table | None = None) -> Iterator[Part]:
        """Yield the rows of a shard in parts of bounded size; `rows` as in `read_parts`.

        Raises ShardError if the input cannot be read.
        """
        config = dataclasses.replace(self.config.read, takedown=None)  # below, in a form that is read in no time
        parts, found = read_parts(plan, config, rows), list[Fault]()
        while True:
            start = time.perf_counter()
            with shard_errors():
                part = next(parts, None)
            if part is None:
                return
            table, faults = part
            found += faults
            check_limit(found, self.config.max_internal_errors)
            timing: StageTiming = {"seconds": time.perf_counter() - start, "rows": float(table.num_rows)}
            yield refuse_urls(table, self.takedowns), Notes({"read": timing}, tuple(faults))

    def download(self, plan: ShardPlan, parts: Iterable[Part]) -> Part:
        """Download the images of a shard part by part, and drop duplicates: the result does not depend on the parts."""
        from pipeline.stages.download.stage import count_answers, drop_duplicates, silent_host

        stages = [("download", self.stage("download"))]
        limit = self.config.max_internal_errors
        table, notes = join([run_stages(stages, table, notes, plan, limit) for table, notes in parts])
        check_limit(notes.faults, limit)
        if not self.replaces:
            asked, unanswered = count_answers(table)
            host = silent_host(table) if unanswered else ""
            notes = dataclasses.replace(notes, asked=asked, unanswered=unanswered, host=host)
        return drop_duplicates(refuse_images(table, self.takedowns)), notes

    def commit(self, plan: ShardPlan, table: pa.Table, thumbnails: bytes) -> Manifest:
        """Write the files of a shard to the output."""
        config, runtime = self.config, runtime_settings(self.config)
        more: dict[str, Any] = {"lease": self.lease, "replaces": self.replaces, "thumbnails": thumbnails}
        return write_shard(table, plan, config.write, self.store, self.provenance, runtime, **more)

    def rehearse(self, plan: ShardPlan, table: pa.Table) -> None:
        """Write some rows of a shard to a temporary folder, to see if they can be written."""
        part = dataclasses.replace(plan, n_rows=table.num_rows)
        with local_errors(), tempfile.TemporaryDirectory(prefix=temporary_folder_prefix()) as folder:
            write_shard(table, part, self.config.write, folder, self.provenance)

    def run_stages(self, step: Step, plan: ShardPlan, table: pa.Table, notes: Notes) -> tuple[pa.Table, Notes]:
        """Apply the stages of a step to a table, except those that work in parts."""
        for name in self.stages_of[step]:
            if name not in ("read", "download"):
                table, notes = self.run_stage(name, plan, table, notes)
        return table, notes

    def run_stage(self, name: str, plan: ShardPlan, table: pa.Table, notes: Notes) -> Part:
        """Apply a stage that works on whole shards, and note thumbnails of rows that it drops."""
        limit, kept = self.config.max_internal_errors, kept_indices(table)
        try:
            result, more = run_stages([(name, self.stage(name))], table, notes, plan, limit)
        except TooManyFaultsError as error:
            self.check_works(name, table, kept[: len(error.faults)], error.faults)
            raise
        self.check_works(name, table, kept, [fault for fault in more.faults if fault.stage == name])
        pictures = pick_dropped(table, result, notes.dropped, self.config.report)
        return result, dataclasses.replace(more, dropped=(*notes.dropped, *pictures))

    def check_works(self, name: str, table: pa.Table, rows: Sequence[int], faults: Sequence[Fault]) -> None:
        """Raise UserError if a model fails on each of these rows, the first that it sees in this process."""
        if name not in MODEL_SETTINGS or name in self.works or len(rows) < FIRST_ROWS:
            return
        if {fault.key for fault in faults} != {table["key"][i].as_py() for i in rows}:
            self.works.add(name)
            return
        setting = MODEL_SETTINGS[name]
        raise UserError(f"{setting}={getattr(getattr(self.config, name), setting)} fails on every row: {faults[0].detail}; "
                        "check the files of the model, and the settings of this stage")  # fmt: skip


def run_stages(
    stages: Sequence[tuple[str, TableFunction]],
    table: pa.Table,
    notes: Notes,
    plan: ShardPlan,
    limit: int | None = None,
) -> tuple[pa.Table, Notes]:
    """Apply `stages` to a table one after the other; add the time and the faulty rows of each to `notes`.

    Rows on which a stage raises are dropped (`run_isolated`). Raises RuntimeError if a stage loses a row or returns
    another schema than its own, which is a bug. Exceptions of a stage get a note with the stage and the rows.
    """
    timings, faults = dict(notes.timings), list(notes.faults)
    for name, stage in stages:
        n_kept, n_rows, before, start = len(kept_indices(table)), table.num_rows, table.schema, time.perf_counter()
        try:
            result, found = run_isolated(name, partial(checked, stage, SCHEMAS.get(name, before)), table, limit)
        except Exception as error:
            last_row = plan.first_row + plan.n_rows - 1
            error.add_note(f"in stage {name!r}, shard {plan.index} (rows {plan.first_row} to {last_row})")
            raise
        table, dropped = result if isinstance(result, tuple) else (result, [])
        if table.num_rows != n_rows:
            raise RuntimeError(f"stage {name!r} received {n_rows} rows and returned {table.num_rows}")
        if not table.schema.equals(SCHEMAS.get(name, before)):
            raise RuntimeError(f"stage {name!r} returned columns that differ from its schema: {table.schema.names}")
        timings[name] = {"seconds": time.perf_counter() - start, "rows": float(n_kept)}
        faults += [*found, *dropped]
    return table, dataclasses.replace(notes, timings=timings, faults=tuple(faults))


def checked(stage: TableFunction, schema: pa.Schema, table: pa.Table) -> Any:
    """Return what a stage returns. Raises ValueError for a row with a value that `check_rows` refuses, such as NaN."""
    result = stage(table)
    found = result[0] if isinstance(result, tuple) else result
    for batch in found.to_batches() if found.schema.equals(schema) else ():
        check_rows(batch)
    return result


def join(parts: Sequence[Part]) -> Part:
    """Join the parts of a shard."""
    return pa.concat_tables([table for table, _ in parts]), sum((notes for _, notes in parts), Notes({}))
