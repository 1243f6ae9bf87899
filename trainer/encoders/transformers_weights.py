"""Weights of text encoders in folders that transformers has saved. Only safetensors files are read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers.utils import logging

from common.files import check_folder_files
from common.json_file import read_object
from trainer.encoders.config import TextConfig
from trainer.encoders.transformers_network import CONFIG_FILE, network_class, parse_settings, text_part

WEIGHT_FILES: Final = ("model.safetensors", "model.safetensors.index.json")


def pretrained_state(config: TextConfig) -> dict[str, Tensor]:
    """Return the weights in the folder `config.weights` as the state of `TransformersText.encoder`, in float32.

    Raises OSError if the folder has no weights, and ValueError for weights that are incomplete, do not fit or are a pickle.
    """
    folder = Path(config.weights or "")
    check_weight_files(folder)
    settings = parse_settings(config.kwargs)
    kind: Any = network_class(settings)
    with quiet():
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
        raise FileNotFoundError(f"{folder} is no folder; give one with {CONFIG_FILE} and {WEIGHT_FILES[0]}")
    check_folder_files(folder)
    single, index = (folder / name for name in WEIGHT_FILES)
    if single.is_file():
        return
    if index.is_file():
        check_index(index)
        return
    if pickles := sorted(path.name for path in folder.glob("*.bin")):
        raise ValueError(
            f"{folder} has its weights only as {pickles[0]}, a pickle, which could run code; convert it where you trust it: "
            f"transformers.AutoModel.from_pretrained(FOLDER).save_pretrained(FOLDER) writes {WEIGHT_FILES[0]}"
        )
    raise FileNotFoundError(f"{folder} has no {WEIGHT_FILES[0]}; save the model there with save_pretrained")


def check_index(path: Path) -> None:
    """Raise ValueError unless an index of weights names safetensors files of its folder alone."""
    weight_map = read_object(path).get("weight_map")
    names = set(weight_map.values()) if isinstance(weight_map, dict) else {None}
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise ValueError(
                f"{path} names the file {name!r}; weights are read from safetensors files of the same folder only"
            )
