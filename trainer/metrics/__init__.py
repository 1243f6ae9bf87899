"""Metrics of a training run: metrics.jsonl, TensorBoard and W&B, the progress bar, and plots of the curves."""
