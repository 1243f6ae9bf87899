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
    from pipeline.config import PipelineConfig, ReportConfig, WriteConfig, load_config
    from pipeline.output.shard_stream import open_shards
    from pipeline.output.write.stage import write_shard
    from pipeline.read.config import ReadConfig
    from pipeline.read.plan import plan_shards
    from pipeline.read.source import read_shard
    from pipeline.read.tables import write_input
    from pipeline.read.types import ShardPlan
    from pipeline.report.html import write_report
    from pipeline.report.stats import build_stats
    from pipeline.run.local import run_local
    from pipeline.run.provenance import make_provenance
    from pipeline.stages.captions import CaptionsConfig, clean_captions
    from pipeline.stages.download.config import DownloadConfig
    from pipeline.stages.download.stage import Download
    from pipeline.stages.ground.load import GroundConfig
    from pipeline.stages.ground.stage import Ground
    from pipeline.stages.parse.config import ParseConfig
    from pipeline.stages.parse.stage import Parse
    from pipeline.stages.score.filters import ScoreConfig, resolve_thresholds
    from pipeline.stages.score.stage import Score
    from pipeline.stages.stage import Stage

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
    "Stage",
    "WriteConfig",
    "build_stats",
    "clean_captions",
    "load_config",
    "make_provenance",
    "open_shards",
    "plan_shards",
    "read_shard",
    "resolve_thresholds",
    "run_local",
    "write_input",
    "write_report",
    "write_shard",
]

__getattr__, __dir__ = lazy_exports(__name__, EXPORTS)
