"""Evaluation without benchmark files: image folders and held-out shards."""
