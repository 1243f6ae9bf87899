"""Image-text pairs to grounded training shards, stage by stage.

The names below are the public Python API: later versions add names, but do not change or remove any. `Download` to
`Score` each take and return an Arrow table, with the schemas of `schemas.rows`. All of them run without Ray:

    write_input -> plan_shards -> read_shard -> Download -> clean_captions -> Parse -> Ground -> Score -> write_shard
    -> build_stats -> write_report

The names are imported at first use, so that `import pipeline` and `--help` need neither torch nor spaCy.
"""

from typing import TYPE_CHECKING, Final

from hypergrit_common.lazy import lazy_exports

if TYPE_CHECKING:
    from pipeline.config import PipelineConfig as PipelineConfig
    from pipeline.config import ReportConfig as ReportConfig
    from pipeline.config import WriteConfig as WriteConfig
    from pipeline.config import load_config as load_config
    from pipeline.output.shard_stream import open_shards as open_shards
    from pipeline.output.write.stage import write_shard as write_shard
    from pipeline.read.config import ReadConfig as ReadConfig
    from pipeline.read.plan import plan_shards as plan_shards
    from pipeline.read.source import read_shard as read_shard
    from pipeline.read.tables import write_input as write_input
    from pipeline.read.types import ShardPlan as ShardPlan
    from pipeline.report.html import write_report as write_report
    from pipeline.report.stats import build_stats as build_stats
    from pipeline.run.local import run_local as run_local
    from pipeline.run.provenance import make_provenance as make_provenance
    from pipeline.stages.captions import CaptionsConfig as CaptionsConfig
    from pipeline.stages.captions import clean_captions as clean_captions
    from pipeline.stages.download.config import DownloadConfig as DownloadConfig
    from pipeline.stages.download.stage import Download as Download
    from pipeline.stages.ground.load import GroundConfig as GroundConfig
    from pipeline.stages.ground.stage import Ground as Ground
    from pipeline.stages.parse.config import ParseConfig as ParseConfig
    from pipeline.stages.parse.stage import Parse as Parse
    from pipeline.stages.score.filters import ScoreConfig as ScoreConfig
    from pipeline.stages.score.filters import resolve_thresholds as resolve_thresholds
    from pipeline.stages.score.stage import Score as Score
    from pipeline.stages.stage import Stage as Stage

EXPORTS: Final = {
    "CaptionsConfig": "pipeline.stages.captions",
    "Download": "pipeline.stages.download.stage",
    "DownloadConfig": "pipeline.stages.download.config",
    "Ground": "pipeline.stages.ground.stage",
    "GroundConfig": "pipeline.stages.ground.load",
    "Parse": "pipeline.stages.parse.stage",
    "ParseConfig": "pipeline.stages.parse.config",
    "PipelineConfig": "pipeline.config",
    "ReadConfig": "pipeline.read.config",
    "ReportConfig": "pipeline.config",
    "Score": "pipeline.stages.score.stage",
    "ScoreConfig": "pipeline.stages.score.filters",
    "ShardPlan": "pipeline.read.types",
    "Stage": "pipeline.stages.stage",
    "WriteConfig": "pipeline.config",
    "build_stats": "pipeline.report.stats",
    "clean_captions": "pipeline.stages.captions",
    "load_config": "pipeline.config",
    "make_provenance": "pipeline.run.provenance",
    "open_shards": "pipeline.output.shard_stream",
    "plan_shards": "pipeline.read.plan",
    "read_shard": "pipeline.read.source",
    "resolve_thresholds": "pipeline.stages.score.filters",
    "run_local": "pipeline.run.local",
    "write_input": "pipeline.read.tables",
    "write_report": "pipeline.report.html",
    "write_shard": "pipeline.output.write.stage",
}

__all__ = list(EXPORTS)

__getattr__, __dir__ = lazy_exports(__name__, EXPORTS)
