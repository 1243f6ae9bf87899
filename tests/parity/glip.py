"""Compare GLIP with numbers of the authors' code: the largest error of each stored tensor, in units of its rms."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.stages.ground.glip.config import GlipConfig
from pipeline.stages.ground.glip.head import decode
from pipeline.stages.ground.glip.model import Glip, GlipOutput, class_probability, detect
from tests.parity import glip_recipe as recipe
from tests.parity.glip_capture import Capture
from tests.parity.glip_case import Stored, read_case

TOLERANCE = 2e-3  # largest error of a tensor, in units of its rms; 1e-5 is added to it


def recipe_model(config: GlipConfig, seed: int) -> Glip:
    """Build the network with the recipe's weights, in evaluation mode."""
    model = Glip(config)
    state = {key: recipe.weight(key, tuple(value.shape), seed) for key, value in model.state_dict().items()}
    model.load_state_dict({key: torch.from_numpy(value) for key, value in state.items()})
    return model.eval()


def run(path: Path) -> list[tuple[str, float, float]]:
    """(name, error, tolerance) of each comparison with a file."""
    stored, meta, config = read_case(path)
    model = recipe_model(config, meta["seed"])
    rgb = recipe.picture(meta["height"], meta["width"], meta["seed"])
    images = torch.from_numpy(recipe.model_input(rgb))
    ids, mask = (torch.from_numpy(array) for array in recipe.prompt(meta, config.text.max_tokens))
    with torch.inference_mode(), Capture(model) as capture:
        output = model(images, ids, mask)
    tensors = capture.tensors | {"input": images} | _derived(output, capture.tensors, ids, meta)
    results = [(name, *_error(stored, name, value)) for name, value in tensors.items() if stored.holds(name)]
    missing = stored.tensors() - set(tensors) - {"det.box", "det.score", "det.label", "det.unmatched64", "assigned"}
    results += [(f"{name} (not computed)", float("inf"), 0.0) for name in sorted(missing)]
    return results + _detections(stored, output, meta, config)


def _error(stored: Stored, name: str, value: Tensor) -> tuple[float, float]:
    """The largest difference in units of the rms, and the tolerance in the same units."""
    found = value.detach().float().contiguous().numpy()
    if name in stored:
        expected = stored[name]
        rms = float(np.sqrt(np.mean(np.square(expected, dtype=np.float64)))) if expected.size else 1.0
    else:  # a sample of a large tensor
        expected, indices = stored[f"{name}/val"], stored[f"{name}/idx"]
        if tuple(found.shape) != tuple(stored[f"{name}/shape"]) or not np.isin(indices, np.arange(found.size)).all():
            return float("inf"), TOLERANCE
        found = found.ravel()[indices]
        mean, std = stored[f"{name}/stat"][:2]
        rms = float(np.hypot(mean, std))
    if found.shape != expected.shape:
        return float("inf"), TOLERANCE
    worst = float(np.abs(found - expected).max(initial=0.0))
    return worst / max(rms, 1e-12), TOLERANCE + 1e-5 / max(rms, 1e-12)


def positive_map(meta: dict[str, Any], length: int) -> Tensor:
    """The positive map of the case's phrases, bool [labels, length]."""
    rows = torch.zeros(len(meta["phrases"]), length, dtype=torch.bool)
    for label, tokens in meta["phrases"].items():
        rows[int(label) - 1, [token for token in tokens if token < length]] = True
    return rows


def _derived(output: GlipOutput, captured: dict[str, Tensor], ids: Tensor, meta: dict[str, Any]) -> dict[str, Tensor]:
    """Tensors of the file that are computed from the network's output."""
    n_tokens = len(meta["ids"])
    anchors = torch.cat(output.anchors)
    probability = class_probability(output.token_logits[0], positive_map(meta, ids.shape[1]))
    tensors = {
        "anchors": anchors,
        "full.dot": output.token_logits[0, :, :n_tokens],
        "full.dot_pad": output.token_logits[0, :8, n_tokens:],
        "full.bbox_reg": output.deltas[0],
        "full.centerness": output.centerness[0],
        "full.lang.hidden": captured["lang.hidden"][0, :n_tokens],
        "post.class_prob": probability,
        "post.box": decode(output.deltas[0], anchors),
        "post.score": (probability * output.centerness[0].sigmoid()[:, None]).sqrt(),
    }
    fused = [name for name in captured if name.endswith(".text.lang")]
    if fused:
        tensors["full.lang.fused"] = captured[fused[-1]][0, :n_tokens]
    return tensors


def _detections(
    stored: Stored, output: GlipOutput, meta: dict[str, Any], config: GlipConfig
) -> list[tuple[str, float, float]]:
    """Compare detections: count those of the file and of the network that the other does not have.

    A match has the same label, corners within 0.05 px and a score within 1e-4. Each detection is matched at most once.
    """
    found = detect(
        output, 0, positive_map(meta, output.token_logits.shape[2]), (meta["width"], meta["height"]), config.detect
    )
    boxes, scores = found.boxes.detach().numpy(), found.scores.detach().numpy()
    labels = found.labels.numpy() + 1
    is_free = np.ones(len(labels), bool)
    unmatched = 0
    for box, score, label in zip(stored["det.box"], stored["det.score"], stored["det.label"], strict=True):
        close = is_free & (labels == label) & (np.abs(scores - score) < 1e-4) & (np.abs(boxes - box).max(1) < 0.05)
        if close.any():
            is_free[close.argmax()] = False
        else:
            unmatched += 1
    allowed = float(stored["det.unmatched64"])
    return [("unmatched detections", float(unmatched + is_free.sum()), allowed)]
