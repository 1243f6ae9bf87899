"""Evaluation: zero-shot classification, retrieval, entailment. Its command is `trainer.evaluate`."""
