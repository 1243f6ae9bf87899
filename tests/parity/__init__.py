"""Comparisons with numbers that other people's code computed (data/). Commit 5af35950 is the last one with their commands."""
