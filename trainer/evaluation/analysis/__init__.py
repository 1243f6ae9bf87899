"""Analyses of embeddings as pure functions: paths, order and entailment, projections to the disk, factors."""
