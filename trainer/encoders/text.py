"""The interface of text towers, and CLIP's causal transformer (Radford et al. 2021, section 2.4).

Shapes: b texts, l tokens, w width. Parameter names are those of the released checkpoints.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn

from trainer.encoders.config import TextConfig


@dataclass(frozen=True, kw_only=True)
class StateSource:
    """The part of a text tower whose input and output are the initial and the contextual state of each token.

    Syntax-MERU compares the two states of words. Its section 3 takes input and output of a multi-head attention,
    without naming the layer (docs/ablations.md). Towers of transformers have the states of "tower" alone, and those of
    open_clip none of "attention"; `SyntaxMERUConfig` refuses the others.

    Args:
        kind: "tower": the sum of token and position embedding, and the state after the last norm. "block": input and
            output of a block, in the residual stream. "attention": input and output of the attention in a block: after
            its norm, before the residual sum.
        block: index of the block from 0; unused if kind is "tower". With an index that the tower does not have, the
            initial state is also the contextual one.
    """

    kind: Literal["tower", "block", "attention"] = "tower"
    block: int = 0  # index of the block from 0; unused if kind is "tower"


class TokenStates(NamedTuple):
    """Features of texts, and the states of their tokens that a `StateSource` selects."""

    pooled: Tensor  # [b w] feature of each text
    initial: Tensor  # [b l w] input of that part of the tower
    contextual: Tensor  # [b l w] its output


class Attention(nn.Module):
    """Causal self-attention with the parameter names of `nn.MultiheadAttention`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x: Tensor, starts: Tensor | None = None, longest: int = 0) -> Tensor:
        """Mix tokens [b l w], or those of texts that follow each other [1 t w]; text i is starts[i] to starts[i + 1]."""
        b, length, w = x.shape
        qkv = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        if starts is not None:
            q, k, v = qkv.view(length, 3, self.heads, w // self.heads).unbind(1)
            packed = varlen_attn(q, k, v, starts, starts, longest, longest, window_size=(-1, 0))
            return self.out_proj(cast(Tensor, packed).reshape(b, length, w))
        q, k, v = qkv.view(b, length, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(mixed.transpose(1, 2).reshape(b, length, w))


class Block(nn.Module):
    """Pre-norm attention and MLP. The GELU is exact; OpenAI's weights were trained with its fast approximation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn = Attention(width, heads)
        self.ln_1 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            OrderedDict(c_fc=nn.Linear(width, 4 * width), gelu=nn.GELU(), c_proj=nn.Linear(4 * width, width))
        )
        self.ln_2 = nn.LayerNorm(width)

    def forward(
        self, x: Tensor, return_attention: bool = False, starts: Tensor | None = None, longest: int = 0
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Return the output [b l w]; with `return_attention`, also the input and the output of the attention.

        `starts` and `longest` as in `Attention`.
        """
        normed = self.ln_1(x)
        mixed = self.attn(normed, starts, longest)
        x = x + mixed
        x = x + self.mlp(self.ln_2(x))
        return (x, normed, mixed) if return_attention else x


def stretch_positions(table: Tensor, length: int, kept: int) -> Tensor:
    """Stretch a table of position embeddings to a longer context (Zhang et al. 2024, arXiv 2403.15378, section 3.1).

    The first `kept` stay, since the first positions of short captions are trained best; the others are interpolated
    linearly from the table's others, of which the first and the last stay too.

    Args:
        table: embeddings [l w].
        length: number of positions of the result, more than `kept`.
        kept: number of first positions that stay, less than l.

    Returns:
        Embeddings [length w].
    """
    rest = F.interpolate(table[kept:].T[None], length - kept, mode="linear", align_corners=True)[0].T
    return torch.cat([table[:kept], rest])


class TextTower(nn.Module, ABC):
    """A module from token ids [b l] int64 to text features [b w], before any projection. The base class of text towers.

    A subclass implements `hidden_states` and sets the attributes; `build_text_encoder` selects it.
    """

    positions: str  # name of the parameter with the position embeddings
    num_features: int  # w
    """Width w of the features."""
    context_length: int
    """The most tokens that a text may have."""
    embedding_noise: float = 0.0
    """Factor a of `with_noise`, at least 0."""

    def forward(self, token_ids: Tensor, source: StateSource | None = None) -> Tensor | TokenStates:
        """Encode texts.

        Args:
            token_ids: ids [b l] int64, padded behind each text; l is at most `context_length`.
            source: the states to return besides the features; None: none.

        Returns:
            Features [b w]; with `source`, `TokenStates` of the l tokens, without padding that the tower added.

        Raises:
            ValueError: the texts are longer than the context.
        """
        length = token_ids.shape[1]
        if length > self.context_length:
            raise ValueError(
                f"texts have {length} tokens, but the context length of the text tower is {self.context_length}"
            )
        states = self.hidden_states(self.pad_tokens(token_ids), source)
        if source is None:
            return states.pooled
        return TokenStates(states.pooled, states.initial[:, :length], states.contextual[:, :length])

    def pad_tokens(self, token_ids: Tensor) -> Tensor:
        """Pad ids as the tower was trained; unchanged by default.

        Args:
            token_ids: ids [b l].

        Returns:
            Ids [b l'], where l <= l' <= `context_length`.
        """
        return token_ids

    def with_noise(self, tokens: Tensor) -> Tensor:
        """Add the uniform noise of NEFTune (arXiv 2310.05914) to token embeddings while training.

            e + a / sqrt(l w) * u,  u uniform in [-1, 1]        NEFTune, algorithm 1, with a = `embedding_noise`

        Args:
            tokens: embeddings [b l w], padding included in l.

        Returns:
            Embeddings [b l w]; `tokens` itself in evaluation or if a is 0.
        """
        if not (self.training and self.embedding_noise):
            return tokens
        noise = torch.rand_like(tokens) * 2 - 1
        return tokens + self.embedding_noise * (tokens.shape[1] * self.num_features) ** -0.5 * noise

    def list_blocks(self) -> list[nn.Module] | None:
        """Return the transformer blocks, whose activations `checkpoint_activations` recomputes.

        Returns:
            The blocks in their order; None if the tower holds them under a name of
                `trainer.training.accumulate.BLOCK_LISTS`.
        """
        return None

    @abstractmethod
    def hidden_states(self, token_ids: Tensor, source: StateSource | None) -> TokenStates:
        """Encode texts. Subclasses implement it, and callers call the module itself.

        Args:
            token_ids: ids [b l] int64 as `pad_tokens` returns them.
            source: the states to return; None: they are not used and may be any tensors [b l w].

        Returns:
            Features [b w] before any projection, and initial and contextual states [b l w].
        """


class TextEncoder(TextTower):
    """CLIP's transformer (Radford et al. 2021, section 2.4).

    The feature of a text is the final state of its first end-of-text token, the largest id. Padding follows that token,
    and the causal mask hides it. So batches are padded only to their longest text.

    Args:
        config: settings with `name` None: sizes, context and noise.
    """

    positions = "posit_embed"

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.num_features = config.width
        self.context_length = config.context_length
        self.embedding_noise = config.embedding_noise
        self.token_embed = nn.Embedding(config.vocab_size, config.width)
        self.posit_embed = nn.Parameter(torch.empty(config.context_length, config.width))
        self.resblocks = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.layers))
        self.ln_final = nn.LayerNorm(config.width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw random weights with the standard deviations of CLIP's released code.

        Those of residual branches shrink with depth.
        """
        width = self.num_features
        residual_std = (2 * width * len(self.resblocks)) ** -0.5
        nn.init.normal_(self.token_embed.weight, std=0.02)
        nn.init.normal_(self.posit_embed, std=0.01)
        stds = {"in_proj_weight": width**-0.5, "c_fc.weight": (2 * width) ** -0.5}
        for name, parameter in self.resblocks.named_parameters():
            if parameter.ndim > 1:
                kind = next((kind for kind in stds if name.endswith(kind)), None)
                nn.init.normal_(parameter, std=stds[kind] if kind else residual_std)

    def forward(
        self, token_ids: Tensor, source: StateSource | None = None, packed: Tensor | None = None
    ) -> Tensor | TokenStates:
        """Encode texts as `TextTower` does, or without computing their padding.

        Args:
            token_ids: ids [b l] int64.
            source: as in `TextTower`; not used for packed texts.
            packed: places [t] int64, in the flattened ids [b*l] and in their order, of the tokens from the start to the
                end of each text. Needs a GPU and half precision, and adds no noise (`data.pack_texts`).

        Returns:
            Features [b w]; with `source`, `TokenStates`.
        """
        if packed is None:
            return super().forward(token_ids, source)
        b, length = token_ids.shape
        rows = torch.arange(b + 1, device=packed.device)
        starts = torch.searchsorted(packed // length, rows, out_int32=True)
        x = (self.token_embed(token_ids.flatten()[packed]) + self.posit_embed[packed % length])[None]
        for block in self.resblocks:
            x = block(x, False, starts, length)
        return self.ln_final(x)[0, starts[1:] - 1]

    def hidden_states(self, token_ids: Tensor, source: StateSource | None) -> TokenStates:
        source = source or StateSource()
        initial = x = self.with_noise(self.token_embed(token_ids)) + self.posit_embed[: token_ids.shape[1]]
        contextual = x
        for index, block in enumerate(self.resblocks):
            if source.kind == "tower" or index != source.block:
                x = block(x)
            elif source.kind == "block":
                initial, x = x, block(x)
                contextual = x
            else:
                x, initial, contextual = block(x, return_attention=True)
        final = self.ln_final(x)
        pooled = final[torch.arange(final.shape[0], device=final.device), token_ids.argmax(dim=1)]
        return TokenStates(pooled, initial, final if source.kind == "tower" else contextual)
