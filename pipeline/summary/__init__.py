"""The statistics of finished shards as summaries that can be merged; this folder reads and writes no files."""
