"""Large contrastive batches in bounded memory: activations are recomputed in the backward pass.

A contrastive loss needs the features of the full batch at once, so gradients cannot be accumulated over parts of the
batch as for other losses. Only the features have to stay in memory, however (GradCache: Gao et al. 2021, arXiv
2101.06983). A tower processes chunks of rows without keeping their activations, the loss is computed from the features
of all ranks, and the backward pass runs the tower again for each chunk, with the same random numbers.

The gradient equals that of one pass over the full batch if the rows in the output of a tower do not depend on each
other. They do with batch norm.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.distributed.gather import counts_of_ranks
from trainer.encoders.text import TextTower
from trainer.models.dual_encoder import DualEncoder

BLOCK_LISTS: Final = re.compile(r"blocks|resblocks|stages|layer\d")
"""Attribute names of the lists of blocks in networks; ResNets have layer1 to layer4."""


def checkpoint_chunks(
    function: Callable[..., Any], chunk_size: int, same_on_all_ranks: bool, rows: Tensor, *arguments: Any
) -> Any:
    """Compute `function(rows, *arguments)` in chunks of at most `chunk_size` rows, which the backward pass recomputes.

    The function returns a tensor or a tuple of tensors with the rows on axis 0. With `same_on_all_ranks`, each rank
    computes as many chunks as the rank with the most rows; chunks of the other ranks are smaller and may be empty.
    """
    if not torch.is_grad_enabled():
        return function(rows, *arguments)
    n_rows = max(counts_of_ranks([len(rows)])[0]) if same_on_all_ranks else len(rows)
    n_chunks = -(-n_rows // chunk_size)
    if n_chunks <= 1:
        return function(rows, *arguments)
    outputs = [checkpoint(function, chunk, *arguments, use_reentrant=False) for chunk in rows.tensor_split(n_chunks)]
    if isinstance(outputs[0], Tensor):
        return torch.cat(outputs)
    kind = type(outputs[0])
    joined = [torch.cat(parts) for parts in zip(*outputs, strict=True)]
    return kind(*joined) if hasattr(kind, "_fields") else tuple(joined)


def set_micro_batch(model: DualEncoder, n_rows: int, same_on_all_ranks: bool = False) -> None:
    """Make each tower process at most `n_rows` rows at a time. Parameter names do not change.

    FSDP needs `same_on_all_ranks`: its ranks exchange weights in each call of a tower, so all must make as many calls.
    """
    # Not the image tower itself: `image_features` converts uint8 images to float32, which is four times as large.
    towers = [(model, "image_features"), (model, "image_tokens"), (model.textual, "forward")]
    for module, name in [(module, name) for module, name in towers if hasattr(module, name)]:
        setattr(module, name, partial(checkpoint_chunks, getattr(module, name), n_rows, same_on_all_ranks))


def checkpoint_blocks(model: DualEncoder) -> None:
    """Keep only the input of each block of the towers, and recompute the block in the backward pass."""
    for block in tower_blocks(model):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def tower_blocks(model: DualEncoder) -> list[nn.Module]:
    """List the blocks of both towers: transformer blocks, or the blocks or stages of other networks.

    A tower without a list of blocks counts as one block.
    """
    blocks: list[nn.Module] = []
    for tower in (model.visual, model.textual):
        listed = tower.list_blocks() if isinstance(tower, TextTower) else None
        if listed is not None:
            blocks += listed
            continue
        network = getattr(tower, "transformer", None) or getattr(tower, "trunk", tower)  # open_clip nests them
        children = [child for name, child in cast(nn.Module, network).named_children() if BLOCK_LISTS.fullmatch(name)]
        lists = [child for child in children if isinstance(child, nn.ModuleList | nn.Sequential)]
        blocks += [block for part in lists for block in part] if lists else [tower]
    return blocks
