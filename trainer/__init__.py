"""Hyperbolic vision-language models: geometry, encoders, losses, checkpoints."""
