"""Measurements on a CUDA GPU: one script each, of at most nine minutes. README.md has the order of the calls."""
