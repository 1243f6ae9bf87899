"""The report: statistics of the finished shards as JSON, as a web page and as a table for the terminal."""
