"""Read a parity file of GLIP: arrays, and in `meta` the network, image and prompt.

The files also hold losses and gradients, which commit 5af35950 is the last to compare.
"""

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypergrit_common.errors import UserError
from pipeline.stages.ground.glip.config import CONFIGS, GlipConfig

META = ("config", "seed", "height", "width", "ids", "phrases")
PARTS = ("/shape", "/idx", "/val", "/stat", "/noise")


class Stored(dict[str, NDArray[Any]]):
    """The arrays of a file. Access to a missing one raises UserError."""

    def __missing__(self, name: str) -> NDArray[Any]:
        raise UserError(f"it holds no array {name!r}")

    def holds(self, name: str) -> bool:
        """True if the file has the tensor, complete or as a sample."""
        return name in self or f"{name}/val" in self

    def tensors(self) -> set[str]:
        """Names of the tensors that a network computes."""
        names = {name.rsplit("/", 1)[0] if name.endswith(PARTS) else name for name in self}
        return names - {"meta", "grad.key", "grad.norm"}


def read_case(path: Path) -> tuple[Stored, dict[str, Any], GlipConfig]:
    """The arrays of a file, its `meta`, and the configuration of its network.

    Raises UserError with the reason if it is not a parity file.
    """
    try:
        with np.load(path) as file:
            stored = Stored({name: file[name] for name in file.files})
        meta = json.loads(str(stored["meta"]))
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"it does not exist, or it is not an .npz of plain arrays with a JSON `meta`: {error}"
        ) from error
    missing = [key for key in META if not isinstance(meta, dict) or key not in meta]
    if missing:
        raise UserError(f"its `meta` lacks {', '.join(missing)}")
    config = config_of(str(meta["config"]))
    ids, labels, most = meta["ids"], range(1, len(meta["phrases"]) + 1), config.text.max_tokens
    if not 0 < len(ids) <= most or not all(0 <= i < config.text.vocab_size for i in ids):
        raise UserError(
            f"its `ids` are not a prompt; a prompt has 1 to {most} ids from 0 to {config.text.vocab_size - 1}"
        )
    if {int(label) for label in meta["phrases"]} != set(labels):
        raise UserError(f"its `phrases` must be numbered 1 to {len(labels)}")
    if min(meta["height"], meta["width"]) < 1:
        raise UserError("its image has no pixels")
    if len({len(stored[f"det.{part}"]) for part in ("box", "score", "label")}) > 1:
        raise UserError("its `det.box`, `det.score` and `det.label` differ in length")
    return stored, meta, config


def config_of(name: str) -> GlipConfig:
    """The configuration of a name, the authors' or ours. Raises UserError for a network that is not GLIP."""
    if name in CONFIGS:
        return CONFIGS[name]
    for part, ours in (("_a_", "glip_t_a"), ("swin_l", "glip_l"), ("swin_t", "glip_t")):
        if name.lower().startswith("glip") and part in name.lower():
            return CONFIGS[ours]
    raise UserError(
        f"its `config` {name!r} is not a configuration of GLIP; "
        "the known ones are glip_A_Swin_T_..., glip_Swin_T_... and glip_Swin_L"
    )
