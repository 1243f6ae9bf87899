"""Zero-shot retrieval between images and captions on COCO val2017 and Flickr30k (MERU, section 4.2), and on own sets.

Text-to-image recall at K is the share of captions whose image is among the K best images. Image-to-text recall is the
share of images with at least one own caption among the K best captions. All captions are used without a prompt, images
are resized to a square without keeping their proportions, and candidates with equal scores count against the model.
val2017 is not the 5,000 images of the Karpathy split of COCO.

Shapes: n images, m captions, d embedding width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from trainer.evaluation import plots
from trainer.evaluation.embed import device_of
from trainer.evaluation.metrics.items import mean_items
from trainer.evaluation.metrics.ranking import chance_recall, pessimistic_ranks, recall_at, top_k
from trainer.evaluation.sets.annotations import below, checksums, json_object, numbered_lines, read_json
from trainer.evaluation.sets.annotations import field as value_of
from trainer.evaluation.task import Embedder, Figure, ImageSource, MissingFilesError, TaskOptions, TaskResult
from trainer.evaluation.tasks.examples import Problems, coco_images, merge
from trainer.evaluation.tasks.hierarcaps_expanded import read_table

RECALL_AT: Final = (1, 5, 10)
DRAWN: Final = (1, 2, 3, 5, 10, 20, 50, 100)
N_EXAMPLES: Final = 6
COCO_JSON: Final = "coco/annotations/captions_val2017.json"
FLICKR_JSON: Final = "flickr30k/dataset_flickr30k.json"
FOLDER: Final = "retrieval"
"""Folder of sets of one's own: NAME.csv, NAME.jsonl or NAME.json (Karpathy's layout), and their images in NAME/."""
EXPECTED: Final = {"coco": (5000, 25014), "flickr30k": (1000, 5000)}
"""Numbers of images and captions of the papers."""


@dataclass(frozen=True, kw_only=True)
class CaptionedImages:
    """Images, and captions with the index of their image."""

    images: list[ImageSource] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, captions: Mapping[ImageSource, list[str]], limit: int) -> "CaptionedImages":
        """The first `limit` images (0: all) with their captions."""
        found = cls()
        for image in list(captions)[: limit or None]:
            found.add(image, captions[image])
        return found

    def add(self, image: ImageSource, captions: list[str]) -> None:
        """Append an image with its captions."""
        self.owners.extend([len(self.images)] * len(captions))
        self.captions.extend(captions)
        self.images.append(image)


def read_coco(root: Path, limit: int, problems: Problems) -> CaptionedImages:
    """Read the captions of COCO val2017, keyed by image id; `limit` images (0: all).

    The captions of a malformed image are malformed too. Raises MissingFilesError, and UserError for malformed annotations.
    """
    path, folder = root / COCO_JSON, root / "coco" / "val2017"
    if not path.is_file() or not folder.is_dir():
        raise MissingFilesError(f"expected {path} and {folder}/000000000139.jpg")
    content = read_json(path)
    images = coco_images(path, content, folder, problems)
    captions: dict[int, list[str]] = {}

    def read_caption(numbered: tuple[int, Any]) -> None:
        number, entry = numbered
        where = f"{path}: annotations[{number}]"
        owner = value_of(entry, "image_id", int, where)
        if owner not in images:
            raise UserError(f"{where}: image_id {owner} is not among the images; download the file again")
        captions.setdefault(owner, []).append(value_of(entry, "caption", str, where))

    problems.entries(path, enumerate(value_of(content, "annotations", list, str(path))), read_caption)
    found = CaptionedImages()
    for key in list(images)[: limit or None]:
        found.add(images[key][0], captions.get(key, []))
    return found


def read_flickr30k(root: Path, limit: int, problems: Problems) -> CaptionedImages:
    """Read the test split of Flickr30k from Karpathy's file. Arguments and errors as in `read_coco`."""
    path, folder = root / FLICKR_JSON, root / "flickr30k" / "flickr30k_images"
    if not path.is_file() or not folder.is_dir():
        raise MissingFilesError(f"expected {path} and {folder}/1007129816.jpg")
    return read_karpathy(path, folder, limit, problems)


def read_karpathy(path: Path, folder: Path, limit: int, problems: Problems) -> CaptionedImages:
    """Read the test split of a file in Karpathy's layout, with its images in a folder. Errors as in `read_coco`."""
    found: dict[ImageSource, list[str]] = {}

    def read_image(numbered: tuple[int, Any]) -> None:
        number, entry = numbered
        where = f"{path}: images[{number}]"
        if value_of(entry, "split", str, where) != "test":
            return
        sentences = value_of(entry, "sentences", list, where)
        captions = [value_of(sentence, "raw", str, f"{where}.sentences[{i}]") for i, sentence in enumerate(sentences)]
        place = value_of(entry, "filepath", str, where) if "filepath" in entry else ""  # COCO's two folders
        image = own_image(folder, f"{place}/{value_of(entry, 'filename', str, where)}".lstrip("/"), where)
        found.setdefault(image, []).extend(captions)  # a file may list an image several times

    problems.entries(path, enumerate(value_of(read_json(path), "images", list, str(path))), read_image)
    if not found:
        raise UserError(f"{path} has no image with the split 'test'; give its images one, as in Karpathy's files")
    return CaptionedImages.of(found, limit)


def own_image(folder: Path, name: str, where: str) -> ImageSource:
    """An image below the folder of its set. Raises UserError for a path that leads out of it."""
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise UserError(f"{where}: the image {name!r:.80} is not below {folder}; give paths relative to it")
    return ImageSource(path=folder / name)


def read_own(path: Path, limit: int, problems: Problems) -> CaptionedImages:
    """Read NAME.csv or NAME.jsonl, an image and a caption in each row, or Karpathy's NAME.json; the images are in NAME/.

    An image has the captions of all of its rows. Raises UserError for a malformed file.
    """
    folder = path.with_suffix("")
    if path.suffix == ".json":
        return read_karpathy(path, folder, limit, problems)

    def read(row: Mapping[str, Any], where: str) -> tuple[ImageSource, str]:
        image, caption = (value_of(row, key, str, where) for key in ("image", "caption"))
        if not image or not caption.strip():
            raise UserError(f"{where} has no {'caption' if image else 'image'}; correct it")
        return own_image(folder, image, where), caption

    captions: dict[ImageSource, list[str]] = {}
    if path.suffix == ".csv":
        rows = read_table(path, ("image", "caption"), problems, read)
    else:
        lines = [(line, f"{path}, line {number}") for number, line in numbered_lines(path)]
        rows = problems.entries(path, lines, lambda item: read(json_object(*item), item[1]))
    for image, caption in rows:
        captions.setdefault(image, []).append(caption)
    return CaptionedImages.of(captions, limit)


SETS: Final[dict[str, tuple[Callable[[Path, int, Problems], CaptionedImages], str]]] = {
    "coco": (read_coco, COCO_JSON),
    "flickr30k": (read_flickr30k, FLICKR_JSON),
}


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate on both data sets and those of one's own. A missing or malformed one is listed in `details`.

    Raises MissingFilesError if no set is there, and UserError if those that are there are malformed.
    """
    parts: dict[str, TaskResult] = {}
    problems = Problems()
    own = [path for path in sorted((root / FOLDER).glob("*")) if path.suffix in (".csv", ".jsonl", ".json")]
    sets = {key: (partial(read, root), root / file) for key, (read, file) in SETS.items()}
    for path in own:
        if path.stem in sets:
            problems.malformed[path.name] = f"{path} has the name of another set, {path.stem}; rename it"
        sets.setdefault(path.stem, (partial(read_own, path), path))
    for key, (read, file) in sets.items():
        with problems.of(key):
            part = evaluate_set(embedder, root, key, read(options.max_examples, problems), options)
            parts[key] = replace(part, checksums=checksums(root, file))
    problems.require(parts, "; ".join(f"{key}: {reason}" for key, reason in problems.missing.items()))
    return merge(parts, problems)


def evaluate_set(embedder: Embedder, root: Path, key: str, data: CaptionedImages, options: TaskOptions) -> TaskResult:
    """Evaluate on one data set below `root`. Images that cannot be read are skipped with their captions.

    Raises MissingFilesError if no image can be read.
    """
    found = embedder.images(data.images, "squeeze")
    keep_image = torch.ones(len(data.images), dtype=torch.bool)
    keep_image[list(found.errors)] = False
    owners = torch.tensor(data.owners, dtype=torch.int64)
    keep_text = keep_image[owners]
    if not keep_text.any():
        reason = next(iter(found.errors.values()), "it has no captions")
        raise MissingFilesError(f"no image can be read, such as {data.images[0].path}: {reason}")
    model, device = embedder.model, device_of(embedder.model)
    captions = [caption for caption, kept in zip(data.captions, keep_text.tolist(), strict=True) if kept]
    image_ids, text_ids = keep_image.nonzero()[:, 0], owners[keep_text]
    with torch.no_grad():
        image = model.lift_image(found.features[keep_image].to(device))
        text = model.lift_text(embedder.texts(captions).to(device))
    by_text, by_image = (partial(model.scores, ranking=options.ranking, query=side) for side in ("text", "image"))
    ranks = {
        "text_to_image": pessimistic_ranks(by_text, text, image, text_ids, image_ids),
        "image_to_text": pessimistic_ranks(by_image, image, text, image_ids, text_ids),
    }
    n_own = torch.bincount(text_ids, minlength=len(data.images))[image_ids]
    relevant = {"text_to_image": torch.ones(len(text_ids), dtype=torch.int64), "image_to_text": n_own}
    pool = {"text_to_image": len(image_ids), "image_to_text": len(text_ids)}
    units = {"text_to_image": text_ids, "image_to_text": image_ids}
    sizes = (len(image_ids), len(text_ids))
    curves = {name: recall_at(values, DRAWN) for name, values in ranks.items()}
    skipped = {"unreadable image": len(found.errors), "caption of an unreadable image": int((~keep_text).sum())}
    paths = [below(root, data.images[i].path) for i in image_ids.tolist()]
    return TaskResult(
        metrics={f"{d}/recall@{k}": v for d, values in ranks.items() for k, v in recall_at(values, RECALL_AT).items()},
        chance={f"{d}/recall@{k}": chance_recall(pool[d], relevant[d], k) for d in ranks for k in RECALL_AT},
        rules={
            "score": options.ranking,
            "ties": "count against the model",
            "images": "squeezed to a square",
            "pool": f"{sizes[0]} images, {sizes[1]} captions"
            + ("" if sizes == EXPECTED.get(key, sizes) else "; the papers use {} and {}".format(*EXPECTED[key])),
        },
        n_used=sizes[0],
        skipped={why: n for why, n in skipped.items() if n},
        details={
            "median_rank": {name: int(values[values >= 0].median()) + 1 for name, values in ranks.items()},
            "nearest captions": examples(by_image, image, text, image_ids, text_ids, paths, captions),
        },
        figures=[Figure(f"{key}_recall", f"Recall at K on {key}", plots.draw_curves, curves, "K", "recall, percent")],
        items={
            f"{name}/recall@{k}": mean_items(values[values >= 0] < k, units[name][values >= 0])
            for name, values in ranks.items()
            for k in RECALL_AT
        },
    )


def examples(
    score: Callable[[Tensor, Tensor], Tensor],
    image: Tensor,
    text: Tensor,
    image_ids: Tensor,
    text_ids: Tensor,
    paths: list[str],
    captions: list[str],
) -> list[dict[str, object]]:
    """A few images at equal distances in the pool, each with its three best captions; own captions are marked."""
    rows = torch.linspace(0, len(image_ids) - 1, min(N_EXAMPLES, len(image_ids))).round().long()
    _, best = top_k(score, image[..., rows.to(image.device), :], text, 3)
    return [
        {
            "image": paths[row],
            "captions": [
                f"{captions[i]} (own caption)" if text_ids[i] == image_ids[row] else captions[i] for i in columns
            ],
        }
        for row, columns in zip(rows.tolist(), best.tolist(), strict=True)
    ]
