"""Linear probe of the image tower on the 19 sets of MERU (appendix): logistic regression on frozen features.

Features are the outputs of the tower before the projection. C is searched on the validation split, the classifier is
fitted to the training and validation splits, and the metric is the mean accuracy of the classes of the test split.

Shapes: n images, d width of the tower.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Final

import torch
from torch import Tensor

from common.errors import UserError
from trainer.evaluation.embed import device_of
from trainer.evaluation.linear_probe import fit, search
from trainer.evaluation.metrics import macro_accuracy
from trainer.evaluation.tasks.base import Embedder, ImageSource, MissingFilesError, Task, TaskOptions, TaskResult
from trainer.evaluation.tasks.class_folders import class_names, list_class_folders
from trainer.evaluation.tasks.examples import embed_sources

FOLDER: Final = "linear_probe"
VAL_SHARE: Final = {"food101": 0.1, "cifar10": 0.1, "cifar100": 0.1}
"""Share of the training split that is the validation split of sets without one; 0.2 for the others."""
NAMES: Final = (
    *("food101", "cifar10", "cifar100", "cub2011", "sun397", "cars", "aircraft", "dtd", "pets", "caltech101"),
    *("flowers102", "stl10", "eurosat", "resisc45", "country211", "mnist", "clevr", "pcam", "sst2"),
)


@dataclass(frozen=True, kw_only=True)
class Split:
    """Images and their class indices."""

    images: Sequence[ImageSource]
    labels: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class ProbeData:
    """The three splits of a set, in the order in which they are stored, and notes on how they were made."""

    n_classes: int
    train: Split
    val: Split
    test: Split
    rules: Mapping[str, str] = field(default_factory=dict)


Loader = Callable[[Path, int], ProbeData]
"""Function of the data folder and the maximum number of images of a split (0: all). Raises MissingFilesError."""


def folder_loader(name: str) -> Loader:
    """Create a loader of linear_probe/NAME/{train,val,test}/CLASS/IMAGE.

    Without a folder val, the last images of each class in train are the validation split.
    """

    def load(root: Path, max_examples: int) -> ProbeData:
        folder = root / FOLDER / name
        for part in ("train", "test"):
            if not (folder / part).is_dir():
                raise MissingFilesError(f"{folder / part} is missing; expected train, test and val in {folder}")
        classes = class_names(folder / "train")

        def read(part: str) -> Split:
            images, labels = list_class_folders(folder / part, classes, max_examples)
            return Split(images=images, labels=labels)

        train, test = read("train"), read("test")
        if (folder / "val").is_dir():
            return ProbeData(
                n_classes=len(classes), train=train, val=read("val"), test=test, rules={"val": "folder val"}
            )
        share = VAL_SHARE.get(name, 0.2)
        train, val = split_tail(train, share)
        rules = {"val": f"last {share:.0%} of each class of train"}
        return ProbeData(n_classes=len(classes), train=train, val=val, test=test, rules=rules)

    return load


def split_tail(split: Split, share: float) -> tuple[Split, Split]:
    """Split off the last images of each class. A class with several images keeps one and gives one."""
    by_class: dict[int, list[int]] = {}
    for i, label in enumerate(split.labels):
        by_class.setdefault(label, []).append(i)
    tail = {
        i
        for rows in by_class.values()
        for i in rows[len(rows) - min(len(rows) - 1, max(1, round(share * len(rows)))) :]
    }
    parts = [[i for i in range(len(split.labels)) if (i in tail) == wanted] for wanted in (False, True)]
    train, val = (Split(images=[split.images[i] for i in p], labels=[split.labels[i] for i in p]) for p in parts)
    return train, val


LOADERS: Final[dict[str, Loader]] = {name: folder_loader(name) for name in NAMES}


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate the sets that are present. The metrics are the accuracy of each set and their mean."""
    metrics: dict[str, float] = {}
    chance: dict[str, float] = {}
    rules = {"features": "image tower before its projection", "image": "center crop", "optimizer": "L-BFGS of torch"}
    found: dict[str, object] = {}
    missing: dict[str, str] = {}
    malformed: dict[str, str] = {}
    skipped: dict[str, int] = {}
    n_used = 0
    for name, load in LOADERS.items():
        try:
            data = load(root, options.max_examples)
            train, val, test = (embed_split(embedder, split, skipped) for split in (data.train, data.val, data.test))
        except MissingFilesError as error:
            missing[name] = str(error)
            continue
        except UserError as error:
            malformed[name] = str(error)
            continue
        c, tried = search(train, val, data.n_classes)
        both = (torch.cat([train[0], val[0]]), torch.cat([train[1], val[1]]))
        predicted = fit(*both, data.n_classes, c).predict(test[0])
        metrics[f"{name}/accuracy"] = macro_accuracy(predicted.cpu(), test[1].cpu(), data.n_classes)
        chance[f"{name}/accuracy"] = 1 / data.n_classes
        rules |= {f"{name}/{key}": rule for key, rule in data.rules.items()}
        found[name] = {"C": c, "validation": {f"{key:g}": value for key, value in sorted(tried.items())}}
        n_used += len(test[1])
    if not metrics and malformed:
        raise UserError("; ".join(malformed.values()))
    if not metrics:
        raise MissingFilesError(
            f"{root / FOLDER} has none of the sets; expected {FOLDER}/SET/train and test/CLASS/*.jpg"
        )
    return TaskResult(
        metrics=metrics | {"mean/accuracy": fmean(metrics.values())},
        chance=chance | {"mean/accuracy": fmean(chance.values())},
        rules=rules,
        n_used=n_used,
        skipped=skipped,
        details={"missing": missing, "malformed": malformed, **found},
    )


def embed_split(embedder: Embedder, split: Split, skipped: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Features [n d] and labels [n] of the usable images, on the device of the model. Others are added to `skipped`."""
    images = embed_sources(embedder, split.images, trunk=True)
    for reason, n in images.skipped().items():
        skipped[reason] = skipped.get(reason, 0) + n
    device = device_of(embedder.model)
    labels = torch.tensor(split.labels)[images.usable]
    return images.features[images.rows[images.usable]].to(device), labels.to(device)


TASK = Task(
    name="linear_probe",
    title="Linear probe",
    files=(
        "linear_probe/SET/train/CLASS/*.jpg",
        "linear_probe/SET/val/CLASS/*.jpg",
        "linear_probe/SET/test/CLASS/*.jpg",
    ),
    size="19 sets, 0.1 to 12 GB each",
    source="the sets of zero-shot classification",
    license="those of the sets",
    evaluate=evaluate,
)
