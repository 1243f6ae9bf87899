"""Weight files."""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from common.disk import replacing


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """A safetensors file, whole or not at all, that others may read where the umask lets them.

    safetensors itself makes every file its owner's alone, also on a disk that a group shares.
    """
    with replacing(path) as draft:
        draft.touch()
        mode = draft.stat().st_mode
        save_file(dict(tensors), draft)
        draft.chmod(mode)
