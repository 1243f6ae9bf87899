"""How well the miniature CLIP tells right boxes from wrong ones, on scenes that it was not trained on."""

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from demo.clip_data import CONCEPT_INDEX, Box, cut, iou
from demo.world.captions import GROUNDED_KINDS, Phrase
from demo.world.scenes import TEST_SEEDS, Object, Scene, make_scene
from demo.world.sprites import Style
from demo.world.vocabulary import CONCEPTS
from trainer.data.preprocess import PreprocessConfig, fit, to_pixels
from trainer.models.dual_encoder import DualEncoder
from trainer.text.tokenizer import Tokenizer

THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 17))


def auc(right: Sequence[float], wrong: Sequence[float]) -> float:
    """Probability that a right pair scores above a wrong one."""
    scores = np.concatenate([np.asarray(right), np.asarray(wrong)])
    ranks = np.empty(len(scores))
    ranks[scores.argsort(kind="stable")] = np.arange(1, len(scores) + 1)
    return float((ranks[: len(right)].sum() - len(right) * (len(right) + 1) / 2) / (len(right) * len(wrong)))


def shifted(box: Box, scene: Scene, rng: Random) -> Box | None:
    """The box moved until it covers less than a third of what it did (IoU < 0.3), inside the picture."""
    height, width = scene.image.shape[:2]
    w, h = box[2] - box[0], box[3] - box[1]
    for _ in range(20):
        x, y = rng.uniform(0, width - w), rng.uniform(0, height - h)
        moved = (x, y, x + w, y + h)
        if 0.02 < iou(moved, box) < 0.3:
            return moved
    return None


def pairs_of(scene: Scene, rng: Random) -> list[tuple[str, Box, str]]:
    """(text, box, kind of pair): right, other object, absent, shifted."""
    pairs: list[tuple[str, Box, str]] = []

    def text(phrase: Phrase) -> str:
        return scene.caption[phrase.start : phrase.end]

    for phrase in scene.phrases:
        if phrase.kind == "absent":
            pairs += [(text(phrase), thing.box, "absent") for thing in scene.objects]
        if phrase.kind not in GROUNDED_KINDS:
            continue
        for index, thing in enumerate(scene.objects):
            if index in phrase.objects:
                pairs.append((text(phrase), thing.box, "right"))
                moved = shifted(thing.box, scene, rng)
                pairs += [(text(phrase), moved, "shifted")] if moved else []
            else:
                pairs.append((text(phrase), thing.box, "other object"))
    return pairs


@torch.no_grad()
def embed(model: DualEncoder, pixels: list[Tensor], batch_size: int = 256) -> Tensor:
    return torch.cat([model.encode_image(to_pixels(torch.stack(part))) for part in chunks(pixels, batch_size)])


@torch.no_grad()
def embed_texts(model: DualEncoder, tokenizer: Tokenizer, texts: list[str], batch_size: int = 256) -> Tensor:
    return torch.cat([model.encode_text(tokenizer(part)) for part in chunks(texts, batch_size)])


def chunks(items: list[Any], size: int) -> list[list[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def name_ranks(model: DualEncoder, tokenizer: Tokenizer, crops: Tensor, things: list[Object]) -> Tensor:
    """For each crop, how many concepts' names fit better than its own, all named as captions do: "a red car"."""
    nouns = [concept.noun for concept in CONCEPTS]
    colours = {thing.colour for thing in things}
    names = {
        c: embed_texts(model, tokenizer, [f"a {c} {noun}" if c else f"a {noun}" for noun in nouns]) for c in colours
    }
    likeness = torch.stack([names[thing.colour] @ crop for thing, crop in zip(things, crops, strict=True)])
    own = torch.tensor([CONCEPT_INDEX[thing.concept] for thing in things])[:, None]
    return (likeness > likeness.gather(1, own)).sum(1)


def share(hits: Tensor) -> float:
    return round(hits.float().mean().item(), 4)


def threshold_table(right: NDArray[Any], wrong: NDArray[Any]) -> list[dict[str, float]]:
    """Precision and recall of "cosine >= threshold" on right against wrong pairs, as many of each kind as there are."""
    table = []
    for threshold in THRESHOLDS:
        hits, alarms = int((right >= threshold).sum()), int((wrong >= threshold).sum())
        precision, recall = hits / max(hits + alarms, 1), hits / len(right)
        f1 = 2 * precision * recall / max(precision + recall, 1e-9)
        row = {"threshold": threshold, "precision": precision, "recall": recall, "f1": f1}
        table.append({key: round(value, 4) for key, value in row.items()})
    return table


def evaluate(
    model: DualEncoder, tokenizer: Tokenizer, preprocess: PreprocessConfig, style: Style, n_scenes: int = 400
) -> dict[str, Any]:
    """Figures on the first `n_scenes` test scenes in one style, ready for JSON."""
    scenes = [make_scene(seed, style) for seed in TEST_SEEDS[:n_scenes]]
    return {
        "scenes": n_scenes,
        **concept_figures(model, tokenizer, preprocess, scenes),
        **box_figures(model, tokenizer, preprocess, scenes),
        **caption_figures(model, tokenizer, preprocess, scenes),
    }


def concept_figures(
    model: DualEncoder, tokenizer: Tokenizer, preprocess: PreprocessConfig, scenes: list[Scene]
) -> dict[str, Any]:
    """How often an object's own name fits its crop best, or is among the best five; also of those without a colour."""
    objects = [(scene, thing) for scene in scenes for thing in scene.objects]
    crops = embed(model, [cut(scene, thing.box, preprocess) for scene, thing in objects])
    better = name_ranks(model, tokenizer, crops, [thing for _, thing in objects])
    untinted = torch.tensor([thing.colour is None for _, thing in objects])
    return {
        "concept_top1": share(better < 1),
        "concept_top5": share(better < 5),
        "concept_top1_untinted": share(better[untinted] < 1),
        "concepts": len(CONCEPTS),
    }


def box_figures(
    model: DualEncoder, tokenizer: Tokenizer, preprocess: PreprocessConfig, scenes: list[Scene]
) -> dict[str, Any]:
    """How well the cosine of box and phrase tells right pairs from each kind of wrong ones."""
    rng = Random("clip evaluation")
    pairs = [(scene, *pair) for scene in scenes for pair in pairs_of(scene, rng)]
    boxes = embed(model, [cut(scene, box, preprocess) for scene, _, box, _ in pairs])
    texts = embed_texts(model, tokenizer, [text for _, text, _, _ in pairs])
    cosines = (boxes * texts).sum(1).numpy()
    kinds = np.array([kind for *_, kind in pairs])
    of_kind = {kind: cosines[kinds == kind] for kind in ("right", "other object", "absent", "shifted")}
    right = of_kind["right"]
    return {
        "auc": {kind: round(auc(right, wrong), 4) for kind, wrong in of_kind.items() if kind != "right"},
        "cosine": {k: [round(float(v.mean()), 3), round(float(v.std()), 3)] for k, v in of_kind.items()},
        "thresholds": threshold_table(right, cosines[kinds != "right"]),
    }


def caption_figures(
    model: DualEncoder, tokenizer: Tokenizer, preprocess: PreprocessConfig, scenes: list[Scene]
) -> dict[str, Any]:
    """How well scenes find their captions."""
    images = embed(model, [fit(scene.image, preprocess) for scene in scenes])
    captions = embed_texts(model, tokenizer, [scene.caption for scene in scenes])
    likeness = images @ captions.T
    strangers = likeness[~torch.eye(len(scenes), dtype=torch.bool)]
    return {
        "caption_recall_at_1": share(likeness.argmax(1) == torch.arange(len(scenes))),
        "caption_auc": round(auc(likeness.diagonal().tolist(), strangers.tolist()), 4),
    }
