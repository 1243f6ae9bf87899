"""Read and write weight files: no pickle, atomic writes."""

import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.modules.module import register_module_parameter_registration_hook

from hypergrit_common.disk import atomic_write
from hypergrit_common.files import check_file

WRAPPERS = ("model", "state_dict")
"""Keys of the weights in training checkpoints: `model` in GLIP, MERU, HyCoCLIP, PHyCLIP; `state_dict` in open_clip."""
PREFIXES = ("module.", "model.", "_forward_module.")
"""Beginnings of all names: of DistributedDataParallel, of a LightningModule, and of Lightning Fabric."""
LIGHTNING: Final = "pytorch-lightning_version"
"""Key of a checkpoint of Lightning, whose module may have entries beside those of its `model.`, such as of a metric."""
WITHIN = re.compile(r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""Parts of names, of torch.compile, FSDP and activation checkpoints."""


ARRAYS: Any = (np.ndarray, np.dtype, np.dtypes.UInt32DType, np.zeros(0).__reduce__()[0])
"""What an array of NumPy's state of random numbers refers to, in training checkpoints."""


def read_tensors(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Read the tensors of a .safetensors file, or of a torch file with a state dict, alone or within a checkpoint.

    Names lose prefixes that wrappers add, such as `module.`. Only tensors and plain containers are unpickled. Raises
    OSError if the file cannot be opened, and ValueError that begins with the path if it is damaged or holds other things.
    """
    check_file(path)
    contents = _load_safetensors(path, device) if path.suffix == ".safetensors" else load_torch(path, device)
    is_lightning = isinstance(contents, Mapping) and LIGHTNING in contents
    if isinstance(contents, Mapping):
        contents = next((contents[key] for key in WRAPPERS if isinstance(contents.get(key), Mapping)), contents)
    if not isinstance(contents, Mapping) or not contents or not all(map(_is_entry, contents.items())):
        raise ValueError(f"{path} holds no state dict, neither at its top level nor under {' or '.join(WRAPPERS)}")
    if odd := [key for key, value in contents.items() if not _is_dense(value)]:
        raise ValueError(
            f"{path} has {len(odd)} sparse, quantised or meta tensors, such as {odd[0]!a:.80}; save dense tensors"
        )
    n_bytes = sum(value.nbytes for value in contents.values())
    if n_bytes > 2 * path.stat().st_size + SPARE_NUMBERS:  # tied weights are stored once
        raise ValueError(f"{path} has tensors of {n_bytes:,} bytes that repeat its few numbers; save dense tensors")
    tensors = {WITHIN.sub("", key): value for key, value in contents.items()}
    if is_lightning:
        tensors = {key: value for key, value in tensors.items() if key.startswith("model.")} or tensors
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
        is_zip = zipfile.is_zipfile(path)
        if is_zip:
            with zipfile.ZipFile(path) as parts:
                if sum(item.file_size for item in parts.infolist()) > path.stat().st_size:
                    raise ValueError("its parts are compressed")  # never by torch.save; they may take gigabytes
        with torch.serialization.safe_globals([*ARRAYS]):
            return torch.load(path, map_location=device, weights_only=True, mmap=is_zip)
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
        mode = draft.stat().st_mode
        save_file(dict(tensors), draft)
        draft.chmod(mode)


# The size of a network that a configuration describes, which need not be that of its weights.

SPARE: Final = 1000
"""Parameters that a network may have besides twice those of its weights, for weights in another layout."""
SPARE_NUMBERS: Final = 1 << 24


@contextmanager
def bounded(source: Path, n_tensors: int, n_numbers: int | None = None) -> Iterator[None]:
    """Refuse to build networks in the `with` block that have far more parameters than weights of `n_tensors`.

    Raises ValueError, before a parameter is filled. `n_numbers` limits their numbers likewise; None: there are few of them
    in memory, since the network is built on the meta device.
    """
    found = [0, 0]

    def count(module: torch.nn.Module, name: str, parameter: Any) -> None:
        found[0], found[1] = found[0] + 1, found[1] + (0 if parameter is None else parameter.numel())
        if found[0] > 2 * n_tensors + SPARE or (n_numbers is not None and found[1] > 2 * n_numbers + SPARE_NUMBERS):
            shape = f"{type(module).__name__}.{name} {list(parameter.shape)}"
            raise ValueError(
                f"the configuration of {source} describes a larger model than its {n_tensors:,} tensors of weights: "
                f"{found[0]:,} parameters with {found[1]:,} numbers up to {shape}; copy the folder again"
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def bounded_by_folder(path: str | Path) -> AbstractContextManager[None]:
    """Return `bounded` by the safetensors files of a folder; a name on a hub, which is no folder, has no bound.

    Raises OSError and SafetensorError for a file that cannot be read.
    """
    folder = Path(path)
    if not folder.is_dir():
        return nullcontext()
    n_tensors = n_bytes = 0
    for file in folder.glob("*.safetensors"):
        check_file(file)
        with safe_open(file, "pt") as tensors:
            n_tensors += len(tensors.keys())
        n_bytes += file.stat().st_size
    return bounded(folder, n_tensors, n_bytes)  # a number takes at least a byte
