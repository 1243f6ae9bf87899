"""GLIP weights on disk: released `.pth` files, and a folder of config.json, vocab.txt and model.safetensors."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from common.disk import atomic_write
from common.errors import UserError
from common.json_file import read_object, write_object
from common.weights import read_tensors, save_tensors
from pipeline.ground.glip.config import CONFIGS, GlipConfig, from_dict, to_dict
from pipeline.ground.glip.model import Glip
from pipeline.ground.hub import fetch, list_files, parse_hub_name, weight_file

WEIGHTS, CONFIG, VOCAB = "model.safetensors", "config.json", "vocab.txt"

# Derived buffers, the pooler that one converter keeps, and the head of a training objective: in some released files,
# and without effect on any result.
IGNORABLE = re.compile(
    r"rpn\.anchor_generator\.cell_anchors\.|\.relative_position_index$|\.position_ids$|\.pooler\.|rpn\.head\.mlm_head\."
)
UNUSED = ("rpn.head.cls_logits.weight", "rpn.head.cls_logits.bias")
MAX_NAMED, MAX_NAME_CHARS = 10, 200  # keys that an error lists


def load_glip(name: str | Path, config: GlipConfig | None = None) -> Glip:
    """The network of a folder, a weight file or `owner/name@commit[/file]` of the hub, in evaluation mode, float32.

    A released `.pth` does not say which graph it holds; without `config` its keys decide. Raises UserError for what is not the
    checkpoint it should be.
    """
    path = find(name)
    if path.is_dir():
        config = config or read_config(path / CONFIG)
        path = path / WEIGHTS
    if not path.is_file():
        raise UserError(f"{path} is not there; give a folder, a .safetensors or a .pth file")
    try:
        state = read_tensors(path)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error
    config = config or guess_config(state, path)
    try:
        with torch.device("meta"):  # what does not fit is refused before any memory is taken for it
            wanted = Glip(config).state_dict()
    except (ValueError, RuntimeError, ArithmeticError) as error:
        raise UserError(f"{path}: its configuration makes no network: {error}") from error
    checked = check_state(wanted, state, path)
    model = Glip(config)
    model.load_state_dict(checked)
    return model.eval()


def find(name: str | Path) -> Path:
    """The local folder or file of a name; files of a hub repository are fetched, at the commit that the name pins.

    A repository is a folder as `save_glip` writes it, or holds one weight file, or the name says which file is meant.
    """
    hub = parse_hub_name(str(name))
    if hub is None:
        return Path(name)
    files = [] if hub.file else list_files(hub)
    if CONFIG in files and WEIGHTS in files:
        return fetch(hub, [CONFIG, VOCAB, WEIGHTS])
    file = hub.file or weight_file(hub, files)
    path = fetch(hub, [file, VOCAB]) / file
    if not path.is_file():
        raise UserError(f"{hub.repository}@{hub.commit} holds no {file}, or it was not fetched before")
    return path


def find_vocabulary(name: str) -> Path:
    """The local vocab.txt of a file, folder or hub name."""
    hub = parse_hub_name(name)
    path = fetch(hub, [hub.file or VOCAB]) / (hub.file or VOCAB) if hub else Path(name)
    return path / VOCAB if path.is_dir() else path


def read_config(path: Path) -> GlipConfig:
    """The configuration of a folder."""
    try:
        values = read_object(path)
    except FileNotFoundError as error:
        raise UserError(f"{path} is not there: a GLIP folder holds {CONFIG}, {VOCAB} and {WEIGHTS}") from error
    except ValueError as error:
        raise UserError(str(error)) from error
    values.pop("thresholds", None)  # the pipeline's, calibrated on this model; no part of the network
    try:
        return from_dict(values)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def guess_config(state: Mapping[str, Tensor], path: Path) -> GlipConfig:
    """The released configuration whose fusion and image tower the keys show."""
    has_fusion = any(".b_attn." in key for key in state)
    embed = state.get("backbone.body.patch_embed.norm.weight")
    if embed is None:
        raise UserError(f"{path} is no GLIP checkpoint: backbone.body.patch_embed.norm.weight is missing")
    if embed.numel() == CONFIGS["glip_l"].backbone.channels[0] // 2:
        return CONFIGS["glip_l"]
    return CONFIGS["glip_t" if has_fusion else "glip_t_a"]


def check_state(wanted: Mapping[str, Tensor], state: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The weights that a network takes; anything missing, left over or of another shape is an error that lists it."""
    given = {key: value for key, value in state.items() if key in wanted or not IGNORABLE.search(key)}
    for key in UNUSED:
        if key in wanted and key in given and given[key].shape[1:] == wanted[key].shape[1:]:
            given[key] = torch.zeros(wanted[key].shape, device="cpu")  # any number of classes: nothing calls this layer
    problems = _list("missing", [key for key in wanted if key not in given])
    problems += _list("unknown", [key for key in given if key not in wanted])
    shapes = [
        f"{key} {tuple(value.shape)} instead of {tuple(wanted[key].shape)}"
        for key, value in given.items()
        if key in wanted and value.shape != wanted[key].shape
    ]
    problems += _list("of another shape", shapes)
    # `expand` and its like describe more numbers than they hold: only what fits is looked into
    fitting = {key: value for key, value in given.items() if key in wanted and value.shape == wanted[key].shape}
    problems += _list(
        "no floating-point numbers", [key for key, value in fitting.items() if not value.is_floating_point()]
    )
    strange = [key for key, value in fitting.items() if not torch.isfinite(value).all()]
    problems += _list("not finite", strange)
    if problems:
        raise UserError(f"{path} does not fit the GLIP configuration: {'; '.join(problems)}")
    return given


def _list(what: str, keys: list[str]) -> list[str]:
    if not keys:
        return []
    named = [key if key.isprintable() else ascii(key) for key in keys[:MAX_NAMED]]
    more = f" and {len(keys) - MAX_NAMED} more" if len(keys) > MAX_NAMED else ""
    return [f"{len(keys)} {what}: {', '.join(name[:MAX_NAME_CHARS] for name in named)}{more}"]


def save_glip(
    folder: Path, state: Mapping[str, Tensor], config: GlipConfig, vocab: Path, dtype: torch.dtype = torch.float16
) -> None:
    """Write a folder that `load_glip` reads; each file appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {key: value.to(dtype).contiguous() if value.is_floating_point() else value for key, value in state.items()}
    write_object(to_dict(config), folder / CONFIG)
    if vocab.resolve() != (folder / VOCAB).resolve():
        with atomic_write(folder / VOCAB) as draft:
            draft.write_bytes(vocab.read_bytes())
    save_tensors(stored, folder / WEIGHTS)
