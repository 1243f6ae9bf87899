"""Which network a grounder's name stands for, and what its config.json says about it."""

from pathlib import Path
from typing import Any, Final, Literal

from common.devices import Precision, pick_device
from pipeline.ground.grounder import Grounder
from pipeline.ground.hub import HubName, fetch, parse_hub_name
from pipeline.model_folder import calibrated_threshold, read_config

MINIATURE: Final = Path(__file__).parents[2] / "demo" / "weights" / "glip"
CALIBRATED: Final = (("thresholds", "score"), ("detect", "score_threshold"))  # where a config.json says a model's own
SCORE_THRESHOLD: Final = 0.65  # GRIT's (Kosmos-2, section 2.1), for GLIP


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
    """The network of this name, folder or weight file, ready to predict boxes that score at least `floor`.

    Raises UserError if it is not there.
    """
    path, chosen = grounder_path(name), pick_device(device, key="ground.device")
    if is_transformers(path):
        from pipeline.ground.hf import load_hf_grounder

        return load_hf_grounder(path, chosen, floor, precision=precision, compile=compile)
    from pipeline.ground.glip.predict import load_glip_grounder

    return load_glip_grounder(path, chosen, floor, prompt, vocabulary=vocabulary, precision=precision, compile=compile)


def is_transformers(grounder: str) -> bool:
    """Whether a folder or hub repository holds a model of transformers; everything else is GLIP's.

    A hub name without a commit can only be transformers' own.
    """
    path = Path(grounder)
    if path.exists():
        return "model_type" in read_config(path)
    if "@" not in grounder:
        return True
    name = parse_hub_name(grounder)
    return name is None or (name.file is None and "model_type" in hub_config(name))


def hub_config(name: HubName) -> dict[str, Any]:
    """The config.json of a hub repository, {} without one."""
    return read_config(fetch(name, ["config.json"]))


def score_threshold(grounder: str) -> float:
    """The grounding score from which on a box of this grounder counts: its own calibration, GRIT's 0.65 without one."""
    path = grounder_path(grounder)
    name = parse_hub_name(path) if "@" in path and not Path(path).exists() else None
    config = hub_config(name) if name else read_config(Path(path))
    return calibrated_threshold(config, CALIBRATED, otherwise=SCORE_THRESHOLD, most=1, model=f"grounder {grounder!r}")


def grounder_path(grounder: str) -> str:
    """Where the grounder's weights are; a hub's name stands for itself."""
    return str(MINIATURE) if grounder == "miniature" else grounder
