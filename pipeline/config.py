"""The configuration of a run: frozen dataclasses, a YAML that holds what differs, `key.sub=value` on top.

Each part lives beside what it configures; this file only nests them, and `common/` loads them. Unknown keys and wrong types
stop the run before anything is loaded.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from common.errors import UserError
from common.load import check_range, merge, read_layers
from pipeline.captions import CaptionsConfig
from pipeline.download import DownloadConfig
from pipeline.ground.stage import GroundConfig
from pipeline.parse import ParseConfig
from pipeline.read import ReadConfig
from pipeline.report.config import ReportConfig
from pipeline.score import ScoreConfig
from pipeline.write import WriteConfig

SHORT: Final = {"grounder": "ground.grounder", "scorer": "score.scorer", "formats": "write.formats"}
"""Short names for the keys users touch most."""


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """How the stages are spread over the cluster (see pipeline/on_ray.py)."""

    runner: Literal["ray", "local"] = "ray"  # ray, or local: the stages in a plain loop in this process
    address: str | None = None  # cluster to join; none: RAY_ADDRESS if set, else a Ray of its own on this machine
    cpu_workers: int | None = None  # processes that download, parse and write; none: as many as the CPUs allow
    model_workers: int | None = None  # processes that ground and score; none: one a GPU, or one a CPU without GPUs
    gpus_per_model_worker: float = 1.0  # GPUs of one model worker, if the cluster has any; 0.5: two workers share one
    retries: int = 2  # how often a shard is begun again after a worker died under it

    def __post_init__(self) -> None:
        check_range(self, "cpu_workers", "model_workers", least=1)
        check_range(self, "retries", least=0)


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """Everything a run depends on."""

    input: str = ""  # file, folder, glob or URL: parquet, JSONL, CSV, TSV, or tars of image-text pairs
    output: str = ""  # folder or URL for train/, grit/, arrow/, stats.json and report.html
    rows_per_shard: int = 1000  # input rows that become one set of output files: the unit of work and of restart
    limit: int | None = None  # read only that many input rows, the first ones
    read: ReadConfig = field(default_factory=ReadConfig)
    download: DownloadConfig = field(default_factory=DownloadConfig)
    captions: CaptionsConfig = field(default_factory=CaptionsConfig)
    parse: ParseConfig = field(default_factory=ParseConfig)
    ground: GroundConfig = field(default_factory=GroundConfig)
    score: ScoreConfig = field(default_factory=ScoreConfig)
    write: WriteConfig = field(default_factory=WriteConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    ray: RayConfig = field(default_factory=RayConfig)

    def __post_init__(self) -> None:
        check_range(self, "rows_per_shard", "limit", least=1)
        for key in ("input", "output"):
            if not getattr(self, key):
                raise UserError(f"{key} is not set; put it in the YAML or give {key}=... on the command line")


def load_config(path: str | None, overrides: Sequence[str] = ()) -> PipelineConfig:
    """The defaults, then the YAML at `path`, then `key=value` overrides.

    Raises UserError naming the file or key and the mend.
    """
    config = merge(PipelineConfig, read_layers(path, overrides, SHORT))
    assert isinstance(config, PipelineConfig)
    return config


def content_hash(config: PipelineConfig) -> str:
    """SHA-256 over the keys that decide what a shard holds: not where it goes, who computes it, or how it is shown."""
    content = dataclasses.asdict(config)
    for key in ("input", "output", "limit", "rows_per_shard", "report", "ray"):
        del content[key]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def repository_root() -> Path:
    """The folder that holds `pipeline/`."""
    return Path(__file__).resolve().parent.parent
