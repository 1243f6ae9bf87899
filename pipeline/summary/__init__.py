"""The statistics of finished shards as summaries that can be merged; this folder reads and writes no files.

frequent.py    the most frequent texts, in bounded memory
distinct.py    the number of distinct images, in bounded memory
histogram.py   counts in fixed bins, means, and percentiles
totals.py      what is counted of the rows of arrow/
places.py      shards in which the report looks for its pictures and examples
summary.py     all of them: of a shard, of a thousand, of an output
"""
