"""The optimizer of a run and its learning rates."""
