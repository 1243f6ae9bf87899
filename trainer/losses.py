"""Losses over similarities and geometry: functions of tensors, which know neither models nor ranks.

Shapes: b queries, n candidates (all ranks), the first b of them or those at `offset` the queries' own.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def contrastive(logits: Tensor, compatible: Tensor | None = None, offset: int = 0) -> Tensor:
    """Cross entropy of each query's own candidate against all candidates, mean over queries.

        -1/b sum_i log( exp(logits[i, i + offset]) / sum_j exp(logits[i, j]) )      CLIP, figure 3; MERU, section 3

    The positive is part of the denominator. `compatible` [b n] marks candidates that are also right for a query; they
    are left out of its denominator, being neither right answers to prefer nor wrong ones to push away.
    """
    targets = torch.arange(len(logits), device=logits.device) + offset
    if compatible is not None:
        own = F.one_hot(targets, logits.shape[1]).bool()
        logits = logits.masked_fill(compatible & ~own, float("-inf"))
    return F.cross_entropy(logits, targets)
