"""The configuration of the pipeline, loaded from YAML files and `key=value` arguments."""

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from operator import getitem
from typing import Any, ClassVar, Final, Literal

from hypergrit_common.config import (
    Keys,
    Layer,
    Trusting,
    check_positive,
    check_range,
    content_layers,
    from_plain,
    last_value,
    log_left_out,
    merge,
    merged,
    nested,
    reaches,
    read_layers,
    runtime,
    runtime_keys,
    saved_layers,
    secret,
    split_runtime,
)
from hypergrit_common.errors import UserError
from hypergrit_common.lazy import load_plugin
from hypergrit_common.locations import Locations
from hypergrit_common.paths import public_name
from hypergrit_common.removed import NOT_IN_HASH, REMOVED_FROM_RUN
from pipeline.read.config import ReadConfig
from pipeline.read.listing import use_format
from pipeline.stages.captions import CaptionsConfig
from pipeline.stages.download.config import DownloadConfig
from pipeline.stages.ground.load import GroundConfig
from pipeline.stages.order import with_further
from pipeline.stages.parse.config import ParseConfig
from pipeline.stages.recaption import RecaptionConfig
from pipeline.stages.score.filters import ScoreConfig
from pipeline.stages.stage import Stage
from schemas.files import FILES
from schemas.manifest import NO_MODEL

# Settings of the log.


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """The lines on the standard error."""

    # text; or json: one object a line, with the fields time, level, message, and progress in the lines on the progress
    format: Literal["text", "json"] = "text"

    interval_s: ClassVar[float] = 60.0
    """Seconds between two lines on the progress where there is no terminal; the first ones come sooner."""


# Settings of the report.


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """The amount of detail in report.html; stats.json always covers all rows."""

    # print the statistics in the terminal when the job ends
    summary: bool = True

    examples: ClassVar[int] = 3
    """Number of dropped rows shown for each reason."""
    pictures: ClassVar[int] = 24
    """Sample images, shown with their boxes: about 250 kB of the page."""
    trees: ClassVar[int] = 4
    """Dependency trees, of those sample images whose caption is short enough to draw."""
    thumbnail_px: ClassVar[int] = 320
    """Longest side of a sample image: about 10 kB each."""
    seed: ClassVar[int] = 0
    """Random seed of the choice of sample images."""


# Settings of the write stage.


@dataclass(frozen=True, kw_only=True)
class WriteConfig:
    """The output formats: train/ (for training), grit/ (the layout of img2dataset), arrow/ (every input row)."""

    # formats to write: one or more of train, grit and arrow
    formats: tuple[str, ...] = ("train", "grit", "arrow")
    # also store the images in arrow/; grit/ always contains them
    image_bytes: bool = False
    # other columns of the input to copy to the JSON of train/, where they are under `extra`; ["*"]: all of them. grit/
    # and arrow/ always hold all
    train_columns: tuple[str, ...] = ()
    # remove the query, ?name=value, of every URL that is written outside of captions: the queries of signed URLs are
    # secrets. An input= with a query is refused
    strip_url_queries: bool = False

    jpeg_quality: ClassVar[int] = 95
    """JPEG quality of the 224-pixel images in train/, that of HyCoCLIP."""

    def __post_init__(self) -> None:
        wrong = sorted(set(self.formats) - set(FILES))
        if wrong or not self.formats:
            raise UserError(f"formats is {list(self.formats)}; give one or more of {sorted(FILES)}")


KEYS: Final = Keys(
    short={"grounder": "ground.grounder", "scorer": "score.scorer", "formats": "write.formats"},
    secret=("download.headers", "download.proxy", "recaption.api_key", "ray.env"),
    removed=REMOVED_FROM_RUN,
)
"""Key names of the pipeline."""

NOT_RECORDED: Final = (
    "overwrite", "max_internal_errors", "dry_run", "retry", "quiet", "report", "log", "ray", "read.takedown"
)  # fmt: skip
"""Runtime settings that say nothing about the content of a shard, or name a place of one machine: manifests do not record them."""

MAX_STEP_S: Final = 2_000_000
"""Longest time limit of a step, 23 days: a process can wait for at most 2**31 ms."""


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """Distribution of the work over a cluster (pipeline/run/); the limits hold for both runners."""

    # ray; or local: one process on this machine, without Ray
    runner: Literal["ray", "local"] = "ray"
    # cluster to join; null: RAY_ADDRESS if it is set, else start Ray on this machine
    address: str | None = None
    # environment variables of this process and of all workers, {NAME: VALUE}, such as the credentials of input and output;
    # null as a value: that of this process. Never saved, recorded or printed
    env: dict[str, str | None] = secret(factory=dict)
    # upper limit on the tasks that download, parse and write at the same time; null: as many as the CPUs allow
    cpu_workers: int | None = None
    # upper limit on the processes that ground and score; null: as many as the cluster can run
    model_workers: int | None = None
    # GPUs of one model worker; 0.5: two share one; null: 1 if the cluster has GPUs when the job starts, else 0
    gpus_per_model_worker: float | None = None
    # how often a shard is tried again after an error or the death of its worker, before it counts as failed; and if far too
    # few of its rows got an answer, before its result counts
    retries: int = 2
    # seconds that one step of a shard may take; beyond it, its worker is killed
    step_timeout_s: float = 3600.0

    def __post_init__(self) -> None:
        check_range(self, "cpu_workers", "model_workers", least=1)
        check_range(self, "gpus_per_model_worker", "retries", least=0)
        check_positive(self, "step_timeout_s")
        check_range(self, "step_timeout_s", least=0, most=MAX_STEP_S)
        gpus = self.gpus_per_model_worker
        if gpus is not None and gpus > 1 and gpus != int(gpus):
            raise UserError(f"gpus_per_model_worker is {gpus}; give a whole number, or a fraction of one GPU")
        for name, value in self.env.items():
            if not name.isidentifier() or (value is None and name not in os.environ):
                problem = "not set in this process; export it, or give its value" if name.isidentifier() else "no name"
                raise UserError(f"env: the variable {name!r} is {problem}")

    def variables(self) -> dict[str, str]:
        """The variables of `env` with their values."""
        return {name: os.environ[name] if value is None else value for name, value in self.env.items()}


@dataclass(frozen=True, kw_only=True)
class Messages:
    """The settings of a job that its log and its stores need before its configuration can be read."""

    quiet: bool = False
    log: LogConfig = field(default_factory=LogConfig)
    ray: RayConfig = field(default_factory=RayConfig)

    @property
    def level(self) -> int:
        """The lowest level of a line in the log."""
        return logging.WARNING if self.quiet else logging.INFO


@dataclass(frozen=True, kw_only=True)
class PipelineConfig(Trusting):
    """The complete configuration of a job."""

    # file, folder, glob or URL, or several of them, separated by commas or as a list: parquet, JSONL, CSV, TSV, or tars of
    # image-text pairs
    input: Locations = reaches("")
    # folder or URL for train/, grit/, arrow/, stats.json and report.html
    output: str = reaches("")
    # input rows per shard; a shard is the unit of work, and of resuming
    rows_per_shard: int = 1000
    # read only the first `limit` input rows; null: all
    limit: int | None = None
    # discard the finished shards of the output that another job wrote: with other settings, packages, models or input
    overwrite: bool = runtime(False)
    # number of rows dropped as internal_error above which the job stops; null: the larger of 1 % of the rows and 100
    max_internal_errors: int | None = runtime(None)
    # true: check models, inputs and cluster, run a sample of 200 rows, spread over the input, and predict the job; or
    # the number of rows in the sample. Nothing is written to the output
    dry_run: bool | int = runtime(False)
    # try the rows of a finished output again whose download failed for a while: `hypergrit run --help retry=true`
    retry: bool = runtime(False)
    # print only warnings and errors: no progress, no summary
    quiet: bool = runtime(False)
    # stages of your own, module:Class, such as [my_package.colours:FewColours]; their settings are in groups with their
    # names (docs/extending.md)
    stages: tuple[str, ...] = reaches(())
    read: ReadConfig = field(default_factory=ReadConfig)
    download: DownloadConfig = field(default_factory=DownloadConfig)
    captions: CaptionsConfig = field(default_factory=CaptionsConfig)
    recaption: RecaptionConfig = field(default_factory=RecaptionConfig)
    parse: ParseConfig = field(default_factory=ParseConfig)
    ground: GroundConfig = field(default_factory=GroundConfig)
    score: ScoreConfig = field(default_factory=ScoreConfig)
    write: WriteConfig = field(default_factory=WriteConfig)
    report: ReportConfig = runtime(factory=ReportConfig)
    log: LogConfig = runtime(factory=LogConfig)
    ray: RayConfig = runtime(factory=RayConfig)
    further: ClassVar[tuple[type[Stage], ...]] = ()
    """The classes of `stages`; empty in a configuration that is read from an output, whose code is not loaded."""

    def __post_init__(self) -> None:
        check_range(self, "rows_per_shard", "limit", least=1)
        check_range(self, "max_internal_errors", "dry_run", least=0)
        if self.parse.model == NO_MODEL and self.ground.grounder != NO_MODEL:
            raise UserError("parse.model=none leaves no phrases to ground; give grounder=none too, or a parser")
        for key in ("input", "output"):
            if not getattr(self, key):
                raise UserError(f"{key} is not set; put it in the YAML or give {key}=... on the command line")


@cache
def config_class(further: tuple[type[Stage], ...] = (), unloaded: tuple[str, ...] = ()) -> type[PipelineConfig]:
    """Return PipelineConfig with the settings of further stages, and groups of any values of stages not loaded."""
    groups: list[Any] = [(stage.name, stage.Config, field(default_factory=stage.Config)) for stage in further]
    groups += [(name, dict[str, Any], field(default_factory=dict)) for name in unloaded]
    if not groups:
        return PipelineConfig
    namespace = {"further": further, "__reduce__": _reduce, "__module__": __name__}
    return dataclasses.make_dataclass(
        PipelineConfig.__name__, groups, bases=(PipelineConfig,), namespace=namespace, frozen=True, kw_only=True
    )


def _reduce(config: PipelineConfig) -> tuple[Any, ...]:
    """Pickle the names of the further stages, and plain values of their settings: `restore` explains what it lacks."""
    values = {item.name: getattr(config, item.name) for item in dataclasses.fields(config)}
    groups = {name: values.pop(name) for name in values.keys() - PipelineConfig.__dataclass_fields__.keys()}
    plain = {name: value if isinstance(value, dict) else dataclasses.asdict(value) for name, value in groups.items()}
    return restore, (bool(config.further), values, plain)


def restore(is_loaded: bool, values: dict[str, Any], groups: dict[str, Any]) -> PipelineConfig:
    """Build a configuration with further stages in a worker. Raises UserError if it cannot import one."""
    if not is_loaded:
        return config_class((), tuple(sorted(groups)))(**values, **groups)
    further = load_stages(values["stages"])
    settings = {stage.name: from_plain(stage.Config, groups[stage.name], stage.name) for stage in further}
    return config_class(further)(**values, **settings)


def load_stages(names: Sequence[str]) -> tuple[type[Stage], ...]:
    """Import the stages of the setting `stages`. Raises UserError for one that is missing, no stage, or misnamed."""
    further = tuple(load_plugin(name, Stage, "stages") for name in names)
    with_further(further)
    taken = {*PipelineConfig.__dataclass_fields__, *KEYS.short}
    for stage in further:
        if stage.name in taken:
            raise UserError(f"stages: a key of the job is called {stage.name!r}; give {stage.__name__} another name")
        if keys := runtime_keys(stage.Config):  # which a verb that does not load the class could not know
            raise UserError(
                f"{stage.name}.{min(keys)} is marked as runtime; every setting of a stage of your own counts as content"
            )
    return further


def load_config(arguments: Sequence[str]) -> PipelineConfig:
    """Load the configuration of a command line: the defaults, then YAML files, then `key=value` arguments.

    Imports the classes of the user that they name. Raises UserError naming the file or argument, the key and the fix.

    >>> from pipeline import load_config
    >>> config = load_config(["jobs/demo.yaml", "output=out/mine", "formats=[train]"])
    >>> config.rows_per_shard, config.output, config.write.formats
    (48, 'out/mine', ('train',))
    """
    saved, given = saved_layers(read_layers(arguments, KEYS), arguments)
    config = make_config(saved, given)
    if config.read.selection is not None:
        config.read.selection.check_use()
    config.download.check_use()
    return config


def config_kind(layers: Sequence[Layer]) -> type[PipelineConfig]:
    """Return the class of the configuration with the stages that the layers name, which are imported."""
    return config_class(load_stages(last_value(layers, "stages") or ()))


def make_config(saved: Sequence[Layer], given: Sequence[Layer], *, loads: bool = True) -> PipelineConfig:
    """Build the configuration of layers `saved` in outputs, and `given` by the user, which override them.

    `loads`: the stages run, so that their classes are imported; else the settings of further stages are plain values.
    Of `saved`, only what decides the content is read; if the stages run, what else they set is logged. Raises UserError for
    an unknown key or a wrong value, and like `content_layers` if the stages run.
    """
    layers = [*content_layers(PipelineConfig, saved, given, follows=loads), *given]
    if loads:
        kind = config_kind(layers)
    else:
        names = {str(name) for layer, _ in layers if last_value(layers, "stages") for name in layer}
        kind = config_class((), tuple(sorted(names - PipelineConfig.__dataclass_fields__.keys())))
    config = merge(kind, layers)
    assert isinstance(config, PipelineConfig)
    if loads:
        use_format(config.read.format)
        log_left_out(PipelineConfig, saved, given)
    return config


def content_hash(config: PipelineConfig) -> str:
    """SHA-256 of the settings that decide the content of a shard.

    It excludes settings marked as `runtime`, the output, the settings that select the rows, which the plan of a shard
    records, and the folders of models and images, which `_job.json` compares. Removed settings keep their default in it,
    so that the hash, and with it the shards, stay.
    """
    content, _ = split_runtime(config)
    for key in KEYS.removed.keys() - NOT_IN_HASH:
        content = merged(content, nested(key, KEYS.removed[key]))
    for key in ("input", "output", "limit", "rows_per_shard"):
        del content[key]
    models = {
        "recaption": ("captioner",),
        "parse": ("model",),
        "ground": ("grounder", "vocabulary"),
        "score": ("scorer", "head"),
    }
    for group, name in ((group, name) for group, names in models.items() for name in names):
        content[group][name] = content[group][name] and public_name(content[group][name])
    content["read"]["image_roots"] = len(config.read.image_roots) or []
    if config.read.id_column is None:  # as before the setting existed
        del content["read"]["id_column"]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def runtime_settings(config: PipelineConfig) -> dict[str, Any]:
    """The `runtime` settings of the stages, which manifests record, without those of NOT_RECORDED."""
    _, settings = split_runtime(config)
    for key in NOT_RECORDED:
        *groups, name = key.split(".")
        reduce(getitem, groups, settings).pop(name, None)
    return settings


def with_formats(config: PipelineConfig, formats: Sequence[str]) -> PipelineConfig:
    """Return the configuration with other output formats."""
    return dataclasses.replace(config, write=dataclasses.replace(config.write, formats=tuple(formats)))
