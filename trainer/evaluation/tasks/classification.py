"""Zero-shot image classification on 20 data sets (MERU, section 4.3; HyCoCLIP and PHyCLIP use 16 of them).

The class of an image is the one with the best score. The features of the prompts of a class are averaged before the
lift, as in the released code of MERU. The papers' accuracy is the mean of the per-class recalls ("macro"); the share of
correct images ("micro") differs for data sets with unequal classes.

Shapes: n images, c classes, p prompts, d embedding width.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from trainer.evaluation import plots
from trainer.evaluation.embed import device_of
from trainer.evaluation.metrics.items import mean_items
from trainer.evaluation.metrics.ranking import confusion, macro_accuracy, predict
from trainer.evaluation.sets.base import ZeroShotSet, own_sets, read_own_set
from trainer.evaluation.sets.registry import READERS, read_set
from trainer.evaluation.task import Embedder, Figure, MissingFilesError, TaskOptions, TaskResult
from trainer.evaluation.tasks.examples import Problems, merge

MAX_CONFUSIONS = 12
MAX_CLASSES_DRAWN = 50


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate on all data sets that are below `root`. Others are listed in `details`, as missing or malformed.

    Raises MissingFilesError if no set is there, and UserError if all that are there are malformed.
    """
    parts: dict[str, TaskResult] = {}
    problems = Problems()
    for key in READERS:
        with problems.of(key):
            parts[key] = evaluate_set(embedder, read_set(root, key), options)
    for key in own_sets(root):
        with problems.of(key):
            parts[key] = evaluate_set(embedder, read_own_set(root, key), options)
    problems.require(
        parts,
        f"{root} has none of the {len(READERS)} sets; expected the official files that --help lists, such as "
        f"{root}/food101/food-101/meta/test.txt, or plain folders {root}/KEY/CLASS/IMAGE",
    )
    bars = {key: (part.metrics["accuracy"], part.chance["accuracy"]) for key, part in parts.items()}
    overview = Figure("accuracy", "Accuracy of each data set", plots.draw_bars, bars)
    return merge(parts, problems, [overview])


def evaluate_set(embedder: Embedder, data: ZeroShotSet, options: TaskOptions) -> TaskResult:
    """Evaluate on one data set. Images that cannot be read are skipped and counted.

    Raises MissingFilesError if none can be read.
    """
    key, names = data.info.key, list(data.names)
    keep = evenly(len(data.images), options.max_examples)
    found = embedder.images([data.images[i] for i in keep], "crop")
    usable = [row for row in range(len(keep)) if row not in found.errors]
    if not usable:
        raise MissingFilesError(f"no image can be read, such as {data.images[0].path}: {found.errors[0]}")
    target = torch.tensor([data.targets[keep[row]] for row in usable])
    classes = class_points(embedder, names, data.info.prompts)
    predicted = predict(embedder.model, found.features[usable], classes, options.ranking)
    table = confusion(predicted, target, len(names))
    micro = (predicted == target).double().mean().item()
    figures = []
    if len(names) <= MAX_CLASSES_DRAWN:
        figures.append(Figure(f"{key}_confusion", f"Confusion of {key}", plots.draw_confusion, table.tolist(), names))
    limit = {"limit": f"{len(keep)} of {len(data.images)} images"} if len(keep) < len(data.images) else {}
    return TaskResult(
        metrics={"accuracy": macro_accuracy(predicted, target, len(names)), "accuracy_micro": micro},
        chance={"accuracy": 1 / len(names), "accuracy_micro": 1 / len(names)},
        rules={"score": options.ranking, **data.rules, **limit},
        n_used=len(usable),
        skipped={"unreadable image": len(keep) - len(usable)} if len(usable) < len(keep) else {},
        checksums=data.checksums,
        details={
            "images": len(usable),
            "unreadable": [f"{data.images[keep[row]].path}: {why}" for row, why in list(found.errors.items())[:5]],
            "confusions": largest_confusions(table, distinct(names)),
            "recall": dict(zip(distinct(names), (table.diagonal() / table.sum(1).clamp(min=1)).tolist(), strict=True)),
        },
        figures=figures,
        items={
            "accuracy": mean_items(macro_items(predicted, target, len(names))),
            "accuracy_micro": mean_items(predicted == target),
        },
    )


def distinct(names: Sequence[str]) -> list[str]:
    """Names of classes as keys: one that several classes have, such as ImageNet's crane, gets the number of the class.

    >>> distinct(["crane", "cat", "crane"])
    ['crane (0)', 'cat', 'crane (2)']
    """
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name} ({number})" for number, name in enumerate(names)]


def evenly(n: int, limit: int) -> list[int]:
    """Indices below n, at most `limit` (0: all), at equal distances."""
    if not 0 < limit < n:
        return list(range(n))
    return torch.linspace(0, n - 1, limit, dtype=torch.float64).round().long().tolist()


def class_points(embedder: Embedder, names: Sequence[str], prompts: Sequence[str]) -> Tensor:
    """Lifted points [*k c d] of classes: the mean feature of their prompts, lifted. CLIP averages directions."""
    features = embedder.texts([prompt.replace("{}", name) for name in names for prompt in prompts])
    with torch.no_grad():
        stacked = features.unflatten(0, (len(names), len(prompts))).to(device_of(embedder.model))
        return embedder.model.lift_prompts(stacked)


def macro_items(predicted: Tensor, target: Tensor, n_classes: int) -> Tensor:
    """Correctness [n], weighted such that the mean is `macro_accuracy`."""
    targets = torch.bincount(target, minlength=n_classes)
    n_occurring = (targets + torch.bincount(predicted, minlength=n_classes)).count_nonzero()
    return (predicted == target).double() * len(target) / (n_occurring * targets[target])


def largest_confusions(table: Tensor, names: Sequence[str]) -> list[dict[str, object]]:
    """The most frequent mistakes: true class, predicted class, and the share of the true class."""
    wrong = table - torch.diag(table.diagonal())
    values, places = wrong.flatten().sort(descending=True, stable=True)
    return [
        {
            "true": names[place // len(names)],
            "predicted": names[place % len(names)],
            "share": value / max(1, int(table[place // len(names)].sum())),
        }
        for value, place in zip(values[:MAX_CONFUSIONS].tolist(), places[:MAX_CONFUSIONS].tolist(), strict=True)
        if value
    ]
