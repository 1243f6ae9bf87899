"""Load the grounder of the setting `ground.grounder`, and read its calibrated score threshold."""

from pathlib import Path
from typing import Any, Final, Literal

from common.devices import Precision, pick_device
from pipeline.ground.grounder import Grounder
from pipeline.ground.hub import HubName, fetch, parse_hub_name
from pipeline.model_cache import local_model
from pipeline.model_folder import calibrated_threshold, read_model_config

MINIATURE: Final = Path(__file__).parents[2] / "demo" / "weights" / "glip"
CALIBRATED: Final = (("thresholds", "score"), ("detect", "score_threshold"))
"""Keys (group, key) of a model's config.json that may hold its calibrated threshold, in order of precedence."""
SCORE_THRESHOLD: Final = 0.65
"""Score threshold of a model without calibration: the value that GRIT uses for GLIP (Kosmos-2, section 2.1)."""


def load_grounder(
    name: str,
    device: str,
    floor: float,
    prompt: Literal["caption", "phrases"],
    *,
    vocabulary: str | None = None,
    precision: Precision = "auto",
    compile: bool = False,
) -> Grounder:
    """Load the grounder `name`. The other parameters are the fields of GroundConfig with the same names.

    Raises UserError if the model or the device does not exist, or if the model cannot be loaded.
    """
    path, torch_device = grounder_path(name), pick_device(device, key="ground.device")
    if is_transformers(path):
        from pipeline.ground.hf import load_hf_grounder

        return load_hf_grounder(path, torch_device, floor, precision=precision, compile=compile)
    from pipeline.ground.glip.predict import load_glip_grounder

    return load_glip_grounder(
        path, torch_device, floor, prompt, vocabulary=vocabulary, precision=precision, compile=compile
    )


def is_transformers(grounder: str) -> bool:
    """Return True for a folder or hub name of a transformers model, False for a GLIP model.

    A hub name without a commit is a transformers model, since hub names of GLIP models must contain a commit.
    """
    path = Path(grounder)
    if path.exists():
        return "model_type" in read_model_config(path)
    if "@" not in grounder:
        return True
    name = parse_hub_name(grounder)
    return name is None or (name.file is None and "model_type" in hub_config(name))


def hub_config(name: HubName) -> dict[str, Any]:
    """Return the config.json of a hub repository, or {} if it has none."""
    return read_model_config(fetch(name, ["config.json"]))


def score_threshold(grounder: str) -> float:
    """Return the calibrated score threshold of a grounder, or SCORE_THRESHOLD if it has none.

    Raises UserError if the threshold in its config.json is not a number from 0 to 1.
    """
    path = grounder_path(grounder)
    name = parse_hub_name(path) if "@" in path and not Path(path).exists() else None
    config = hub_config(name) if name else read_model_config(Path(path))
    return calibrated_threshold(config, CALIBRATED, otherwise=SCORE_THRESHOLD, most=1, model=f"grounder {grounder!r}")


def grounder_path(grounder: str) -> str:
    """Return the folder of `miniature`, or that of the copy of a URL; return any other name or path unchanged.

    Raises UserError like `local_model`.
    """
    return str(MINIATURE) if grounder == "miniature" else local_model(grounder)
