"""Weight files: the one reader of them, whoever wrote them, and a writer that is whole or not at all."""

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from common.disk import atomic_write

WRAPPERS = ("model", "state_dict")
"""Where a training checkpoint has the weights: GLIP, MERU, HyCoCLIP and PHyCLIP; open_clip."""
DDP = "module."


def read_tensors(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """The weights of a safetensors file, or of torch's: at its top or in a training checkpoint, without what DDP puts before names.

    Nothing is unpickled but tensors and plain containers. Raises OSError for a file that cannot be opened, and ValueError that begins
    with its path for one that is damaged or holds anything else.
    """
    contents = _safetensors(path, device) if path.suffix == ".safetensors" else _torch(path, device)
    if isinstance(contents, Mapping):
        contents = next((contents[key] for key in WRAPPERS if isinstance(contents.get(key), Mapping)), contents)
    if not isinstance(contents, Mapping) or not contents or not all(map(_is_entry, contents.items())):
        raise ValueError(f"{path} holds no state dict, neither at its top nor under {' or '.join(WRAPPERS)}")
    if odd := [key for key, value in contents.items() if not _is_dense(value)]:
        raise ValueError(
            f"{path} has {len(odd)} sparse, quantised or empty tensors, such as {odd[0]!a:.80}; save plain ones"
        )
    prefix = DDP if all(key.startswith(DDP) for key in contents) else ""
    return {key.removeprefix(prefix): value for key, value in contents.items()}


def _safetensors(path: Path, device: torch.device | str) -> dict[str, Tensor]:
    try:
        return load_file(path, str(device))
    except SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file, or is damaged ({error}); copy it again") from error


def _torch(path: Path, device: torch.device | str) -> object:
    """Said without torch's advice to unpickle it all the same."""
    try:
        # Mapped, what lies beside the weights in a training checkpoint is never read; torch maps its zip files alone.
        return torch.load(path, map_location=device, weights_only=True, mmap=zipfile.is_zipfile(path))
    except OSError:
        raise
    except Exception as error:  # damaged bytes make torch's reader fail in any way, TypeError and AssertionError too
        asked = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        why = f"it asks for {asked[1]}" if asked else "it is something else, cut short or damaged"
        raise ValueError(
            f"{path} is not a file of tensors alone ({why}), which is all that is read; save its state dict as safetensors"
        ) from error


def _is_entry(item: tuple[object, object]) -> bool:
    return isinstance(item[0], str) and isinstance(item[1], Tensor)


def _is_dense(value: Tensor) -> bool:
    """Whether it holds numbers as a weight does, one beside the other."""
    return value.layout == torch.strided and not (value.is_quantized or value.is_meta)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """A safetensors file, whole or not at all, that others may read where the umask lets them.

    safetensors itself makes every file its owner's alone, also on a disk that a group shares.
    """
    with atomic_write(path) as draft:
        draft.touch()
        mode = draft.stat().st_mode
        save_file(dict(tensors), draft)
        draft.chmod(mode)
