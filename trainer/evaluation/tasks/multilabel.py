"""Images of several classes: mAP (UNCHA, "multi-object representation"), and their distances as a Boolean lattice.

UNCHA does not state its protocol. Here, classes are texts, nothing is trained, and all images are ranked by their score
for a class: `mAP` by the score of the retrieval, `softmax/mAP` by the softmax over the classes with the trained
temperature, which makes distances comparable between images. `lattice/...` compares the distances of images with the
Hamming distances of their object sets (PHyCLIP, proposition 1).

Shapes: n images, c classes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from trainer.evaluation.embed import device_of
from trainer.evaluation.metrics.distances import agreement, hamming, pairwise_distances
from trainer.evaluation.metrics.ranking import IGNORED, class_precisions, prevalence
from trainer.evaluation.sets.annotations import checksums, field, read_lines
from trainer.evaluation.task import Embedder, ImageSource, MissingFilesError, TaskOptions, TaskResult
from trainer.evaluation.tasks.classification import class_points, evenly
from trainer.evaluation.tasks.detection import PROMPTS
from trainer.evaluation.tasks.examples import Problems, coco_images, coco_names, embed_sources, merge, read_kind
from trainer.evaluation.tasks.hierarcaps_expanded import read_table

VOC: Final = "voc2007/VOCdevkit/VOC2007"
COCO: Final = "coco/annotations/instances_val2017.json"
FOLDER: Final = "multilabel"
JOINER: Final = ";"
STATES: Final = {"1": 1, "0": IGNORED, "-1": 0}
"""Labels of VOC's files: the class is there, only as a difficult object, or not."""
LATTICE_IMAGES: Final = 2000
"""Images whose pairs are compared with the lattice, at equal distances in the order of the files."""


@dataclass(frozen=True, kw_only=True)
class MultiLabelSet:
    """Images with their labels [n c], 1, 0 or `IGNORED`, the names of the classes, and the annotation files."""

    images: Sequence[ImageSource]
    labels: Tensor
    names: Sequence[str]
    files: Sequence[Path]


def to_set(images: Mapping[ImageSource, Mapping[str, int]], files: Sequence[Path]) -> MultiLabelSet:
    """A set from the labels of each image by class name; a class that an image does not list has the label 0."""
    names = sorted({name for labels in images.values() for name in labels})
    if not names:
        raise UserError(f"{files[0]} has no image with a label; correct it")
    rows = [[labels.get(name, 0) for name in names] for labels in images.values()]
    return MultiLabelSet(images=list(images), labels=torch.tensor(rows).view(-1, len(names)), names=names, files=files)


def read_voc(root: Path, problems: Problems) -> MultiLabelSet:
    """Read the test split of VOC 2007. Raises MissingFilesError, and UserError for malformed files."""
    folder = root / VOC
    files = sorted((folder / "ImageSets" / "Main").glob("*_test.txt"))
    if not files:
        raise MissingFilesError(f"expected {folder}/ImageSets/Main/CLASS_test.txt and {folder}/JPEGImages")
    images: dict[ImageSource, dict[str, int]] = {}
    for path in files:

        def read(line: str, path: Path = path) -> None:
            name, _, state = line.partition(" ")
            if state.strip() not in STATES:
                raise UserError(f"{path}: {line!r:.80} is not an image with 1, 0 or -1; download it again")
            source = ImageSource(path=folder / "JPEGImages" / f"{name}.jpg")
            images.setdefault(source, {})[path.stem.removesuffix("_test")] = STATES[state.strip()]

        problems.entries(path, read_lines(path), read)
    return to_set(images, files)


def read_coco(root: Path, problems: Problems) -> MultiLabelSet:
    """Read the objects of COCO val2017. Raises MissingFilesError, and UserError for malformed annotations."""
    path, folder = root / COCO, root / "coco" / "val2017"
    if not path.is_file():
        raise MissingFilesError(f"expected {path} and {folder}/000000000139.jpg")
    table = read_kind(path, dict)
    names, sources = coco_names(path, table, problems), coco_images(path, table, folder, problems)

    def read_object_of(row: Any) -> tuple[int, int]:
        category, image = (field(row, key, int, f"{path}, annotation") for key in ("category_id", "image_id"))
        if category not in names or image not in sources:
            raise UserError(f"{path} has an object of image {image} and category {category}, which it does not list")
        return image, category

    images: dict[ImageSource, dict[str, int]] = {source: {} for source, _ in sources.values()}
    listed = field(table, "annotations", list, str(path))
    for image, category in problems.entries(path, listed, read_object_of, f"{path.name}/annotations"):
        images[sources[image][0]][names[category]] = 1
    return to_set(images, [path])


def read_own(path: Path, root: Path, problems: Problems) -> MultiLabelSet:
    """Read NAME.csv: an image and its labels, joined by `;` or in several rows. Raises UserError if it is malformed."""

    def read(row: Mapping[str, str | None], where: str) -> tuple[ImageSource, dict[str, int]]:
        name, labels = row["image"], [part.strip() for part in (row["labels"] or "").split(JOINER)]
        if not name:
            raise UserError(f"{where} has no image; correct it")
        return ImageSource(path=path.with_suffix("") / name), {label: 1 for label in labels if label}

    images: dict[ImageSource, dict[str, int]] = {}
    for source, labels in read_table(path, ("image", "labels"), problems, read):
        images[source] = images.get(source, {}) | labels
    return to_set(images, [path])


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate VOC 2007, COCO and the sets of one's own, whose names begin those of the metrics.

    Raises MissingFilesError if no set is there, and UserError if those that are there are malformed.
    """
    readers: dict[str, Callable[[Path, Problems], MultiLabelSet]] = {"voc2007": read_voc, "coco": read_coco}
    readers |= {path.stem: partial(read_own, path) for path in sorted((root / FOLDER).glob("*.csv"))}
    problems, parts = Problems(), dict[str, TaskResult]()
    for name, read in readers.items():
        with problems.of(name):
            parts[name] = evaluate_set(embedder, root, read(root, problems), options)
    problems.require(parts, "; ".join(problems.missing.values()))
    return merge(parts, problems)


def evaluate_set(embedder: Embedder, root: Path, data: MultiLabelSet, options: TaskOptions) -> TaskResult:
    """Evaluate one set. Raises MissingFilesError if no image can be read."""
    keep = evenly(len(data.images), options.max_examples)
    images = embed_sources(embedder, [data.images[i] for i in keep])
    labels = data.labels[torch.tensor(keep)[images.usable]]
    model = embedder.model
    classes = class_points(embedder, data.names, PROMPTS)
    with torch.no_grad():
        points = model.lift_image(images.features[images.rows[images.usable]].to(device_of(model)))
        logits = model.directed_similarity(points, classes, "image").double() * model.pair_scale().item()
        scores = {"": model.scores(points, classes, options.ranking, "image"), "softmax/": logits.log_softmax(1)}
    precisions = {prefix: class_precisions(found.cpu(), labels) for prefix, found in scores.items()}
    rows = torch.tensor(evenly(len(labels), LATTICE_IMAGES))
    objects = labels[rows] != 0  # a difficult object is in the image too
    lattice = agreement(pairwise_distances(model, points[..., rows, :]).cpu(), hamming(objects))
    return TaskResult(
        metrics={f"{prefix}mAP": found.nanmean().item() for prefix, found in precisions.items()}
        | {f"lattice/{name}": value for name, value in lattice.items()},
        chance={f"{prefix}mAP": prevalence(labels).nanmean().item() for prefix in precisions},
        rules={
            "score": options.ranking,
            "image": "center crop",
            "prompts": " | ".join(PROMPTS),
            "mAP": "mean over classes; UNCHA does not state its protocol",
            "lattice": f"Hamming distances of the object sets of {len(rows)} images, with difficult objects",
        },
        n_used=len(labels),
        skipped=images.skipped(),
        checksums=checksums(root, *data.files),
        details={"AP": {n: v for n, v in zip(data.names, precisions[""].tolist(), strict=True) if v == v}},
    )
