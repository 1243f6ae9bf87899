"""Text towers that are encoders of the library transformers, such as BERT, RoBERTa, T5's encoder or CLIPTextModel.

Shapes: b texts, l tokens, w width. Parameter names are those of transformers, below `encoder`. A tower is built from its
configuration alone; its weights come from a local folder (`pretrained_state`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING, MODEL_MAPPING
from transformers.utils import logging

from hypergrit_common.config import without_keys
from hypergrit_common.json_file import read_object
from hypergrit_common.model_files import CONFIG, IGNORED, SELECTING, WEIGHTS_INDEX, check_model, check_settings
from hypergrit_common.text import first_line
from hypergrit_common.weights import bounded_by_folder
from trainer.encoders.config import TRANSFORMERS, TextConfig
from trainer.encoders.text import StateSource, TextTower, TokenStates

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
                f"tokens ({type(error).__name__}: {first_line(error, 200)}); give another encoder, or a "
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


# Networks of the library transformers that encode texts, from their configuration alone.
#
# Nothing is downloaded, and no code of a folder runs. Importing transformers takes seconds, so this module is imported only
# if a configuration selects such a tower.

SIZES: Final = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
}
"""Settings of a text tower and the names of transformers, which hold for all its configurations."""
FORBIDDEN: Final = SELECTING | IGNORED
"""Keys that `model.text.kwargs` must not have. Of files, they are left out if they do nothing here (`check_settings`)."""


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the configuration of the text encoder in a folder that transformers has saved.

    Raises FileNotFoundError if there is no such folder, ValueError if it has no configuration, and UserError if that selects code.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is no folder; give one with {CONFIG} and the tokenizer, which are never downloaded"
        )
    check_model(str(folder))
    found = read_object(folder / CONFIG)
    values = without_keys(found, FORBIDDEN)
    config = parse_settings(values)
    if config.model_type == values["model_type"]:
        return values
    # A model of images and texts, such as CLIP, holds the configuration of its text encoder.
    return {**(values.get("text_config") or {}), "model_type": config.model_type}


def parse_settings(values: Mapping[str, Any]) -> PreTrainedConfig:
    """Return the configuration of a text encoder, or that of the texts in a model of images and texts.

    Raises ValueError if transformers has no such network, and UserError if a key is forbidden.
    """
    others = dict(values)
    check_settings(others, "model.text.kwargs", FORBIDDEN)
    kind = others.pop("model_type", None)
    try:
        config: Any = AutoConfig.for_model(kind, **others)
    except Exception as error:  # transformers raises many types for values that do not fit
        raise ValueError(
            f"transformers has no configuration of model_type {kind!r} with these values: {first_line(error, 200)}"
        ) from error
    config = config.get_text_config() if hasattr(config, "text_config") else config
    config.use_cache = False  # of decoders: keys and values of earlier tokens
    return config


def network_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class of a text encoder. Raises ValueError for networks that do not read token ids."""
    for mapping in (MODEL_FOR_TEXT_ENCODING_MAPPING, MODEL_MAPPING):
        if type(config) in mapping:
            found: Any = mapping[type(config)]
            kind: type[PreTrainedModel] = found[0] if isinstance(found, tuple) else found
            if kind.main_input_name == "input_ids":
                return kind
    name = type(config).__name__.removesuffix("Config") + "Model"  # such as SiglipTextModel, which has no entry above
    alone = getattr(transformers, name, None)
    if isinstance(alone, type) and issubclass(alone, PreTrainedModel) and alone.main_input_name == "input_ids":
        return alone
    raise ValueError(f"transformers has no text encoder of model_type {config.model_type!r}; give one, such as bert")


def text_part(network: PreTrainedModel, pooling: str) -> nn.Module:
    """The part of a network that computes the features: no decoder, and no pooler unless it is used.

    Parameters without effect would have no gradient, which DDP does not accept.
    """
    part: Any = network
    if hasattr(network, "encoder") and (hasattr(network, "shared") or hasattr(network, "decoder")):  # as in T5
        part = network.encoder
    if pooling != "pooler" and isinstance(getattr(part, "pooler", None), nn.Module):
        part.pooler = None
    assert isinstance(part, nn.Module)
    return part


def settings_of(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of an encoder as settings of a text tower.

    Args:
        values: as in `parse_settings`.

    Returns:
        `vocab_size`, `width`, `layers` and `heads`, as far as its configuration has them.

    Raises:
        ValueError: as in `parse_settings`.
    """
    config = parse_settings(values)
    sizes = {name: getattr(config, theirs, None) for name, theirs in SIZES.items()}
    return {name: size for name, size in sizes.items() if isinstance(size, int)}


def position_limit(network: nn.Module) -> int | None:
    """The number of positions that have an embedding, without those before the first token; None without a table."""
    for name, module in network.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2].startswith("position_embedding"):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return None


def context_limit(values: Mapping[str, Any]) -> int | None:
    """The largest context for which an encoder was built; None if nothing limits it. Allocates no weights."""
    config = parse_settings(values)
    with torch.device("meta"):
        limit = position_limit(build_network(config))
    limit = getattr(config, "max_position_embeddings", None) if limit is None else limit
    return limit if isinstance(limit, int) and limit > 0 else None


def build_network(config: PreTrainedConfig) -> PreTrainedModel:
    """Build a network with random weights in float32. Raises ValueError for settings with which it cannot be built."""
    try:
        return network_class(config)._from_config(config, dtype=torch.float32)
    except ValueError:
        raise
    except Exception as error:  # its type depends on the setting, such as KeyError for an unknown activation
        raise ValueError(
            f"transformers cannot build {config.model_type!r} with these values ({type(error).__name__}: "
            f"{first_line(error, 200)}); correct model.text.kwargs or {CONFIG}"
        ) from error


# Weights of text encoders in folders that transformers has saved. Only safetensors files are read.

WEIGHT_FILES: Final = ("model.safetensors", WEIGHTS_INDEX)


def pretrained_state(config: TextConfig) -> dict[str, Tensor]:
    """Return the weights in the folder `config.weights` as the state of `TransformersText.encoder`, in float32.

    Only safetensors files of the folder are read; nothing is downloaded, and no code of the folder runs.

    Args:
        config: a tower with `name` "transformers", `kwargs` and `weights`.

    Returns:
        State dict; weights that the tower does not use, such as those of a decoder, are left out.

    Raises:
        FileNotFoundError: the folder or its weights do not exist.
        ValueError: weights of the tower are missing, or the folder has them as a pickle alone. Errors of transformers
            pass through for weights of other shapes.
    """
    folder = Path(config.weights or "")
    check_weight_files(folder)
    settings = parse_settings(config.kwargs)
    kind: Any = network_class(settings)
    with quiet(), bounded_by_folder(folder):
        network, report = kind.from_pretrained(
            str(folder),
            config=settings,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
        )
    names = list(network.named_parameters(remove_duplicate=False))
    part = text_part(network, config.pooling)
    used = set(map(id, part.parameters()))
    missing = sorted({name for name, parameter in names if id(parameter) in used} & set(report["missing_keys"]))
    if missing:  # transformers gives them random values
        raise ValueError(
            f"{folder}: {len(missing)} weights are missing, such as {missing[0]}; save the model again, or change "
            "model.text.kwargs or model.text.pooling"
        )
    return part.state_dict()


@contextmanager
def quiet() -> Iterator[None]:
    """Let transformers log only errors and show no progress: weights that a tower does not use are no problem."""
    verbosity, shows_progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shows_progress:
            logging.enable_progress_bar()


def check_weight_files(folder: Path) -> None:
    """Raise an error unless the folder has weights as safetensors: FileNotFoundError, or ValueError for a pickle."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; give one with {CONFIG} and {WEIGHT_FILES[0]}")
    check_model(str(folder))
    if any((folder / name).is_file() for name in WEIGHT_FILES):
        return
    if pickles := sorted(path.name for path in folder.glob("*.bin")):
        raise ValueError(
            f"{folder} has its weights only as {pickles[0]}, a pickle, which could run code; convert it where you "
            f"trust it: transformers.AutoModel.from_pretrained(FOLDER).save_pretrained(FOLDER) writes {WEIGHT_FILES[0]}"
        )
    raise FileNotFoundError(f"{folder} has no {WEIGHT_FILES[0]}; save the model there with save_pretrained")
