"""Measure the quality of boxes: thresholds against known boxes, and samples that people judge."""
