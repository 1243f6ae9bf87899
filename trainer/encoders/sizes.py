"""Settings of a model that follow from the towers that it selects: their sizes, vocabulary and context."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hypergrit_common.config import Layer, last_value, merged
from hypergrit_common.errors import UserError
from trainer.encoders.config import OPEN_CLIP, TRANSFORMERS, TextConfig

NEEDED: Final = (
    f"model.text.name={TRANSFORMERS} needs model.text.weights=FOLDER, or tokenizer=FOLDER for random weights; "
    "FOLDER holds config.json and the files of the tokenizer"
)


def tower_sizes(layers: Sequence[Layer]) -> list[Layer]:
    """Return layers with the settings of the towers of open_clip and transformers that `layers` select.

    They are merged before `layers`, which override them.

    Args:
        layers: configuration files and arguments, in order of increasing precedence.

    Returns:
        No, one or two layers: sizes of open_clip, and `transformers_settings`.

    Raises:
        UserError: a tower is unknown or not supported, or a folder of transformers is missing or cannot be used.
    """
    names = {part: chosen(layers, f"model.{part}.name") for part in ("image", "text")}
    found: list[Layer] = []
    if sized := {part: name for part, name in names.items() if str(name).startswith(OPEN_CLIP)}:
        from trainer.encoders.open_clip_towers import architecture_sizes  # importing open_clip takes seconds

        try:
            sizes = architecture_sizes(sized.get("image"), sized.get("text"), chosen(layers, "model.text.kwargs"))
        except (ValueError, TypeError) as error:
            raise UserError(f"model.{error}") from None
        found.append(({"model": sizes}, "open_clip"))
    if names["text"] == TRANSFORMERS:
        try:
            found.append((transformers_settings(layers), TRANSFORMERS))
        except (OSError, ValueError) as error:
            raise UserError(f"model.text: {error}") from error
    return found


def transformers_settings(layers: Sequence[Layer]) -> dict[str, Any]:
    """The settings of a text tower of transformers: tokenizer, sizes, padding, and its configuration.

    Raises UserError if the layers name no folder, and ValueError or OSError for one that cannot be used.
    """
    from trainer.encoders.transformers_text import context_limit, read_settings, settings_of  # takes seconds
    from trainer.text.fast_tokenizer import read_fast_tokenizer

    weights, tokenizer = chosen(layers, "model.text.weights"), chosen(layers, "tokenizer")
    own = chosen(layers, "model.text.kwargs")
    kwargs: dict[str, Any] = dict(own) if isinstance(own, Mapping) else {}
    folder = weights or tokenizer
    if folder is None:
        raise UserError(NEEDED)
    if "model_type" not in kwargs:
        kwargs = merged(read_settings(Path(folder)), kwargs)
    limit = context_limit(kwargs)
    length = TextConfig.context_length if limit is None else min(TextConfig.context_length, limit)
    found = read_fast_tokenizer(Path(tokenizer or folder), length)
    text = {**settings_of(kwargs), "context_length": length, "pad_id": found.pad_id, "kwargs": kwargs}
    return {"tokenizer": str(tokenizer or folder), "model": {"text": text}}


def chosen(layers: Sequence[Layer], key: str) -> Any:
    """The value of a key in the last layer that sets it, groups merged, as plain values; None without one."""
    value: Any = None
    for layer in layers:
        found = last_value([layer], key)
        value = merged(value, found) if isinstance(value, dict) and isinstance(found, dict) else found or value
    return value
