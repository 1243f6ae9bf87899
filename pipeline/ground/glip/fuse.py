"""Deep fusion (GLIP, section 3.2): image cells and word pieces attend to each other, then word pieces to themselves.

Axes: b images, n cells of all levels, t word pieces, h heads, c channels of the image, d channels of the text.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.ground.glip.config import HeadConfig, TextConfig
from pipeline.ground.glip.fpn import flatten_levels, level_sizes, split_levels

LOGIT_LIMIT = 50_000.0  # as in the released model; keeps float16 finite
PADDING_PENALTY = -9e15  # added to the attention scores of padding


class BiAttention(nn.Module):
    """Attention from cells to words and from words to cells, with a shared score matrix.

    Cells attend to words that are not padding. Words attend to all cells of all levels, including cells of padded
    pixels. The result of an image therefore depends on its padded size, and only images of the same padded size can
    share a batch.
    """

    def __init__(self, visual: int, lang: int, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.dropout = dropout
        self.v_proj = nn.Linear(visual, width)
        self.l_proj = nn.Linear(lang, width)
        self.values_v_proj = nn.Linear(visual, width)
        self.values_l_proj = nn.Linear(lang, width)
        self.out_v_proj = nn.Linear(width, visual)
        self.out_l_proj = nn.Linear(width, lang)
        for module in self.children():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, v: Tensor, lang: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the updates of `v` [b, n, c] and of `lang` [b, t, d]; `mask` [b, t] is 0 for padding."""
        query = split_heads(self.v_proj(v) * self.scale, self.heads)
        key = split_heads(self.l_proj(lang), self.heads)
        scores = (query @ key.transpose(2, 3)).clamp(-LOGIT_LIMIT, LOGIT_LIMIT)  # [b, h, n, t]
        # in float32, so that padding never gets more weight than a word with a very low score
        penalty = torch.zeros(mask.shape, device=mask.device).masked_fill(mask == 0, PADDING_PENALTY)
        to_words = F.dropout((scores.float() + penalty[:, None, None]).softmax(dim=3), self.dropout, self.training)
        by_word = scores.transpose(2, 3).float().contiguous()  # softmax along strided rows is slow on a CPU
        to_cells = F.dropout(by_word.softmax(dim=3), self.dropout, self.training)
        value_l = split_heads(self.values_l_proj(lang), self.heads)
        value_v = split_heads(self.values_v_proj(v), self.heads)
        delta_v = to_words.to(value_l.dtype) @ value_l
        delta_l = to_cells.to(value_v.dtype) @ value_v
        return self.out_v_proj(join_heads(delta_v)), self.out_l_proj(join_heads(delta_l))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Split the channels of `x` into heads: [b, n, h * width] to [b, h, n, width]."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """The inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(2)


class FuseBlock(nn.Module):
    """Add two-way attention, scaled per channel, to the *normalised* inputs, as the released model does."""

    def __init__(self, head: HeadConfig, lang: int) -> None:
        super().__init__()
        self.layer_norm_v = nn.LayerNorm(head.channels)
        self.layer_norm_l = nn.LayerNorm(lang)
        self.attn = BiAttention(head.channels, lang, head.fuse_width, head.fuse_heads, head.fuse_dropout)
        self.gamma_v = nn.Parameter(torch.full((head.channels,), 1.0 / head.rounds))
        self.gamma_l = nn.Parameter(torch.full((lang,), 1.0 / head.rounds))

    def forward(self, visual: list[Tensor], lang: Tensor, mask: Tensor) -> tuple[list[Tensor], Tensor]:
        v, lang = self.layer_norm_v(flatten_levels(visual)), self.layer_norm_l(lang)
        delta_v, delta_l = self.attn(v, lang, mask)
        return split_levels(v + self.gamma_v * delta_v, level_sizes(visual)), lang + self.gamma_l * delta_l


class Fuse(nn.Module):
    """A `FuseBlock` under its released key name, `b_attn`."""

    def __init__(self, head: HeadConfig, lang: int) -> None:
        super().__init__()
        self.b_attn = FuseBlock(head, lang)

    def forward(self, visual: list[Tensor], lang: Tensor, mask: Tensor) -> tuple[list[Tensor], Tensor]:
        return self.b_attn(visual, lang, mask)


class TextSelfAttention(nn.Module):
    """BERT's self-attention, with clamped scores."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (split_heads(layer(x), self.heads) for layer in (self.query, self.key, self.value))
        scores = (query @ key.transpose(2, 3) * query.shape[-1] ** -0.5).clamp(-LOGIT_LIMIT, LOGIT_LIMIT).float()
        scores = scores.masked_fill(mask[:, None, None] == 0, torch.finfo(torch.float32).min)
        weights = F.dropout(scores.softmax(dim=3), self.dropout, self.training)
        return join_heads(weights.to(value.dtype) @ value)


class TextOutput(nn.Module):
    """Project, add the residual and normalise. With `clamps`, values are clamped before and after the normalisation."""

    def __init__(self, width: int, config: TextConfig, *, clamps: bool) -> None:
        super().__init__()
        self.clamps = clamps
        self.dropout = config.dropout
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=1e-12)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        x = F.dropout(self.dense(x), self.dropout, self.training) + residual
        if not self.clamps:
            return self.LayerNorm(x)
        return self.LayerNorm(x.clamp(-LOGIT_LIMIT, LOGIT_LIMIT)).clamp(-LOGIT_LIMIT, LOGIT_LIMIT)


class TextLayer(nn.Module):
    """A post-norm BERT layer for the fused words, with the clamps of the released model."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        attention = {"self": TextSelfAttention(config), "output": TextOutput(config.hidden_size, config, clamps=False)}
        self.attention = nn.ModuleDict(attention)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(config.hidden_size, config.intermediate_size)})
        self.output = TextOutput(config.intermediate_size, config, clamps=True)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, visual: list[Tensor], lang: Tensor, mask: Tensor) -> tuple[list[Tensor], Tensor]:
        x = self.attention["output"](self.attention["self"](lang, mask), lang)
        wide = self.intermediate["dense"](x).clamp(-LOGIT_LIMIT, LOGIT_LIMIT)
        return visual, self.output(F.gelu(wide).clamp(-LOGIT_LIMIT, LOGIT_LIMIT), x)
