"""Read a parity file of GLIP: arrays, and in `meta` the network, image and prompt.

The files also hold losses and gradients, which commit 5af35950 is the last to compare.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.ground.glip.config import CONFIGS, GlipConfig

PARTS = ("/shape", "/idx", "/val", "/stat", "/noise")


class Stored(dict[str, NDArray[Any]]):
    """The arrays of a file."""

    def holds(self, name: str) -> bool:
        """True if the file has the tensor, complete or as a sample."""
        return name in self or f"{name}/val" in self

    def tensors(self) -> set[str]:
        """Names of the tensors that a network computes."""
        names = {name.rsplit("/", 1)[0] if name.endswith(PARTS) else name for name in self}
        return names - {"meta", "grad.key", "grad.norm"}


def read_case(path: Path) -> tuple[Stored, dict[str, Any], GlipConfig]:
    """The arrays of a file, its `meta`, and the configuration of its network, which is that of the file's name."""
    with np.load(path) as file:
        stored = Stored({name: file[name] for name in file.files})
    return stored, json.loads(str(stored["meta"])), CONFIGS[path.stem]
