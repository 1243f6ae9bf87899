"""Weight files."""

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from common.disk import replacing


def load_tensors(path: Path, device: torch.device | str = "cpu", *, mmap: bool = False) -> object:
    """What a file of torch holds. Nothing is unpickled but tensors and plain containers.

    Raises ValueError for anything else, and not with torch's advice to unpickle it all the same.
    """
    try:
        return torch.load(path, map_location=device, weights_only=True, mmap=mmap and zipfile.is_zipfile(path))
    except OSError:
        raise
    except Exception as error:  # damaged bytes make torch's reader fail in any way, TypeError and AssertionError too
        asked = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        why = f"it asks for {asked[1]}" if asked else "it is something else, cut short or damaged"
        raise ValueError(
            f"not a file of tensors alone ({why}), which is all that is read; save its state dict as safetensors"
        ) from error


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """A safetensors file, whole or not at all, that others may read where the umask lets them.

    safetensors itself makes every file its owner's alone, also on a disk that a group shares.
    """
    with replacing(path) as draft:
        draft.touch()
        mode = draft.stat().st_mode
        save_file(dict(tensors), draft)
        draft.chmod(mode)
