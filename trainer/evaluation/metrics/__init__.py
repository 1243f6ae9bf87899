"""Metrics as functions of scores, labels and points."""
