"""Models on disk: folders written by the trainer, and the released checkpoint files.

A folder holds config.json, model.safetensors and, unless the tokenizer is OpenAI's, its merges.txt or tokenizer.json. A
checkpoint of a run is read as the folder that the run would have written.
"""

import dataclasses
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import torch
from timm.layers import resample_abs_pos_embed, resize_rel_pos_bias_table
from torch import Tensor, nn

from hypergrit_common.config import from_plain
from hypergrit_common.errors import UserError
from hypergrit_common.json_file import read_object, write_object
from hypergrit_common.lazy import is_plugin
from hypergrit_common.text import shortened
from hypergrit_common.urls import clean
from hypergrit_common.weights import read_tensors, save_tensors
from trainer.batch import to_half
from trainer.checkpoints.folder import MARK, TENSORS
from trainer.checkpoints.hyper3 import FolderParts, is_hyper3, read_hyper3, read_saved
from trainer.checkpoints.open_clip_layout import CONFIG_FILE, read_open_clip
from trainer.checkpoints.skeleton import skeleton
from trainer.checkpoints.tokenizer_files import OPENAI, load_tokenizer, named_tokenizer, write_tokenizer
from trainer.checkpoints.towers import (
    COPY,
    WEIGHTS,
    attach_tower,
    cached_towers,
    plain_settings,
    renamed_tower,
    weights_sha256,
)
from trainer.data.preprocess import PreprocessConfig
from trainer.encoders.config import PAPER_VITS, ImageConfig, TextConfig
from trainer.encoders.text import TextTower, stretch_positions
from trainer.models.config import ModelConfig
from trainer.models.dual_encoder import DualEncoder
from trainer.models.registry import MODELS, build_model, model_name, parse_config, use_model
from trainer.optim.config import LoRAConfig, check_matched, longest_match
from trainer.optim.freeze import merged_state, merged_tensors
from trainer.text.base import TextTokenizer
from trainer.text.tokenizer import openai_tokenizer

logger = logging.getLogger(__name__)

POSITIONS: Final = ("pos_embed", "positional_embedding")
BIASES: Final = "relative_position_bias_table"
PATCHES: Final = ("patch_embed.proj.weight", "conv1.weight")
"""Ends of the names of a transformer's positions, biases by relative positions and patches, in timm and open_clip."""

FORMAT: Final = 1
REQUIRED_KEYS: Final = {"model": str, "config": dict, "tokenizer": str, "preprocess": dict}
"""Keys of config.json and the types of their values."""


class StateError(ValueError):
    """A state dict does not fit a module. `entries` are the names of those that are missing, unknown or misshapen."""

    def __init__(self, message: str, entries: Sequence[str]) -> None:
        super().__init__(message)
        self.entries = entries


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model for inference, with its tokenizer and the preprocessing of its images.

    `config` is the content of the folder's config.json; empty for a released file.
    """

    model: DualEncoder
    tokenizer: TextTokenizer
    preprocess: PreprocessConfig
    config: dict[str, Any]


def save_model(
    folder: Path,
    model: DualEncoder,
    *,
    tokenizer: TextTokenizer,
    preprocess: PreprocessConfig,
    record: dict[str, Any],
    half: bool = False,
    tower: LoadedModel | Path | None = None,
) -> None:
    """Write a folder that `load_model` reads.

    `record` documents the training and the results of the model; its URLs are written without secrets, and its paths and
    those of initial weights without folders. `half` stores matrices in float16; scalars, gains and
    biases keep their type. `tower` is the frozen model of a head, to copy, or the path by which the head names it;
    None: that of its training. Raises OSError if the folder cannot be written, and NotFiniteError for a weight that
    float16 cannot hold.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = plain_settings(model)
    if isinstance(tower, Path):
        settings = renamed_tower(settings, str(tower))
    elif tower:
        parts = {"tokenizer": tower.tokenizer, "preprocess": tower.preprocess, "record": {}}
        save_model(folder / COPY, tower.model, **parts, half=half)  # type: ignore[arg-type]
        settings = renamed_tower(settings, COPY, model=None, sha256=weights_sha256(folder / COPY))
    config = {
        "format": FORMAT,
        "model": model_name(model),
        "config": settings,
        "tokenizer": write_tokenizer(tokenizer, folder),
        "preprocess": {**dataclasses.asdict(preprocess), "interpolation": "bicubic", "antialias": True},
        "record": clean(record, strip_query=True, strip_folders=True),
    }
    matrices = {name for name, parameter in model.named_parameters() if parameter.ndim > 1} if half else set()
    tensors = {
        key: (to_half(value, f"rows of {key}") if key in matrices else value).detach().cpu().contiguous()
        for key, value in merged_state(model).items()
    }
    save_tensors(tensors, folder / "model.safetensors")
    write_object(config, folder / "config.json")


def load_model(
    path: Path | str, name: str | None = None, tower: Path | str | None = None, trust: Sequence[str] = ()
) -> LoadedModel:
    """Load a model in float32 and evaluation mode: a run, its model/, a checkpoint, open_clip's folder, or a `.pth` file.

    `tower` is the frozen model of a head over cached features, if it is not where the head was trained.
    `name` is the model of a released file, such as "meru": MERU and HyCoCLIP files have the same layout. A folder names
    its model, and a `name` that contradicts it is an error. `trust` has the classes of the user, `module:Class`, that a
    folder may name, also that of the tower: code that only a file names is not loaded. Raises ValueError for files that
    do not fit, and OSError for files that cannot be read.
    """
    path = model_folder(Path(path))
    if path.is_dir():
        if is_plugin(name):
            raise ValueError(f'{path} names its model itself: in place of the name {name}, give trust=["{name}"]')
        loaded = load_folder(path, trust)
        if name not in (None, found := model_name(loaded.model)):
            raise ValueError(f"{path} holds a {found} model, not {name}; give model_name={found}, or omit it")
        if tower is not None and not cached_towers(loaded.model):
            raise ValueError(f"{path} is no head on cached features, so it takes no tower={tower}; omit it")
        given = None if tower is None else model_folder(Path(tower))
        attach_tower(loaded.model, partial(load_frozen, trust=trust), [path], given)
        return loaded
    if saved := read_saved(path):
        return from_parts(saved, path)
    if name is not None:
        use_model(name)
    state = read_weights(path)
    if name is None or name not in MODELS:
        raise ValueError(
            f"{path}: a released checkpoint does not name its model; give model_name, one of {', '.join(MODELS)}"
        )
    model = build_model(name, infer_config(state, name, path))
    load_state(model, state, path)
    return LoadedModel(model=model.eval(), tokenizer=openai_tokenizer(), preprocess=PreprocessConfig(), config={})


def load_frozen(path: Path, name: str | None, trust: Sequence[str] = ()) -> LoadedModel:
    """Load the frozen model of a head. A `name` module:Class, of a released file, is imported only if `trust` lists it."""
    if path.is_dir() or name is None:
        return load_model(path, trust=trust)
    parse_config(name, {}, path, trust)  # refuses a class that `trust` does not list, before `load_model` imports it
    return load_model(path, name)


def model_folder(path: Path) -> Path:
    """The folder with the model of a run; other paths are returned as they are.

    Raises FileNotFoundError for a run that has not finished.
    """
    run = path.parent if path.name == "model" and not path.exists() else path
    if (run / "config.json").is_file():
        return run
    if (run / "model" / "config.json").is_file():
        return run / "model"
    if (run / "checkpoints").is_dir():
        raise FileNotFoundError(
            f"{run} is a training run that has not finished, so it has no folder model/ yet; repeat its command, which "
            "resumes it, or give one of its checkpoints/"
        )
    return path


def load_folder(folder: Path, trust: Sequence[str] = ()) -> LoadedModel:
    """Load a folder written by `save_model`, or by open_clip. Errors as in `load_model`."""
    if (folder / CONFIG_FILE).is_file():  # first: on the hub, a config.json of transformers may be beside it
        return from_parts(read_open_clip(folder, trust), folder)
    if saved := read_saved(folder):
        return from_parts(saved, folder)
    if is_checkpoint := (folder / MARK).is_file():
        source, (config, state) = folder / MARK, read_checkpoint(folder)
    else:
        for file in ("config.json", WEIGHTS):
            if not (folder / file).is_file():
                raise FileNotFoundError(
                    f"{folder}: {file} is missing; give the folder of a run, its folder model/, or one of its checkpoints"
                )
        config = read_object(source := folder / "config.json")
        if is_hyper3(config):
            return from_parts(read_hyper3(folder, config), folder)
        state = {}
    if config.get("format") != FORMAT:
        raise ValueError(
            f"{folder} has format {config.get('format')}, but this version reads format {FORMAT}; load it with the "
            "version that saved it"
        )
    invalid = [key for key, kind in REQUIRED_KEYS.items() if not isinstance(config.get(key), kind)]
    if invalid:
        raise ValueError(
            f"{source}: {invalid[0]!r} is missing or has the wrong type; copy the folder again, or save the model again"
        )
    weights = folder / (TENSORS if is_checkpoint else WEIGHTS)
    state = state or read_tensors(weights)
    parsed = parse_config(config["model"], config["config"], folder, trust)
    model = fitted(skeleton(config["model"], parsed, state, folder), state, weights)
    if is_checkpoint:
        model.begin_step(config["record"]["steps"])
        if (name := config["tokenizer"]) not in (OPENAI, *trust):
            raise ValueError(f"{source} names the tokenizer {name}; give trust=[{name}] if it may be read")
        tokenizer = named_tokenizer(name, model.config.text)
    else:
        tokenizer = load_tokenizer(config["tokenizer"], folder, model.config.text)
    try:
        values = {key: config["preprocess"][key] for key in ("size_px", "mode")}
        preprocess = cast(PreprocessConfig, from_plain(PreprocessConfig, values, "preprocess"))
    except UserError as error:
        raise ValueError(f"{source}: {error}") from error
    except KeyError as error:
        raise ValueError(
            f"{source}: {error} is missing in 'preprocess'; copy the folder again, or save the model again"
        ) from error
    return LoadedModel(model=model.eval(), tokenizer=tokenizer, preprocess=preprocess, config=config)


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config.json and the weights that the model/ of a run would have at a checkpoint: averaged if the run averages.

    Raises OSError and ValueError.
    """
    saved = read_object(folder / MARK)
    try:
        run, step = saved["config"], saved["step"]
        config = {
            key: run[name] for key, name in (("model", "model_name"), ("config", "model"), ("tokenizer", "tokenizer"))
        }
        preprocess = {**dataclasses.asdict(PreprocessConfig()), "size_px": run["model"]["image"]["size_px"]}
        lora = cast(LoRAConfig, from_plain(LoRAConfig, run["lora"], "lora"))
        if type(step) is not int or not 0 <= step < 1 << 60:
            raise TypeError(f"the step is {step!a:.40}")
    except (KeyError, TypeError, UserError) as error:
        raise ValueError(
            f"{folder / MARK} is damaged or of another program ({error!a:.200}); give another checkpoint"
        ) from None
    if not (folder / TENSORS).is_file():
        raise FileNotFoundError(
            f"{folder} has its weights in one part for each rank (save.sharded=true); give the model/ of the finished run"
        )
    tensors = read_tensors(folder / TENSORS)
    state = {
        name.removeprefix(part): value
        for part in ("model/", "average/")
        for name, value in tensors.items()
        if name.startswith(part)
    }
    facts = {"format": saved.get("format"), "preprocess": preprocess, "record": {"steps": step, "training": run}}
    try:
        return config | facts, merged_tensors(state, lora)
    except ValueError as error:
        raise ValueError(f"{folder / TENSORS}: {error}; give another checkpoint") from None


def from_parts(found: FolderParts, folder: Path) -> LoadedModel:
    """The model of a folder in the layout of another project, with its weights. Errors as in `load_state`."""
    model = fitted(found.model, found.state, folder)
    parts = {"tokenizer": found.tokenizer, "preprocess": found.preprocess, "config": found.config}
    return LoadedModel(model=model.eval(), **parts)  # type: ignore[arg-type]


def fitted(model: DualEncoder, state: Mapping[str, Tensor], source: Path) -> DualEncoder:
    """The model of a `skeleton` with its weights. Nothing is allocated before they fit. Errors as in `load_state`.

    Entries of `state` that are those of the skeleton keep the values that a new model has.
    """
    name = model_name(model)
    check_fits(model.state_dict(), state, f"{source} does not fit a {name} model")
    if any(value.is_meta for value in model.state_dict().values()):
        model = build_model(name, model.config)
    own = model.state_dict()
    load_state(model, {key: own[key] if value.is_meta else value for key, value in state.items()}, source)
    return model


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the state dict of a run, of its folder model/, of a checkpoint or of a released file, in the trainer's layout.

    Raises OSError for a file that cannot be read, and ValueError for a file without a state dict.
    """
    path = model_folder(path)
    if (path / MARK).is_file():
        return read_checkpoint(path)[1]
    if path.is_dir():
        return read_tensors(path / WEIGHTS)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give the folder of a run, or a .pth file")
    return from_released(read_tensors(path))


# Convert state dicts of the released checkpoints to those of this trainer.
#
# The layouts differ in four ways. Released files hold the causal mask of the text tower as a buffer; this trainer's
# models have no such entry. PHyCLIP's curvatures and alphas are released as one scalar entry per factor (`curvs.0`, ...);
# here they are vectors. PHyCLIP's files also hold MERU's own `curv` and alphas, which its model does not use.
#
# UNCHA's files also hold a temperature and a linear layer of the text tower that its loss does not use.
#
# The entries of MERU and HyCoCLIP have the same names, so a file does not show which of the two models it contains.

FACTOR_SCALARS: Final = {
    "curv": "curvs",
    "visual_alpha": "visual_concept_alphas",
    "textual_alpha": "textual_concept_alphas",
}
"""Name of a vector in this trainer's state dict -> stem of the released scalar entries."""

MASK: Final = "textual.attn_mask"
UNUSED: Final = ("logit_scale", "textual.min_radius_head.0.weight", "textual.min_radius_head.0.bias")
"""Entries of UNCHA's files that have no gradient in its released code."""


def from_released(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert a released state dict to this trainer's layout. Raises ValueError if the entry of a factor is missing."""
    converted = dict(state)
    converted.pop(MASK, None)
    if "global_logit_scale" in converted:
        converted = {key: value for key, value in converted.items() if key not in UNUSED}
    if "curvs.0" in converted:
        for name, stem in FACTOR_SCALARS.items():
            entries = {int(key.rpartition(".")[2]): key for key in converted if re.fullmatch(rf"{stem}\.\d+", key)}
            if sorted(entries) != list(range(len(entries))):
                raise ValueError(
                    f"{stem}: the entries are numbered {sorted(entries)} instead of 0, 1, ...; the file is damaged, "
                    "download it again"
                )
            converted[name] = torch.stack([converted.pop(entries[index]) for index in range(len(entries))])
    return converted


def load_state(model: DualEncoder, state: Mapping[str, Tensor], source: Path, skip: Sequence[str] = ()) -> None:
    """Copy a state dict into a model. Entries that a pattern of `skip` matches keep their values, and need not exist.

    Those of the file that match need not exist in the model either. Raises ValueError, naming `source`, unless all other
    names and shapes are equal, or if a pattern matches nothing.
    """
    current = model.state_dict()
    check_matched(skip, [*current, *state])
    kept = {key: value for key, value in current.items() if longest_match(skip, key) is not None}
    wanted = {key: value for key, value in state.items() if longest_match(skip, key) is None}
    copy_state(model, wanted | kept, f"{source} does not fit a {model_name(model)} model")


def copy_state(module: nn.Module, state: Mapping[str, Tensor], message: str) -> None:
    """Copy a state dict into a module.

    Raises StateError if names or shapes differ. The error begins with `message` and names one missing, one unknown and
    one misshapen entry.
    """
    expected = module.state_dict()
    check_fits(expected, state, message)
    if broken := [key for key in sorted(expected) if not torch.isfinite(state[key]).all()]:
        raise ValueError(
            f"{message}: {len(broken)} entries have values that are NaN or infinite: {shortened(broken, 5)}; take an earlier "
            "checkpoint, or copy the file again"
        )
    with torch.no_grad():
        for key, value in expected.items():
            value.copy_(state[key])


def check_fits(expected: Mapping[str, Tensor], state: Mapping[str, Tensor], message: str) -> None:
    """Raise StateError, as `copy_state` says, if the names or shapes of a state dict are not the expected ones."""
    missing, unknown = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    misshapen = sorted(key for key in expected.keys() & state.keys() if expected[key].shape != state[key].shape)
    if missing or unknown or misshapen:
        problems = [f"{len(missing)} entries missing, such as {missing[0]}"] if missing else []
        problems += [f"{len(unknown)} unknown entries, such as {unknown[0]}"] if unknown else []
        problems += [f"{key} is {list(state[key].shape)}, not {list(expected[key].shape)}" for key in misshapen[:1]]
        raise StateError(f"{message}: {'; '.join(problems)}", [*missing, *unknown, *misshapen])


def stretched(tower: TextTower, config: TextConfig, state: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """The state dict with the position embeddings of a text tower stretched to its context, as `stretch_after` says.

    The entries of the tower begin with `prefix`.
    """
    name, length, kept = f"{prefix}{tower.positions}", config.context_length, config.stretch_after
    table = state.get(name)
    if kept is None or table is None or not kept + 1 < len(table) < length:
        return dict(state)
    return {**state, name: stretch_positions(table, length, kept)}


def resized(tower: nn.Module, state: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """The state dict of an image tower for images of another size: its learned grid of positions is interpolated.

    Tokens before the grid, such as the class token, keep their positions; fixed positions are those of the new size, and
    biases by relative positions (BEiT) are resized as timm does. The entries of the tower begin with `prefix`. Raises
    ValueError for patches of another size.
    """
    found = dict(state)
    for name, parameter in tower.named_parameters():
        key, new = f"{prefix}{name}", parameter.shape
        old = found[key].shape if key in found else new
        if name.endswith(PATCHES) and old[:2] == new[:2] and old[2:] != new[2:]:
            raise ValueError(
                f"{key} has patches of {old[-1]} pixels, and the model those of {new[-1]}: weights of patches cannot be "
                "interpolated without loss; give a network with the same patches, or another image size"
            )
        if old == new or old[-1] != new[-1]:
            continue
        if name.endswith(BIASES):
            window: Any = tower.get_submodule(name.rpartition(".")[0]).window_size
            found[key] = resize_rel_pos_bias_table(found[key], window, tuple(new))
        side = math.isqrt(new[-2])
        n_kept = new[-2] - side**2
        if name.endswith(POSITIONS) and old[-2] > n_kept:
            before = math.isqrt(old[-2] - n_kept)
            if not parameter.requires_grad:
                found[key] = parameter.detach()
            elif before**2 + n_kept == old[-2]:
                grid = found[key].reshape(1, *old[-2:])
                found[key] = resample_abs_pos_embed(grid, [side, side], [before, before], n_kept).reshape(new)
                logger.info("%s is interpolated from %d x %d to %d x %d patches", key, before, before, side, side)
    return found


def infer_config(state: Mapping[str, Tensor], name: str, source: Path) -> ModelConfig:
    """Infer the sizes of a released model from the shapes of its weights.

    Raises ValueError, naming `source`, if the sizes are not those of a released model.
    """
    try:
        width, patch = state["visual.cls_token"].shape[-1], state["visual.patch_embed.proj.weight"].shape[-1]
        side = round((state["visual.pos_embed"].shape[1] - 1) ** 0.5)
        layers = len({key.split(".")[2] for key in state if key.startswith("textual.resblocks.")})
        vocab_size, text_width = state["textual.token_embed.weight"].shape
        context_length = len(state["textual.posit_embed"])
        embed_dim = len(state["visual_proj.weight"])
    except KeyError as error:
        raise ValueError(
            f"{source}: entry {error} is missing, and the file has {shortened(sorted(state), 3, ', ')}; give a checkpoint that "
            "the authors of one of the models released, or the folder of a run"
        ) from error
    tower = next((key for key, value in PAPER_VITS.items() if value["embed_dim"] == width), None)
    if tower is None:
        raise ValueError(
            f"{source}: the image tower has width {width}, which no released model has; give a released file"
        )
    text = TextConfig(
        vocab_size=vocab_size, context_length=context_length, width=text_width, layers=layers, heads=text_width // 64
    )
    image = ImageConfig(name=tower, size_px=side * patch)
    config, extra = MODELS[name].config, dict[str, Any]()
    if hasattr(config, "factor_dim"):
        if state.get("curv", torch.tensor(0.0)).ndim != 1:
            raise ValueError(
                f"{source}: the file has no factors, so its model is not {name}; try a model without factors"
            )
        extra["factor_dim"] = embed_dim // len(state["curv"])
    return config(image=image, text=text, embed_dim=embed_dim, **extra)
