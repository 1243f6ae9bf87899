"""Analyses of embeddings from single papers. The evaluator finds them by name in its catalog."""
