"""Losses of the models, as functions of tensors; nothing here imports `trainer.models`.

`functional` has the plain formulas: contrastive loss, entailment cones, entropy. The contrastive loss has two further
implementations that never hold the full similarity matrix: `chunked` in PyTorch, on top of the blockwise similarities
of `similarity`, and `fused` in Triton, with the kernels of `fused_kernels`. `contrast` selects the implementation.
`types` has the types of the settings; it does not import torch.
"""
