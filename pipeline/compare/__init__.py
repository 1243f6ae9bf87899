"""Compare the statistics of two outputs."""
