"""Text towers that are encoders of the library transformers, such as BERT, RoBERTa, T5's encoder or CLIPTextModel.

Shapes: b texts, l tokens, w width. Parameter names are those of transformers, below `encoder`. A tower is built from its
configuration alone (`transformers_network`); its weights come from a local folder (`transformers_weights`).
"""

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.encoders.config import TRANSFORMERS, TextConfig
from trainer.encoders.text import StateSource, TextTower, TokenStates
from trainer.encoders.transformers_network import (
    build_network,
    first_line,
    parse_settings,
    position_limit,
    settings_of,
    text_part,
)

MAX_CHANGE: Final = 1e-4
"""Largest change of a feature by padding beside its text, relative to the feature, that is rounding."""


class PoolingError(ValueError):
    """The network has no output for the pooling."""


class TransformersText(TextTower):
    """An encoder of transformers. Tokens attend to all tokens but the padding, which follows them.

    If the features of a text depend on the padding beside it, as without attention masks, all texts are padded to the
    context (`pads_to_context`).

    Args:
        config: settings with `name` "transformers", the sizes, `context_length`, `pooling`, `pad_id` and `kwargs`.

    Raises:
        ValueError: transformers has no such text encoder, the sizes differ from those in `kwargs`, or the encoder
            cannot read a text of `context_length` tokens.
        PoolingError: `pooling` is "pooler", and the network has none.
    """

    positions = ""  # none that `stretch_after` could change

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.context_length, self.pooling, self.pad_id = config.context_length, config.pooling, config.pad_id
        differing = {name: size for name, size in settings_of(config.kwargs).items() if getattr(config, name) != size}
        if differing:
            settings = " ".join(f"model.text.{name}={size}" for name, size in differing.items())
            raise ValueError(f"text.name {config.name}: the sizes differ from those in kwargs; set {settings}")
        network_config = parse_settings(config.kwargs)
        self.encoder = text_part(build_network(network_config), config.pooling)
        self.pads_to_context = False
        self.num_features = self.measure({config.pad_id, network_config.pad_token_id})

    @torch.inference_mode(False)
    @torch.enable_grad()
    def measure(self, paddings: set[int | None]) -> int:
        """Return the width of the features, computed from texts of several lengths, and adapt to the encoder.

        Parameters without effect are frozen, because DDP does not accept parameters without a gradient. If a feature depends
        on the padding beside its text, as without attention masks, all texts are padded to the context. Raises ValueError if
        the encoder cannot read a text.
        """
        limit = position_limit(self.encoder)
        if limit is not None and self.context_length > limit:
            raise ValueError(
                f"text.context_length is {self.context_length}, but the encoder has {limit} positions; set "
                f"model.text.context_length={limit} or less"
            )
        token = next(index for index in range(3) if index not in paddings)
        ids = torch.full((1, self.context_length), token)
        short = ids[:, : min(3, self.context_length)]
        was_training = self.training
        try:
            features = self.eval()(ids)
            alone, beside = self(short), self(self.padded(short))
            features.square().sum().backward()
        except PoolingError:
            raise
        except Exception as error:  # its type depends on the network
            raise ValueError(
                f"text.name {TRANSFORMERS}: {type(self.encoder).__name__} cannot encode a text of {self.context_length} "
                f"tokens ({type(error).__name__}: {first_line(error)}); give another encoder, or a "
                "smaller model.text.context_length"
            ) from error
        finally:
            self.train(was_training)
        if features.is_meta:  # of a model without values
            return int(features.shape[-1])
        for parameter in self.parameters():
            parameter.requires_grad_(parameter.grad is not None)
            parameter.grad = None
        self.pads_to_context = bool((alone - beside).abs().max() > MAX_CHANGE * alone.abs().max())
        return int(features.shape[-1])

    def padded(self, token_ids: Tensor) -> Tensor:
        """Return the ids [b l] with padding up to the context."""
        return F.pad(token_ids, (0, self.context_length - token_ids.shape[1]), value=self.pad_id)

    def pad_tokens(self, token_ids: Tensor) -> Tensor:
        return self.padded(token_ids) if self.pads_to_context else token_ids

    def list_blocks(self) -> list[nn.Module]:
        lists = (module for module in self.encoder.modules() if isinstance(module, nn.ModuleList))
        return list(next(lists, [self]))

    def forward(self, token_ids: Tensor, source: StateSource | None = None) -> Tensor | TokenStates:
        """As `TextTower.forward`. A batch without texts, of a rank without boxes, encodes one token and drops it."""
        if len(token_ids):
            return super().forward(token_ids, source)
        found = super().forward(token_ids.new_zeros(1, 1), source)
        if isinstance(found, Tensor):
            return found[:0]
        length = token_ids.shape[1]
        return TokenStates(*(part[:0].expand(0, length, -1) if part.ndim == 3 else part[:0] for part in found))

    def attended(self, token_ids: Tensor) -> Tensor:
        """Return a mask [b l] of the tokens of texts: all but the padding. The first is always one of them."""
        mask = token_ids != self.pad_id
        mask[:, 0] = True
        return mask

    def hidden_states(self, token_ids: Tensor, source: StateSource | None) -> TokenStates:
        mask = self.attended(token_ids)
        ids = token_ids.clamp(min=0)  # the padding is -1 in a vocabulary without it
        output = self.encoder(
            input_ids=ids, attention_mask=mask.long(), return_dict=True, output_hidden_states=source is not None
        )
        final = output.last_hidden_state
        pooled = getattr(output, "pooler_output", None) if self.pooling == "pooler" else self.pool(final, mask)
        if pooled is None:
            raise PoolingError(
                f"text.pooling is pooler, but {type(self.encoder).__name__} has none; set model.text.pooling to cls, "
                "mean or last"
            )
        return TokenStates(pooled, final if source is None else output.hidden_states[0], final)

    def pool(self, final: Tensor, mask: Tensor) -> Tensor:
        """Return the features [b w] of texts from the states [b l w] of their tokens, of which `mask` [b l] are attended."""
        if self.pooling == "cls":
            return final[:, 0]
        if self.pooling == "last":
            positions = torch.arange(mask.shape[1], device=mask.device)
            return final[torch.arange(final.shape[0], device=final.device), (mask * positions).argmax(dim=1)]
        weights = mask.to(final.dtype)[..., None]
        return (final * weights).sum(1) / weights.sum(1)
