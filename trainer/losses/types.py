"""Choices of the losses that settings name, without torch."""

from typing import Literal

LossKernel = Literal["auto", "chunked", "triton"]
"""Implementation of the contrastive loss."""
Entropy = Literal["abs", "normalised", "softmax"]
"""How the coordinates of a point become the probabilities of which the entropy is taken."""
Reduction = Literal["mean", "sum"]
"""Reduction over the edges and words of a caption."""
