"""Stage `read`: files of image-text pairs, in any common format, as numbered rows."""

from pipeline.read.config import Piece, ReadConfig, ShardPlan
from pipeline.read.plan import plan_shards
from pipeline.read.rows import read_shard

__all__ = ["Piece", "ReadConfig", "ShardPlan", "plan_shards", "read_shard"]
