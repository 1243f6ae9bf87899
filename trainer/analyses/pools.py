"""Pools of texts and images from which the points of a path are retrieved.

- pexels: texts of MERU's file `pexels_text.json` (appendix D)
- flickr30k_grounded: images, boxes, captions and phrases of grounded Flickr30k, as in HyCoCLIP (appendix G)
- held_out: images, boxes, captions and phrases of held-out shards

Shapes: n entries, d width of the features.
"""

import base64
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypergrit_common.errors import UserError
from hypergrit_common.images import ImageRejected, decode
from hypergrit_common.samples import LIMITS
from trainer.analyses.shard_points import HELD_OUT, embed_shards
from trainer.evaluation.embed import device_of
from trainer.evaluation.sets.annotations import check_text, json_object, read_json
from trainer.evaluation.sets.annotations import field as value_of
from trainer.evaluation.task import Embedder, ImageSource, MissingFilesError
from trainer.evaluation.tasks.examples import Problems

PEXELS_FILE: Final = "traversal/pexels_text.json"
FLICKR_FILE: Final = "flickr30k_grounded/train-0000.tsv"
PROMPTS: Final = {"captions": "{}", "nouns": "a photo of a {}.", "adjectives": "this photo is {}."}
"""Prompt of each list of pexels_text.json, as in the released code; the paper has "a photo of {}." for nouns."""
MIN_AREA_PX: Final = 32 * 32
MAX_SHARD_SAMPLES: Final = 5000


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Features [n d] of texts and images before the lift, and how they are shown."""

    features: Tensor
    is_text: Tensor  # [n] bool
    labels: list[str]
    files: tuple[Path, ...]
    skipped: dict[str, int] = field(default_factory=dict)

    def lift(self, embedder: Embedder) -> Tensor:
        """Lifted points [*k n d]."""
        model, device = embedder.model, device_of(embedder.model)
        with torch.no_grad():
            text, image = (
                lift(self.features[mask].to(device))
                for lift, mask in ((model.lift_text, self.is_text), (model.lift_image, ~self.is_text))
            )
        joined = torch.cat([text, image], -2)
        place = torch.empty(len(self.labels), dtype=torch.int64)
        place[torch.cat([self.is_text.nonzero()[:, 0], (~self.is_text).nonzero()[:, 0]])] = torch.arange(len(place))
        return joined[..., place.to(device), :]


def pexels_pool(embedder: Embedder, root: Path, limit: int) -> Pool:
    """The texts of `pexels_text.json`: captions as they are, nouns and adjectives in their prompts.

    Raises MissingFilesError, and UserError for malformed files.
    """
    path = root / PEXELS_FILE
    if not path.is_file():
        raise MissingFilesError(f"expected {path}")
    content = read_json(path)
    texts = []
    for key, prompt in PROMPTS.items():
        for number, word in enumerate(value_of(content, key, list, str(path))):
            if not isinstance(word, str):
                raise UserError(
                    f"{path}: {key}[{number}] is {word!r:.40}; it must be a string; download the file again"
                )
            check_text(word, f"{path}: {key}[{number}]")
            texts.append(prompt.replace("{}", word))
    texts = list(dict.fromkeys(texts))[: limit or None]
    if not texts:
        raise UserError(f"{path} has no texts; download it again")
    return Pool(
        features=embedder.texts(texts), is_text=torch.ones(len(texts), dtype=torch.bool), labels=texts, files=(path,)
    )


def held_out_pool(embedder: Embedder, root: Path, limit: int) -> Pool:
    """The images, boxes, captions and phrases of held-out shards; at most `MAX_SHARD_SAMPLES` samples.

    Raises MissingFilesError.
    """
    points = embed_shards(embedder, root, limit or MAX_SHARD_SAMPLES)
    parts = [
        (points.text, True, points.captions, "{}"),
        (points.box_text, True, points.phrases, "{}"),
        (points.image, False, points.captions, "[image: {}]"),
        (points.box_image, False, points.phrases, "[box: {}]"),
    ]
    return join_parts(parts, (root / HELD_OUT,), points.skipped)


PoolPart = tuple[Tensor, bool, Sequence[str], str]
"""Features, True for texts, labels, and the format of a label."""


def join_parts(parts: Sequence[PoolPart], files: tuple[Path, ...], skipped: Mapping[str, int]) -> Pool:
    """A pool of several parts. Equal texts occur once."""
    keep, labels, is_text, seen = [], [], [], set[str]()
    for features, text, names, template in parts:
        kept = [number for number, name in enumerate(names) if not (text and (name in seen or seen.add(name)))]  # type: ignore[func-returns-value]
        keep.append(features[kept])
        labels += [template.replace("{}", names[number]) for number in kept]
        is_text += [text] * len(kept)
    return Pool(
        features=torch.cat(keep),
        is_text=torch.tensor(is_text, dtype=torch.bool),
        labels=labels,
        files=files,
        skipped=dict(skipped),
    )


class GroundedImages:
    """The images of grounded Flickr30k: rows of TSV files, read and decoded when they are asked for: RGB [h w 3].

    Raises OSError for a row without a usable image.
    """

    def __init__(self) -> None:
        self.places: list[tuple[Path, int]] = []  # file and offset of a row

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        path, offset = self.places[index]
        with path.open("rb") as file:
            file.seek(offset)
            row = read_row(file.readline(), str(path))
        try:
            return decode(base64.b64decode(row["image"], validate=True), LIMITS)
        except (ValueError, KeyError, TypeError, ImageRejected) as error:
            raise OSError(f"{path}: {row.get('file_name', '')}: {error}") from error


def flickr_pool(embedder: Embedder, root: Path, limit: int) -> Pool:
    """The images, boxes, captions and phrases of grounded Flickr30k; `limit` rows (0: all).

    Consecutive rows with the same file name share an image. The phrase of a box is its first span of the caption. Boxes
    are (left, top, width, height); those below `MIN_AREA_PX` are skipped. Raises MissingFilesError, and UserError for
    malformed rows.
    """
    files = sorted((root / FLICKR_FILE).parent.glob("train-*.tsv"))
    if not files:
        raise MissingFilesError(f"expected {root / FLICKR_FILE}")
    stack, skipped = GroundedImages(), Counter[str]()
    images, boxes, captions, phrases, names = [], [], [], [], []
    previous, n_rows = "", 0
    for path in files:
        with path.open("rb") as file:
            offset = 0
            for number, line in enumerate(file):
                if limit and n_rows >= limit:
                    break
                where = f"{path}: line {number + 1}"
                row = read_row(line, where)
                name, caption = value_of(row, "file_name", str, where), value_of(row, "caption", str, where)
                if name != previous:
                    stack.places.append((path, offset))
                    images.append(ImageSource(path=path, index=len(stack.places) - 1, stack=stack))
                    names.append(name)
                    previous = name
                captions.append(caption)
                for index, annotation in enumerate(value_of(row, "annos", list, where)):
                    box, phrase = read_annotation(annotation, caption, f"{where}: annos[{index}]")
                    if box[2] * box[3] < MIN_AREA_PX:
                        skipped["box below 32 x 32 px"] += 1
                        continue
                    boxes.append(ImageSource(path=path, index=len(stack.places) - 1, stack=stack, box=box))
                    phrases.append(phrase)
                offset += len(line)
                n_rows += 1
    found, found_boxes = embedder.images(images, "pad"), embedder.images(boxes, "pad")
    skipped += Counter({"unreadable image": len(found.errors), "unreadable box": len(found_boxes.errors)})
    kept = [number for number in range(len(images)) if number not in found.errors]
    kept_boxes = [number for number in range(len(boxes)) if number not in found_boxes.errors]
    texts = embedder.texts([*captions, *phrases])
    parts: list[PoolPart] = [
        (texts[: len(captions)], True, captions, "{}"),
        (texts[len(captions) :], True, phrases, "{}"),
        (found.features[kept], False, [names[number] for number in kept], "[image: {}]"),
        (found_boxes.features[kept_boxes], False, [phrases[number] for number in kept_boxes], "[box: {}]"),
    ]
    return join_parts(parts, tuple(files), skipped)


def read_row(line: bytes, where: str) -> dict[str, Any]:
    """The JSON object of a row, behind an id and a tab. Raises UserError, beginning with `where`."""
    return json_object(line.partition(b"\t")[2], f"{where}, an id, a tab and an object,")


def read_annotation(annotation: object, caption: str, where: str) -> tuple[tuple[float, float, float, float], str]:
    """The box and the phrase of an annotation. Raises UserError, beginning with `where`."""
    box, spans = value_of(annotation, "bbox", list, where), value_of(annotation, "tokens_positive", list, where)
    try:
        left, top, width, height = (float(value) for value in box)
        start, end = (int(value) for value in spans[0])
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise UserError(
            f"{where} needs bbox of four numbers and tokens_positive of [start, end]; download the file again"
        ) from error
    return (left, top, width, height), caption[start:end]


POOLS: Final[Mapping[str, Callable[[Embedder, Path, int], Pool]]] = {
    "pexels": pexels_pool,
    "flickr30k_grounded": flickr_pool,
    "held_out": held_out_pool,
}


def read_pools(embedder: Embedder, root: Path, limit: int) -> tuple[dict[str, Pool], Problems]:
    """The pools whose files are found, and the reasons why others are missing or malformed.

    Raises UserError if those that are found are malformed, and MissingFilesError if none is found.
    """
    found: dict[str, Pool] = {}
    problems = Problems()
    for name, read in POOLS.items():
        with problems.of(name):
            found[name] = read(embedder, root, limit)
    problems.require(found, "; ".join(problems.missing.values()))
    return found, problems
