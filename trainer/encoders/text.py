"""What a text tower says, and CLIP's causal transformer (Radford et al. 2021, section 2.4): texts to one feature vector each.

Shapes: b texts, l tokens, w width. Parameter names are those of the released checkpoints.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.encoders.config import TextConfig


@dataclass(frozen=True, kw_only=True)
class StateSource:
    """Where in the tower a token has its first meaning, and where the one that its context gives it.

    "tower": token + position embedding, and the hidden state after the last norm. "block": input and output of a block,
    the residual stream. "attention": input and output of a block's attention alone, after its norm and before the sum.
    """

    kind: Literal["tower", "block", "attention"] = "tower"
    block: int = 0  # 0 is the first; "tower" does not ask


class TokenStates(NamedTuple):
    """What the tower says of texts, and of their tokens at the two places asked for."""

    sentence: Tensor  # [b w]
    initial: Tensor  # [b l w]
    contextual: Tensor  # [b l w]


class Attention(nn.Module):
    """Causal self-attention with the parameter names of `nn.MultiheadAttention`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        b, length, w = x.shape
        qkv = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = qkv.view(b, length, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(mixed.transpose(1, 2).reshape(b, length, w))


class Block(nn.Module):
    """Pre-norm attention and MLP. The GELU is exact; OpenAI's own weights would want its quick approximation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn = Attention(width, heads)
        self.ln_1 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            OrderedDict(c_fc=nn.Linear(width, 4 * width), gelu=nn.GELU(), c_proj=nn.Linear(4 * width, width))
        )
        self.ln_2 = nn.LayerNorm(width)

    def forward(self, x: Tensor, inner: bool = False) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """The output; with `inner` also what goes into the attention and what comes out of it, before the sum."""
        normed = self.ln_1(x)
        mixed = self.attn(normed)
        x = x + mixed
        x = x + self.mlp(self.ln_2(x))
        return (x, normed, mixed) if inner else x


class TextTower(nn.Module, ABC):
    """Token ids [b l] to [b w]."""

    num_features: int  # w
    context_length: int

    def forward(self, token_ids: Tensor, places: StateSource | None = None) -> Tensor | TokenStates:
        """Sentences; with `places` also the states of their tokens there."""
        length = token_ids.shape[1]
        if length > self.context_length:
            raise ValueError(f"texts of {length} tokens; the text tower holds {self.context_length}")
        token_ids = self.padded(token_ids)
        initial, contextual, hidden = self.walk(token_ids, places or StateSource())
        sentence = self.pool(hidden, token_ids)
        return sentence if places is None else TokenStates(sentence, initial[:, :length], contextual[:, :length])

    def padded(self, token_ids: Tensor) -> Tensor:
        """With the padding that the tower wants to see."""
        return token_ids

    @abstractmethod
    def walk(self, token_ids: Tensor, places: StateSource) -> tuple[Tensor, Tensor, Tensor]:
        """States [b l w] at both places, and after the last norm."""

    @abstractmethod
    def pool(self, hidden: Tensor, token_ids: Tensor) -> Tensor:
        """The sentences [b w] among the states after the last norm."""


class TextEncoder(TextTower):
    """The sentence is the hidden state at end of text, which is the largest id, the first one if several.

    Padding stands behind it, where a causal mask lets nothing look; so batches are padded to their own longest text.
    """

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.num_features = config.width
        self.context_length = config.context_length
        self.token_embed = nn.Embedding(config.vocab_size, config.width)
        self.posit_embed = nn.Parameter(torch.empty(config.context_length, config.width))
        self.resblocks = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.layers))
        self.ln_final = nn.LayerNorm(config.width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Standard deviations of CLIP's released code; residual branches shrink with depth."""
        width = self.num_features
        residual_std = (2 * width * len(self.resblocks)) ** -0.5
        nn.init.normal_(self.token_embed.weight, std=0.02)
        nn.init.normal_(self.posit_embed, std=0.01)
        stds = {"in_proj_weight": width**-0.5, "c_fc.weight": (2 * width) ** -0.5}
        for name, parameter in self.resblocks.named_parameters():
            if parameter.ndim > 1:
                kind = next((kind for kind in stds if name.endswith(kind)), None)
                nn.init.normal_(parameter, std=stds[kind] if kind else residual_std)

    def pool(self, hidden: Tensor, token_ids: Tensor) -> Tensor:
        return hidden[torch.arange(len(hidden), device=hidden.device), token_ids.argmax(dim=1)]

    def walk(self, token_ids: Tensor, places: StateSource) -> tuple[Tensor, Tensor, Tensor]:
        initial = x = self.token_embed(token_ids) + self.posit_embed[: token_ids.shape[1]]
        contextual = x
        for index, block in enumerate(self.resblocks):
            if places.kind == "tower" or index != places.block:
                x = block(x)
            elif places.kind == "block":
                initial, x = x, block(x)
                contextual = x
            else:
                x, initial, contextual = block(x, inner=True)
        hidden = self.ln_final(x)
        return initial, hidden if places.kind == "tower" else contextual, hidden
