"""Image-text pairs to grounded training shards, stage by stage.

The names below are the public Python API: later versions add names, but do not change or remove any. `Download` to
`Score` each take and return an Arrow table, with the schemas of `schemas.rows`. All of them run without Ray:

    plan_shards -> read_shard -> Download -> clean_captions -> Parse -> Ground -> Score -> write_shard
    -> build_stats -> write_report

The names are imported at first use, so that `import pipeline` and `--help` need neither torch nor spaCy.
"""

from typing import TYPE_CHECKING, Final

from common.lazy import lazy_exports

if TYPE_CHECKING:
    from pipeline.captions.config import CaptionsConfig
    from pipeline.captions.stage import clean_captions
    from pipeline.config import PipelineConfig, load_config
    from pipeline.download.config import DownloadConfig
    from pipeline.download.stage import Download
    from pipeline.ground.config import GroundConfig
    from pipeline.ground.stage import Ground
    from pipeline.local import run_local
    from pipeline.parse.config import ParseConfig
    from pipeline.parse.stage import Parse
    from pipeline.provenance import make_provenance
    from pipeline.read.config import ReadConfig
    from pipeline.read.plan import plan_shards
    from pipeline.read.stage import read_shard
    from pipeline.read.types import ShardPlan
    from pipeline.report.config import ReportConfig
    from pipeline.report.html import write_report
    from pipeline.report.stats import build_stats
    from pipeline.score.config import ScoreConfig
    from pipeline.score.stage import Score
    from pipeline.score.thresholds import resolve_thresholds
    from pipeline.write.config import WriteConfig
    from pipeline.write.stage import write_shard

EXPORTS: Final = {
    "CaptionsConfig": "pipeline.captions.config",
    "Download": "pipeline.download.stage",
    "DownloadConfig": "pipeline.download.config",
    "Ground": "pipeline.ground.stage",
    "GroundConfig": "pipeline.ground.config",
    "Parse": "pipeline.parse.stage",
    "ParseConfig": "pipeline.parse.config",
    "PipelineConfig": "pipeline.config",
    "ReadConfig": "pipeline.read.config",
    "ReportConfig": "pipeline.report.config",
    "Score": "pipeline.score.stage",
    "ScoreConfig": "pipeline.score.config",
    "ShardPlan": "pipeline.read.types",
    "WriteConfig": "pipeline.write.config",
    "build_stats": "pipeline.report.stats",
    "clean_captions": "pipeline.captions.stage",
    "load_config": "pipeline.config",
    "make_provenance": "pipeline.provenance",
    "plan_shards": "pipeline.read.plan",
    "read_shard": "pipeline.read.stage",
    "resolve_thresholds": "pipeline.score.thresholds",
    "run_local": "pipeline.local",
    "write_report": "pipeline.report.html",
    "write_shard": "pipeline.write.stage",
}

__all__ = [
    "CaptionsConfig",
    "Download",
    "DownloadConfig",
    "Ground",
    "GroundConfig",
    "Parse",
    "ParseConfig",
    "PipelineConfig",
    "ReadConfig",
    "ReportConfig",
    "Score",
    "ScoreConfig",
    "ShardPlan",
    "WriteConfig",
    "build_stats",
    "clean_captions",
    "load_config",
    "make_provenance",
    "plan_shards",
    "read_shard",
    "resolve_thresholds",
    "run_local",
    "write_report",
    "write_shard",
]

__getattr__, __dir__ = lazy_exports(__name__, EXPORTS)
