"""The last stage: a scored table becomes the files of one shard, all of them or none."""

from pipeline.write.config import WriteConfig
from pipeline.write.shard import is_finished, write_shard

__all__ = ["WriteConfig", "is_finished", "write_shard"]
