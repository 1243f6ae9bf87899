"""Losses of the models, as functions of tensors; nothing here imports `trainer.models`.

`functional` has the plain formulas: contrastive loss, entailment cones, entropy. The contrastive loss has a further
implementation that never holds the full similarity matrix: `chunked`, on top of the blockwise similarities of
`similarity`. `contrast` selects the implementation.
`types` has the types of the settings; it does not import torch.
"""
