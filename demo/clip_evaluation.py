"""Evaluation of the miniature CLIP on test scenes: concepts, boxes and captions."""

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from demo.clip_data import CONCEPT_INDEX, PixelBox, crop_pixels
from demo.world.captions import GROUNDED_KINDS, Phrase
from demo.world.scenes import TEST_SEEDS, Object, Scene, make_scene
from demo.world.sprites import Style
from demo.world.vocabulary import CONCEPTS
from pipeline.quality.boxes import iou
from trainer.data.preprocess import PreprocessConfig, fit, to_pixels
from trainer.models.dual_encoder import DualEncoder
from trainer.text.base import TextTokenizer

THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 17))


class TextBox(NamedTuple):
    """A text paired with a box. `kind` is "right", "other object", "absent" or "shifted"."""

    text: str
    box: PixelBox
    kind: str


def auc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Return the probability that a positive pair scores higher than a negative one (area under the ROC curve)."""
    scores = np.concatenate([np.asarray(positive), np.asarray(negative)])
    ranks = np.empty(len(scores))
    ranks[scores.argsort(kind="stable")] = np.arange(1, len(scores) + 1)
    n = len(positive)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * len(negative)))


def shifted_box(box: PixelBox, scene: Scene, rng: Random) -> PixelBox | None:
    """Draw a box of the same size with IoU in (0.02, 0.3), inside the picture; None after 20 failed attempts."""
    height, width = scene.image.shape[:2]
    w, h = box[2] - box[0], box[3] - box[1]
    for _ in range(20):
        x, y = rng.uniform(0, width - w), rng.uniform(0, height - h)
        moved = (x, y, x + w, y + h)
        if 0.02 < iou(moved, box) < 0.3:
            return moved
    return None


def text_box_pairs(scene: Scene, rng: Random) -> list[TextBox]:
    """Pair the phrases of a scene with the boxes of their objects, of other objects, and with shifted boxes."""
    pairs: list[TextBox] = []

    def text(phrase: Phrase) -> str:
        return scene.caption[phrase.start : phrase.end]

    for phrase in scene.phrases:
        if phrase.kind == "absent":
            pairs += [TextBox(text(phrase), obj.box, "absent") for obj in scene.objects]
        if phrase.kind not in GROUNDED_KINDS:
            continue
        for index, obj in enumerate(scene.objects):
            if index in phrase.objects:
                pairs.append(TextBox(text(phrase), obj.box, "right"))
                moved = shifted_box(obj.box, scene, rng)
                pairs += [TextBox(text(phrase), moved, "shifted")] if moved else []
            else:
                pairs.append(TextBox(text(phrase), obj.box, "other object"))
    return pairs


@torch.no_grad()
def embed_images(model: DualEncoder, pixels: list[Tensor], batch_size: int = 256) -> Tensor:
    """Return the embeddings [n d] of images given as bytes [3 s s]."""
    return torch.cat([model.encode_image(to_pixels(torch.stack(part))) for part in chunks(pixels, batch_size)])


@torch.no_grad()
def embed_texts(model: DualEncoder, tokenizer: TextTokenizer, texts: list[str], batch_size: int = 256) -> Tensor:
    """Return the embeddings [n d] of texts."""
    return torch.cat([model.encode_text(tokenizer(part)) for part in chunks(texts, batch_size)])


def chunks(items: list[Any], size: int) -> list[list[Any]]:
    """Split a list into parts of at most `size` items."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def concept_ranks(model: DualEncoder, tokenizer: TextTokenizer, crops: Tensor, objects: list[Object]) -> Tensor:
    """Return the rank of each object's concept: the number of concepts with a higher similarity to the crop.

    `crops` are embeddings [n d]. The texts name each concept in the object's colour, as captions do: "a red car".
    """
    nouns = [concept.noun for concept in CONCEPTS]
    colours = {obj.colour for obj in objects}
    names = {
        c: embed_texts(model, tokenizer, [f"a {c} {noun}" if c else f"a {noun}" for noun in nouns]) for c in colours
    }
    similarity = torch.stack([names[obj.colour] @ crop for obj, crop in zip(objects, crops, strict=True)])
    true_concept = torch.tensor([CONCEPT_INDEX[obj.concept] for obj in objects])[:, None]
    return (similarity > similarity.gather(1, true_concept)).sum(1)


def share(hits: Tensor) -> float:
    """Return the share of true values, rounded to four digits."""
    return round(hits.float().mean().item(), 4)


def threshold_table(positive: NDArray[Any], negative: NDArray[Any]) -> list[dict[str, float]]:
    """Return precision, recall and F1 of "cosine >= threshold" for each of `THRESHOLDS`."""
    table = []
    for threshold in THRESHOLDS:
        hits, false_alarms = int((positive >= threshold).sum()), int((negative >= threshold).sum())
        precision, recall = hits / max(hits + false_alarms, 1), hits / len(positive)
        f1 = 2 * precision * recall / max(precision + recall, 1e-9)
        row = {"threshold": threshold, "precision": precision, "recall": recall, "f1": f1}
        table.append({key: round(value, 4) for key, value in row.items()})
    return table


def evaluate(
    model: DualEncoder, tokenizer: TextTokenizer, preprocess: PreprocessConfig, style: Style, n_scenes: int = 400
) -> dict[str, Any]:
    """Return metrics on the first `n_scenes` test scenes in one style, as JSON values."""
    scenes = [make_scene(seed, style) for seed in TEST_SEEDS[:n_scenes]]
    return {
        "scenes": n_scenes,
        **concept_metrics(model, tokenizer, preprocess, scenes),
        **box_metrics(model, tokenizer, preprocess, scenes),
        **caption_metrics(model, tokenizer, preprocess, scenes),
    }


def concept_metrics(
    model: DualEncoder, tokenizer: TextTokenizer, preprocess: PreprocessConfig, scenes: list[Scene]
) -> dict[str, Any]:
    """Return top-1 and top-5 accuracy of concept classification on crops of single objects."""
    objects = [(scene, obj) for scene in scenes for obj in scene.objects]
    crops = embed_images(model, [crop_pixels(scene, obj.box, preprocess) for scene, obj in objects])
    ranks = concept_ranks(model, tokenizer, crops, [obj for _, obj in objects])
    untinted = torch.tensor([obj.colour is None for _, obj in objects])
    return {
        "concept_top1": share(ranks < 1),
        "concept_top5": share(ranks < 5),
        "concept_top1_untinted": share(ranks[untinted] < 1),
        "concepts": len(CONCEPTS),
    }


def box_metrics(
    model: DualEncoder, tokenizer: TextTokenizer, preprocess: PreprocessConfig, scenes: list[Scene]
) -> dict[str, Any]:
    """Compare matching with mismatched box-phrase pairs: AUC, mean and deviation of the cosines, threshold table."""
    rng = Random("clip evaluation")
    pairs = [(scene, pair) for scene in scenes for pair in text_box_pairs(scene, rng)]
    boxes = embed_images(model, [crop_pixels(scene, pair.box, preprocess) for scene, pair in pairs])
    texts = embed_texts(model, tokenizer, [pair.text for _, pair in pairs])
    cosines = (boxes * texts).sum(1).numpy()
    kinds = np.array([pair.kind for _, pair in pairs])
    of_kind = {kind: cosines[kinds == kind] for kind in ("right", "other object", "absent", "shifted")}
    right = of_kind["right"]
    return {
        "auc": {kind: round(auc(right, negative), 4) for kind, negative in of_kind.items() if kind != "right"},
        "cosine": {k: [round(float(v.mean()), 3), round(float(v.std()), 3)] for k, v in of_kind.items()},
        "thresholds": threshold_table(right, cosines[kinds != "right"]),
    }


def caption_metrics(
    model: DualEncoder, tokenizer: TextTokenizer, preprocess: PreprocessConfig, scenes: list[Scene]
) -> dict[str, Any]:
    """Return retrieval recall and AUC of full scenes with their captions."""
    images = embed_images(model, [fit(scene.image, preprocess) for scene in scenes])
    captions = embed_texts(model, tokenizer, [scene.caption for scene in scenes])
    similarity = images @ captions.T
    mismatched = similarity[~torch.eye(len(scenes), dtype=torch.bool)]
    return {
        "caption_recall_at_1": share(similarity.argmax(1) == torch.arange(len(scenes))),
        "caption_auc": round(auc(similarity.diagonal().tolist(), mismatched.tolist()), 4),
    }
