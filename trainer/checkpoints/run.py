"""Checkpoints of a training run: everything that the next step depends on. Listed and restored, without pickle.

    checkpoints/step_00001000/
        state.safetensors   model/NAME, average/NAME for the moving average of parameter NAME if the run has one, and
                            optimizer/KEY/NAME for the optimizer's state of parameter NAME; with save.sharded, instead,
                            a file shard-*.safetensors of each rank, whose header has the places of its shards
        state.json          step, configuration, state of the gradient scaler, number of ranks and of the threads of each,
                            names of these files
        rank_00000.json     for each rank: state of the random number generators and of the data loader

`trainer.checkpoints.writer` writes a draft folder, which is renamed once all files are on the disk. A folder named
step_* therefore never holds a partly written checkpoint.
"""

import base64
import logging
import os
import random
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed import checkpoint
from torch.distributed.checkpoint import HuggingFaceStorageReader

from hypergrit_common.devices import THREADS
from hypergrit_common.errors import UserError
from hypergrit_common.json_file import read_object
from hypergrit_common.text import shortened
from trainer.checkpoints.folder import MARK, TENSORS
from trainer.distributed.process import Process
from trainer.models.dual_encoder import DualEncoder
from trainer.optim.optimizer import Average

# The state of the random number generators of Python, numpy and torch, as JSON.


def seed_generators(seed: int) -> None:
    """Seed the generators of Python, numpy and torch, on all devices."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (libraries may use the global generator)
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of the generators of Python, numpy, torch and `device`."""
    generator = np.random.get_state(legacy=False)  # noqa: NPY002 (libraries may use the global generator)
    assert isinstance(generator, dict)
    inner = {**generator["state"], "key": generator["state"]["key"].tolist()}
    return {
        "python": random.getstate(),
        "numpy": {**generator, "state": inner},
        "torch": encode(torch.get_rng_state()),
        "cuda": encode(torch.cuda.get_rng_state(device)) if device.type == "cuda" else None,
    }


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore a `random_state`. The generator of a GPU is restored only if it was saved on a GPU.

    Raises LookupError, TypeError, ValueError, OverflowError or RuntimeError for one that is damaged.
    """
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss if gauss is None else float(gauss)))
    inner = state["numpy"]["state"] | {"key": np.array(state["numpy"]["state"]["key"], dtype=np.uint32)}
    if inner["key"].shape != (624,) or not 0 <= inner["pos"] <= 624:  # NumPy would read beyond the key
        raise ValueError("the state of numpy's generator is out of range")
    np.random.set_state(state["numpy"] | {"state": inner})  # noqa: NPY002
    torch.set_rng_state(decode(state["torch"]))
    if device.type == "cuda" and state["cuda"]:
        torch.cuda.set_rng_state(decode(state["cuda"]), device)


def encode(state: Tensor) -> str:
    """Encode a tensor of bytes as base64."""
    return base64.b64encode(state.numpy().tobytes()).decode()


def decode(text: str) -> Tensor:
    """Decode the output of `encode` to a tensor of bytes."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


logger = logging.getLogger(__name__)

FORMAT: Final = 1
SHOWN_DIFFERENCES: Final = 3
STATE: Final = {"config": dict, "step": int, "ranks": int, "scaler": dict, "files": list, "threads": int}
RANK: Final = {"loader": dict, "random": dict}
LOADER: Final = {"data": str, "place": int, "counts": dict}
SCALER: Final = {
    **dict.fromkeys(("scale", "growth_factor", "backoff_factor"), float),
    **dict.fromkeys(("growth_interval", "_growth_tracker"), int),
}
"""The types of the entries in the state of a checkpoint, in that of a rank, in that of its loader and of its gradient scaler."""
MOST: Final = {"threads": 1024, "scale": 2.0**127, "_growth_tracker": 2**31 - 1}
"""The largest numbers of entries, other than 2^60."""


@dataclass(kw_only=True)
class TrainingState:
    """The objects whose state changes at each step: a checkpoint saves and restores them."""

    model: DualEncoder
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    average: Average


def rank_file(folder: Path, rank: int) -> Path:
    """Path of the file with the state of one rank."""
    return folder / f"rank_{rank:05d}.json"


def restore_checkpoint(
    path: Path,
    training: TrainingState,
    process: Process,
    changed: Callable[[dict[str, Any]], list[str]],
    shown: str = "",
) -> tuple[int, dict[str, Any]]:
    """Restore model, optimizer, scaler and random number generators. Return the step and the loader state of this rank.

    `changed` receives the configuration of the checkpoint and returns a description of each setting that must equal
    that of the run, but differs. The generators are restored only if the number of ranks is that of the checkpoint.
    Messages name the checkpoint `shown`, the URL of which `path` is a copy.

    Raises UserError if such a setting differs, if tensors do not fit, or if a file cannot be read.
    """
    shown = shown or str(path)
    state = read_json(path / MARK, shown)
    if state.get("format") != FORMAT:
        raise UserError(
            f"{shown} has format {state.get('format')}, but this version reads format {FORMAT}; resume with the "
            "version that saved it, or give another output="
        )
    check_entries({"threads": 1, "files": [], **state}, STATE, shown, MARK)
    check_entries(state["config"], {"optim": dict}, shown, MARK)
    check_entries(state["config"]["optim"], {"steps": int}, shown, MARK)
    check_entries(state, {"step": int}, shown, MARK, {"step": state["config"]["optim"]["steps"]})
    scales = training.scaler.is_enabled() and bool(state["scaler"])  # empty: of a run in another precision
    check_entries(state["scaler"], SCALER if scales else {}, shown, MARK)
    check_unchanged(shown, changed(state["config"]))
    if process.device.type == "cpu" and THREADS not in os.environ:
        torch.set_num_threads(state.get("threads", torch.get_num_threads()))  # the last digits of sums depend on it
    same_ranks = state["ranks"] == process.world_size
    # The loader has the same position on all ranks, so any file serves if the number of ranks has changed.
    rank_state = read_json(rank_file(path, process.rank if same_ranks else 0), shown)
    name = rank_file(path, process.rank if same_ranks else 0).name
    check_entries(rank_state, RANK, shown, name)
    check_entries(rank_state["loader"], LOADER, shown, name)
    check_entries(counts := rank_state["loader"]["counts"], dict.fromkeys(counts, int), shown, name)
    if missing := sorted({*state.get("files", ())} - {file.name for file in path.iterdir() if file.is_file()}):
        raise UserError(f"{shown} lacks its file {missing[0]:.80}; {removal(shown)}")
    load_tensors(path, training, shown)
    if scales:
        training.scaler.load_state_dict(state["scaler"])
    try:
        position = rank_state["loader"]
        if same_ranks:
            set_random_state(rank_state["random"], process.device)
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        if isinstance(error, torch.AcceleratorError | torch.OutOfMemoryError):  # of the GPU, not of the state
            raise
        raise UserError(f"{shown}/{name} is damaged; {removal(shown)}") from error
    if not same_ranks:
        logger.warning(
            "%s was saved by %d processes and this run has %d: the random number generators are not restored",
            shown,
            state["ranks"],
            process.world_size,
        )
    return state["step"], position


def check_entries(
    values: dict[str, Any], entries: Mapping[str, type], shown: str, file: str, most: Mapping[str, float] = MOST
) -> None:
    """Raise UserError for an entry of a state that is not of its type, a list of other than texts, or a number out of range."""
    for name, kind in entries.items():
        value: Any = values.get(name)
        is_right = isinstance(value, kind)
        if kind is int:
            is_right = type(value) is int and (name == "threads") <= value <= most.get(name, 1 << 60)
        elif kind is float:
            is_right = type(value) in (int, float) and 0 < value <= most.get(name, 1 << 60)
        elif is_right and kind is list:
            is_right = all(isinstance(item, str) for item in value)
        if not is_right:
            raise UserError(f"{shown}/{file} is damaged ({name:.40} is {str(value)[:40]!r}); {removal(shown)}")


def check_unchanged(shown: str, differences: list[str]) -> None:
    """Raise UserError if settings differ from those of the checkpoint."""
    if differences:
        raise UserError(
            f"{shown} belongs to a run with different settings: "
            f"{shortened(differences, SHOWN_DIFFERENCES)}. Restore these settings, give another output=, or set "
            f"resume={'new_lr' if [item.split()[0] for item in differences] == ['optim.lr'] else 'anyway'} to "
            "resume with the new settings"
        )


def load_tensors(path: Path, training: TrainingState, shown: str) -> None:
    """Copy the tensors of a checkpoint into model and optimizer, of a sharded model only the shards of this rank.

    The optimizer takes memory for what its parameters need, whatever the headers say. Raises UserError if a tensor is
    missing or does not fit. Collective.
    """
    name = TENSORS if (path / TENSORS).exists() else "shard-*.safetensors"
    try:
        reader = HuggingFaceStorageReader(str(path))
        saved: dict[str, Any] = reader.read_metadata().state_dict_metadata
        for key, facts in saved.items():
            if facts.size.numel() != sum(chunk.sizes.numel() for chunk in facts.chunks):
                raise ValueError(f"the parts of {key:.80} make no tensor")
    except Exception as error:  # torch checks nothing of the places of shards, which are JSON in the headers
        raise UserError(f"{shown}/{name} cannot be read ({error}); {removal(shown)}") from None
    fill_state(training, {name.split("/", 2)[-1] for name in saved if name.startswith("optimizer/")})
    targets = tensors_of(training)
    check_fit(saved, targets, shown)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # in a single process
            checkpoint.load(dict(targets), storage_reader=reader)
    except (checkpoint.CheckpointException, SafetensorError, OSError) as error:
        cause = first_cause(error) if isinstance(error, checkpoint.CheckpointException) else error
        raise UserError(f"{shown}/{name} cannot be read ({cause}); {removal(shown)}") from None
    for name, parameter in training.model.named_parameters():  # numbers that are no tensors
        for key, value in training.optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor):
                training.optimizer.state[parameter][key] = targets[f"optimizer/{key}/{name}"].item()


def fill_state(training: TrainingState, names: set[str]) -> None:
    """Give the optimizer the state of the parameters `names`, by a step without gradients.

    Which tensors and numbers it has, the optimizer alone knows. The step may change weights.
    """
    training.optimizer.state.clear()
    for name, parameter in training.model.named_parameters():
        parameter.grad = torch.zeros_like(parameter) if name in names and parameter.requires_grad else None
    training.optimizer.step()
    training.optimizer.zero_grad(set_to_none=True)


def tensors_of(training: TrainingState) -> dict[str, Tensor]:
    """The tensors of model, average and optimizer by name, each whole or this rank's shard."""
    tensors = {f"model/{name}": value for name, value in training.model.state_dict().items()}
    tensors |= {f"average/{name}": value for name, value in training.average.values.items()}
    for name, parameter in training.model.named_parameters():
        state = training.optimizer.state.get(parameter, {})
        # Numbers that are no tensors are counters.
        tensors |= {f"optimizer/{key}/{name}": torch.as_tensor(value) for key, value in state.items()}
    return tensors


def check_fit(saved: dict[str, Any], targets: dict[str, Tensor], shown: str) -> None:
    """Raise UserError unless a checkpoint has the tensors of `targets`, alike. `saved` are its descriptions."""
    fix = "restore the settings of the checkpoint, or give another output="
    if unmatched := sorted(saved.keys() ^ targets.keys()):
        side = "the checkpoint" if unmatched[0] in saved else "the model"
        raise UserError(
            f"{shown} does not fit this model: only {side} has {unmatched[0].removeprefix('model/'):.200}; {fix}"
        )
    for name, target in targets.items():
        if (size := saved[name].size) != target.shape:
            raise UserError(f"{shown} does not fit this model: {name} is {list(size)}, not {list(target.shape)}; {fix}")
        if (dtype := saved[name].properties.dtype) != target.dtype:
            raise UserError(f"{shown} does not fit this model: {name} is of {dtype}, not {target.dtype}; {fix}")


def first_cause(error: checkpoint.CheckpointException) -> BaseException:
    """The error of the first rank that failed to read or write its part of a checkpoint."""
    return error.failures[min(error.failures)][0]


def read_json(path: Path, shown: str) -> dict[str, Any]:
    """Read a JSON file of the checkpoint `shown`. Raises UserError if it is damaged."""
    try:
        return read_object(path)
    except (OSError, ValueError) as error:
        problem = str(error).replace(str(path.parent), shown)
        raise UserError(f"{problem}; {removal(shown)}") from None


def removal(shown: str) -> str:
    """The advice to remove a damaged checkpoint; at a URL, the object without which it is not complete."""
    return f"remove {f'{shown}/{MARK}' if '://' in shown else shown} to resume from the checkpoint before it"
