"""Read and write weight files: no pickle, atomic writes."""

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hypergrit_common.disk import atomic_write
from hypergrit_common.files import check_file

WRAPPERS = ("model", "state_dict")
"""Keys of the weights in training checkpoints: `model` in GLIP, MERU, HyCoCLIP, PHyCLIP; `state_dict` in open_clip."""
PREFIXES = ("module.", "model.", "_forward_module.")
"""Beginnings of all names: of DistributedDataParallel, of a LightningModule, and of Lightning Fabric."""
WITHIN = re.compile(r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""Parts of names, of torch.compile, FSDP and activation checkpoints."""


ARRAYS = (np.ndarray, np.dtype, np.dtypes.UInt32DType, np._core.multiarray._reconstruct)
"""What an array of NumPy's state of random numbers refers to, in training checkpoints."""


def read_tensors(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Read the tensors of a .safetensors file, or of a torch file with a state dict, alone or within a checkpoint.

    Names lose prefixes that wrappers add, such as `module.`. Only tensors and plain containers are unpickled. Raises
    OSError if the file cannot be opened, and ValueError that begins with the path if it is damaged or holds other things.
    """
    check_file(path)
    contents = _load_safetensors(path, device) if path.suffix == ".safetensors" else load_torch(path, device)
    if isinstance(contents, Mapping):
        contents = next((contents[key] for key in WRAPPERS if isinstance(contents.get(key), Mapping)), contents)
    if not isinstance(contents, Mapping) or not contents or not all(map(_is_entry, contents.items())):
        raise ValueError(f"{path} holds no state dict, neither at its top level nor under {' or '.join(WRAPPERS)}")
    if odd := [key for key, value in contents.items() if not _is_dense(value)]:
        raise ValueError(
            f"{path} has {len(odd)} sparse, quantised or meta tensors, such as {odd[0]!a:.80}; save dense tensors"
        )
    tensors = {WITHIN.sub("", key): value for key, value in contents.items()}
    while prefix := next((name for name in PREFIXES if all(key.startswith(name) for key in tensors)), ""):
        tensors = {key.removeprefix(prefix): value for key, value in tensors.items()}
    return tensors


def _load_safetensors(path: Path, device: torch.device | str) -> dict[str, Tensor]:
    try:
        return load_file(path, str(device))
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file, or is damaged ({error}); copy it again") from error


def load_torch(path: Path, device: torch.device | str = "cpu") -> object:
    """Load a file of torch.save, with tensors, arrays and plain containers alone. Errors as in `read_tensors`."""
    try:  # error messages omit torch's advice to set weights_only=False, which is unsafe
        # With mmap, the other parts of a training checkpoint are never read. torch can map only files in zip format.
        with torch.serialization.safe_globals([*ARRAYS]):
            return torch.load(path, map_location=device, weights_only=True, mmap=zipfile.is_zipfile(path))
    except OSError:
        raise
    except Exception as error:  # for damaged bytes, torch raises many types, even TypeError and AssertionError
        found = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        why = f"it refers to {found[1]}" if found else "it is truncated, damaged, or of another format"
        raise ValueError(f"{path} must contain only tensors, but {why}; save its state dict as safetensors") from error


def _is_entry(item: tuple[object, object]) -> bool:
    return isinstance(item[0], str) and isinstance(item[1], Tensor)


def _is_dense(value: Tensor) -> bool:
    """True for a strided tensor that holds data and is not quantised."""
    return value.layout == torch.strided and not (value.is_quantized or value.is_meta)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file atomically, with the permissions of the umask.

    safetensors itself creates files that only their owner may read, even on a disk that a group shares.
    """
    with atomic_write(path) as draft:
        draft.touch()
        mode = draft.stat().st_mode
        save_file(dict(tensors), draft)
        draft.chmod(mode)
