"""The report on the finished shards: statistics as JSON, a web page, and a table for the terminal."""
