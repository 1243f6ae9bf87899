"""GLIP weights on disk: released `.pth` files, and folders of config.json, vocab.txt and model.safetensors."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from hypergrit_common.disk import atomic_write
from hypergrit_common.errors import UserError, prefixed
from hypergrit_common.json_file import read_object, write_object
from hypergrit_common.text import shortened
from hypergrit_common.weights import bounded, read_tensors, save_tensors
from pipeline.models import fetch, list_files, local_model, parse_hub_name, weight_file
from pipeline.stages.ground.glip.config import CONFIGS, GlipConfig, from_dict
from pipeline.stages.ground.glip.model import Glip

WEIGHTS, CONFIG, VOCAB = "model.safetensors", "config.json", "vocab.txt"

# Keys that some released files contain but no result depends on: derived buffers, a pooler that one converter keeps,
# and the head of a training objective.
IGNORABLE = re.compile(
    r"rpn\.anchor_generator\.cell_anchors\.|\.relative_position_index$|\.position_ids$|\.pooler\.|rpn\.head\.mlm_head\."
)
UNUSED = ("rpn.head.cls_logits.weight", "rpn.head.cls_logits.bias")
MAX_LISTED, MAX_KEY_CHARS = 10, 200  # maximum number of keys in an error message, and maximum length of each


def load_glip(name: str | Path, config: GlipConfig | None = None) -> Glip:
    """Load a network in evaluation mode and float32, on the CPU.

    Args:
        name: a folder, a weight file or `owner/name@commit[/file]` on the hub.
        config: architecture; None: that in the config.json of a folder, or of a released file the one that fits its
            tensors.

    Returns:
        The network.

    Raises:
        UserError: a file is missing or damaged, or the weights do not fit the configuration.
    """
    path = find_weights(name)
    if path.is_dir():
        config = config or read_glip_config(path / CONFIG)
        path = path / WEIGHTS
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a folder, a .safetensors or a .pth file")
    try:
        state = read_tensors(path)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error
    config = config or guess_config(state, path)
    try:
        with torch.device("meta"), bounded(path, len(state)):  # check that the weights fit before allocating memory
            expected = Glip(config).state_dict()
    except (ValueError, RuntimeError, ArithmeticError) as error:
        raise UserError(f"{path}: no network can be built from its configuration: {error}") from error
    checked = check_state(expected, state, path)
    model = Glip(config)
    model.load_state_dict(checked)
    return model.eval()


def find_weights(name: str | Path) -> Path:
    """Return the local folder or weight file of a path or hub name; files of a hub name are downloaded.

    The repository must contain the files that `save_glip` writes or exactly one weight file; otherwise the name must
    include the file. Raises UserError if no weight file is found.
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
        raise UserError(
            f"{hub.repository}@{hub.commit} holds no {file}, or the file is not cached and the hub cannot be reached; "
            "check the file name and the network"
        )
    return path


def find_vocabulary(vocabulary: str | None, weights: Path) -> Path:
    """Return the local path of a vocabulary: a file, a folder that contains vocab.txt, a URL, or a hub name.

    Without `vocabulary`, it is the vocab.txt beside `weights`, the result of `find_weights`. Does not check the file;
    `Prompter` does.
    """
    if not vocabulary:
        return (weights if weights.is_dir() else weights.parent) / VOCAB
    vocabulary = local_model(vocabulary)
    hub = parse_hub_name(vocabulary)
    path = fetch(hub, [hub.file or VOCAB]) / (hub.file or VOCAB) if hub else Path(vocabulary)
    return path / VOCAB if path.is_dir() else path


def read_glip_config(path: Path) -> GlipConfig:
    """Read the config.json of a folder. Raises UserError if it is missing or not a configuration of GLIP."""
    try:
        values = read_object(path)
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; a GLIP folder holds {CONFIG}, {VOCAB} and {WEIGHTS}") from error
    except ValueError as error:
        raise UserError(str(error)) from error
    values.pop("thresholds", None)  # calibrated thresholds of the pipeline; not a part of the network
    with prefixed(f"{path}: "):
        return from_dict(values)


def guess_config(state: Mapping[str, Tensor], path: Path) -> GlipConfig:
    """Return the released configuration of these weights, determined from their fusion layers and image tower.

    Raises UserError naming `path` if they do not belong to a released GLIP.
    """
    has_fusion = any(".b_attn." in key for key in state)
    embed = state.get("backbone.body.patch_embed.norm.weight")
    if embed is None:
        raise UserError(
            f"{path} is not a GLIP checkpoint: backbone.body.patch_embed.norm.weight is missing; give the folder of a "
            "trained GLIP, or a released .pth or .safetensors file"
        )
    if embed.numel() == CONFIGS["glip_l"].backbone.channels[0] // 2:
        return CONFIGS["glip_l"]
    return CONFIGS["glip_t" if has_fusion else "glip_t_a"]


def check_state(expected: Mapping[str, Tensor], state: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return the tensors of `state` to load into a network whose state dict is `expected`.

    Raises UserError listing missing and unknown keys, wrong shapes, and tensors that are not floating-point or not
    finite.
    """
    found = {key: value for key, value in state.items() if key in expected or not IGNORABLE.search(key)}
    for key in UNUSED:
        if key in expected and key in found and found[key].shape[1:] == expected[key].shape[1:]:
            # The layer is never called, so its number of classes does not matter.
            found[key] = torch.zeros(expected[key].shape, device="cpu")
    problems = _list_keys("missing", [key for key in expected if key not in found])
    problems += _list_keys("unknown", [key for key in found if key not in expected])
    wrong_shapes = [
        f"{key} {tuple(value.shape)} instead of {tuple(expected[key].shape)}"
        for key, value in found.items()
        if key in expected and value.shape != expected[key].shape
    ]
    problems += _list_keys("of another shape", wrong_shapes)
    # Values are read only if the shape fits, because a small file can contain a huge expanded tensor.
    fitting = {key: value for key, value in found.items() if key in expected and value.shape == expected[key].shape}
    problems += _list_keys(
        "not floating-point", [key for key, value in fitting.items() if not value.is_floating_point()]
    )
    problems += _list_keys("not finite", [key for key, value in fitting.items() if not torch.isfinite(value).all()])
    if problems:
        raise UserError(f"{path} does not fit the GLIP configuration: {'; '.join(problems)}")
    return found


def _list_keys(problem: str, keys: list[str]) -> list[str]:
    """Return the part of an error message that lists the keys with a problem; [] if there are none."""
    if not keys:
        return []
    printable = [(key if key.isprintable() else ascii(key))[:MAX_KEY_CHARS] for key in keys]
    return [f"{len(keys)} {problem}: {shortened(printable, MAX_LISTED, ', ')}"]


def save_glip(
    folder: Path, state: Mapping[str, Tensor], config: GlipConfig, vocab: Path, dtype: torch.dtype = torch.float16
) -> None:
    """Write a folder that `load_glip` reads, each file atomically. Floating-point weights are stored as `dtype`."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {key: value.to(dtype).contiguous() if value.is_floating_point() else value for key, value in state.items()}
    write_object(asdict(config), folder / CONFIG)
    if vocab.resolve() != (folder / VOCAB).resolve():
        with atomic_write(folder / VOCAB) as draft:
            draft.write_bytes(vocab.read_bytes())
    save_tensors(stored, folder / WEIGHTS)
