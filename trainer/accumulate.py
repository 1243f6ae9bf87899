"""Large batches in little memory: towers that compute again, going back, what they did not keep.

A contrastive loss needs the features of the whole batch at once, so its batch cannot be cut the way other losses' can. But only
features have to be kept (GradCache: Gao et al. 2021, arXiv 2101.06983): rows go through a tower a few at a time without keeping
activations, the loss is taken over all features of all ranks, and going back each few rows go through the tower once more. Their
random numbers are drawn as before, so the gradient is that of one pass over the whole batch, for any tower whose rows do not
depend on each other (batch norm would make them).
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.distributed.gather import counts_of_ranks
from trainer.models.dual_encoder import DualEncoder

REPEATED = re.compile(r"blocks|resblocks|stages|layer\d")
"""Names of the lists that networks keep their blocks in; ResNets have layer1 to layer4."""


def in_chunks(function: Callable[..., Any], n: int, in_step: bool, rows: Tensor, *arguments: Any) -> Any:
    """`function(rows, ...)`, a tensor or a tuple of tensors, computed `n` rows at a time and again in the backward pass.

    `in_step`: as often as on the rank that has the most rows, with fewer at a time, none even.
    """
    if not torch.is_grad_enabled():
        return function(rows, *arguments)
    times = -(-(max(counts_of_ranks(len(rows), rows.device)) if in_step else len(rows)) // n)
    if times <= 1:
        return function(rows, *arguments)
    parts = [checkpoint(function, part, *arguments, use_reentrant=False) for part in rows.tensor_split(times)]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    kind = type(parts[0])
    joined = [torch.cat(column) for column in zip(*parts, strict=True)]
    return kind(*joined) if hasattr(kind, "_fields") else tuple(joined)


def set_micro_batch(model: DualEncoder, n: int, in_step: bool = False) -> None:
    """Let no more than `n` rows through a tower at a time. Parameter names stay as they are.

    `in_step` is for FSDP, where ranks exchange weights each time a tower is called.
    """
    # The image side is cut before bytes become floats, which are four times as large.
    model.image_features = partial(in_chunks, model.image_features, n, in_step)  # type: ignore[method-assign]
    model.textual.forward = partial(in_chunks, model.textual.forward, n, in_step)  # type: ignore[method-assign]


def checkpoint_blocks(model: DualEncoder) -> None:
    """Keep the input of each block of the towers alone, and compute the block again going back."""
    for block in blocks(model):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def blocks(model: DualEncoder) -> list[nn.Module]:
    """What a tower repeats: transformer blocks, blocks or stages of other networks of timm; a tower without any as a whole."""
    found: list[nn.Module] = []
    for tower in (model.visual, model.textual):
        within = getattr(tower, "transformer", None) or getattr(tower, "trunk", tower)  # as open_clip nests them
        parts = [part for name, part in cast(nn.Module, within).named_children() if REPEATED.fullmatch(name)]
        lists = [part for part in parts if isinstance(part, nn.ModuleList | nn.Sequential)]
        found += [block for part in lists for block in part] if lists else [tower]
    return found
