"""The write stage: commits the files of a shard atomically."""
