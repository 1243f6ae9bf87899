"""Evaluation: zero-shot classification, retrieval, entailment. `evaluate.Evaluation` computes all of them."""
