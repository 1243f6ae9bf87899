"""Results of the benchmarks as tables and as one page."""
