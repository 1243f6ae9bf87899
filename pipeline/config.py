"""The configuration of the pipeline, loaded from YAML files and `key=value` arguments."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from common.config import Keys, check_positive, check_range, merge, read_layers, runtime, split_runtime
from common.errors import UserError
from pipeline.captions.config import CaptionsConfig
from pipeline.download.config import DownloadConfig
from pipeline.ground.config import GroundConfig
from pipeline.log_config import LogConfig
from pipeline.parse.config import ParseConfig
from pipeline.read.config import ReadConfig
from pipeline.report.config import ReportConfig
from pipeline.score.config import ScoreConfig
from pipeline.write.config import WriteConfig

KEYS: Final = Keys(
    short={"grounder": "ground.grounder", "scorer": "score.scorer", "formats": "write.formats"},
    renamed={"ground.compiled": "ground.compile"},
    renamed_values={
        "ground.device": {None: "auto"},
        "ground.precision": {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"},
        "score.device": {None: "auto"},
    },
    secret=("download.headers", "download.proxy"),
)
"""Key names of the pipeline; `renamed` and `renamed_values` refer to version 0.1."""

NOT_RECORDED: Final = (
    "overwrite", "max_internal_errors", "dry_run", "dry_run_rows", "dry_run_seed", "quiet", "report", "log", "ray"
)  # fmt: skip
"""Runtime settings that say nothing about the content of a shard, so that manifests do not record them."""

MAX_STEP_S: Final = 2_000_000
"""Longest time limit of a step, 23 days: a process can wait for at most 2**31 ms."""


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """Distribution of the work over a cluster (pipeline/on_ray/); the limits hold for both runners."""

    # ray; or local: one process on this machine, without Ray
    runner: Literal["ray", "local"] = "ray"
    # cluster to join; null: RAY_ADDRESS if it is set, else start Ray on this machine
    address: str | None = None
    # upper limit on the tasks that download, parse and write at the same time; null: as many as the CPUs allow
    cpu_workers: int | None = None
    # upper limit on the processes that ground and score; null: as many as the cluster can run
    model_workers: int | None = None
    # GPUs of one model worker; 0.5: two share one; null: 1 if the cluster has GPUs when the job starts, else 0
    gpus_per_model_worker: float | None = None
    # how often a shard is retried after an error or the death of its worker, before it counts as failed
    retries: int = 2
    # seconds that one step of a shard may take; beyond it, its worker is killed
    step_timeout_s: float = 3600.0
    # number of failed shards above which the job stops; null: the larger of 1 % of the shards and 10
    max_failed_shards: int | None = None

    def __post_init__(self) -> None:
        check_range(self, "cpu_workers", "model_workers", least=1)
        check_range(self, "gpus_per_model_worker", "retries", "max_failed_shards", least=0)
        check_positive(self, "step_timeout_s")
        check_range(self, "step_timeout_s", least=0, most=MAX_STEP_S)
        gpus = self.gpus_per_model_worker
        if gpus is not None and gpus > 1 and gpus != int(gpus):
            raise UserError(f"gpus_per_model_worker is {gpus}; give a whole number, or a fraction of one GPU")


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """The complete configuration of a job."""

    # file, folder, glob or URL: parquet, JSONL, CSV, TSV, or tars of image-text pairs
    input: str = ""
    # folder or URL for train/, grit/, arrow/, stats.json and report.html
    output: str = ""
    # input rows per shard; a shard is the unit of work, and of resuming
    rows_per_shard: int = 1000
    # read only the first `limit` input rows; null: all
    limit: int | None = None
    # discard the finished shards of the output that another job wrote: with other settings, packages, models or input
    overwrite: bool = runtime(False)
    # number of rows dropped as internal_error above which the job stops; null: the larger of 1 % of the rows and 100
    max_internal_errors: int | None = runtime(None)
    # check models, inputs and cluster, run a sample of the rows, and predict the job; nothing is written to the output
    dry_run: bool = runtime(False)
    # rows in the sample of a dry run, spread over the input
    dry_run_rows: int = runtime(200)
    # random seed of the sample of a dry run
    dry_run_seed: int = runtime(0)
    # print only warnings and errors: no progress, no summary
    quiet: bool = runtime(False)
    read: ReadConfig = field(default_factory=ReadConfig)
    download: DownloadConfig = field(default_factory=DownloadConfig)
    captions: CaptionsConfig = field(default_factory=CaptionsConfig)
    parse: ParseConfig = field(default_factory=ParseConfig)
    ground: GroundConfig = field(default_factory=GroundConfig)
    score: ScoreConfig = field(default_factory=ScoreConfig)
    write: WriteConfig = field(default_factory=WriteConfig)
    report: ReportConfig = runtime(factory=ReportConfig)
    log: LogConfig = runtime(factory=LogConfig)
    ray: RayConfig = runtime(factory=RayConfig)

    def __post_init__(self) -> None:
        check_range(self, "rows_per_shard", "limit", "dry_run_rows", least=1)
        check_range(self, "max_internal_errors", least=0)
        for key in ("input", "output"):
            if not getattr(self, key):
                raise UserError(f"{key} is not set; put it in the YAML or give {key}=... on the command line")


def load_config(arguments: Sequence[str]) -> PipelineConfig:
    """Load the configuration of a command line: the defaults, then YAML files, then `key=value` arguments.

    Raises UserError naming the file or argument, the key and the fix.

    >>> from pipeline import load_config
    >>> config = load_config(["jobs/demo.yaml", "output=out/mine", "formats=[train]"])
    >>> config.rows_per_shard, config.output, config.write.formats
    (48, 'out/mine', ('train',))
    """
    config = merge(PipelineConfig, read_layers(arguments, KEYS))
    assert isinstance(config, PipelineConfig)
    if config.read.selection is not None:
        config.read.selection.check_use()
    return config


def content_hash(config: PipelineConfig) -> str:
    """SHA-256 of the settings that decide the content of a shard.

    It excludes settings marked as `runtime`, the output, and the settings that select the rows, which the plan of a
    shard records.
    """
    content, _ = split_runtime(config)
    for key in ("input", "output", "limit", "rows_per_shard"):
        del content[key]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def runtime_settings(config: PipelineConfig) -> dict[str, Any]:
    """The `runtime` settings of the stages, which manifests record, without those of NOT_RECORDED."""
    _, settings = split_runtime(config)
    return {group: values for group, values in settings.items() if group not in NOT_RECORDED}


def with_formats(config: PipelineConfig, formats: Sequence[str]) -> PipelineConfig:
    """Return the configuration with other output formats."""
    return dataclasses.replace(config, write=dataclasses.replace(config.write, formats=tuple(formats)))


def repository_root() -> Path:
    """The folder that contains `pipeline/`."""
    return Path(__file__).resolve().parent.parent
