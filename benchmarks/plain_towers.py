"""Baseline of the step benchmark: towers built from standard modules of torch and timm, one pass per kind of input."""

from collections import OrderedDict
from functools import partial

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from benchmarks.plain_losses import build
from trainer.batch import Batch, Pairs
from trainer.encoders.config import PAPER_VITS
from trainer.encoders.image import paper_vit
from trainer.models.config import ModelConfig
from trainer.models.meru import MERU


class PlainBlock(nn.Module):
    """A block of CLIP's text transformer with `nn.MultiheadAttention`, which takes the causal mask as a matrix."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        layers = OrderedDict(c_fc=nn.Linear(width, 4 * width), gelu=nn.GELU(), c_proj=nn.Linear(4 * width, width))
        self.mlp = nn.Sequential(layers)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        normed = self.ln_1(x)
        x = x + self.attn(normed, normed, normed, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.ln_2(x))


class PlainText(nn.Module):
    """CLIP's text transformer, built from `PlainBlock`s. Maps token ids [b l] to states [b w] of end-of-text tokens."""

    def __init__(
        self, vocab_size: int = 49_408, context: int = 77, width: int = 512, layers: int = 12, heads: int = 8
    ) -> None:
        super().__init__()
        self.token_embed = nn.Embedding(vocab_size, width)
        self.posit_embed = nn.Parameter(0.01 * torch.randn(context, width))
        self.resblocks = nn.ModuleList(PlainBlock(width, heads) for _ in range(layers))
        self.ln_final = nn.LayerNorm(width)
        self.register_buffer("mask", torch.ones(context, context, dtype=torch.bool).triu(1))

    def forward(self, token_ids: Tensor) -> Tensor:
        length = token_ids.shape[1]
        x = self.token_embed(token_ids) + self.posit_embed[:length]
        for block in self.resblocks:
            x = block(x, self.mask[:length, :length])  # type: ignore[index]
        return self.ln_final(x)[torch.arange(len(x)), token_ids.argmax(1)]


def plain_model(name: str, config: ModelConfig | None = None) -> MERU:
    """Build a model with plain towers and plain losses, of the papers' sizes with a ViT-S/16, or those of `config`.

    Images and boxes take separate passes.
    """
    model = build(name, plain=True, full=True, config=config)
    image, text = model.config.image, model.config.text
    vit = paper_vit(image.size_px, **{**PAPER_VITS[image.name], **image.kwargs})
    vit.blocks[-1].forward = partial(Block.forward, vit.blocks[-1])  # type: ignore[arg-type]
    model.visual = vit
    plain_text = PlainText(text.vocab_size, text.context_length, text.width, text.layers, text.heads)
    model.textual = plain_text  # type: ignore[assignment]

    def features(batch: Batch) -> Pairs:
        image, text = model.image_features(batch.images), model.text_features(batch.token_ids)
        if batch.box_images is None or batch.box_token_ids is None:
            return Pairs(image=image, text=text)
        boxes = model.image_features(batch.box_images), model.text_features(batch.box_token_ids)
        return Pairs(image=image, text=text, box_image=boxes[0], box_text=boxes[1])

    model.features = features  # type: ignore[method-assign]
    return model
