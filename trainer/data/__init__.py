"""Batches from shards: which samples in which order, what is in them, and how they become tensors."""
