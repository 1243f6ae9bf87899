"""Run the benchmarks on models."""
