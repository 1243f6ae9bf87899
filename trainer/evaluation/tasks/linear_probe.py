"""Linear probe of the image tower on the 19 sets of MERU (appendix C): logistic regression on frozen features.

Features are the outputs of the tower before the projection. C is searched on the validation split, the classifier is
fitted to the training and validation splits, and the metric is the mean accuracy of the classes of the test split.

Shapes: n images, d width of the tower.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.evaluation.embed import device_of
from trainer.evaluation.metrics.ranking import macro_accuracy
from trainer.evaluation.sets.probe import Split, read_probe
from trainer.evaluation.sets.registry import READERS
from trainer.evaluation.task import Embedder, TaskOptions, TaskResult
from trainer.evaluation.tasks.classification import evenly
from trainer.evaluation.tasks.examples import Problems, embed_sources

# Logistic regression on frozen features, and the search of its regularization (MERU, appendix).
#
# The loss is that of scikit-learn's LogisticRegression: the mean cross entropy plus |W|^2 / (2 C n); the bias is not
# penalized. Two classes have one weight vector. The optimizer is L-BFGS with scikit-learn's limits: at most 1,000
# iterations, until no entry of the gradient exceeds 1e-4.
#
# Shapes: n examples, d features, c classes; c' is c, or 1 for two classes.

GRID: Final = (1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e4, 1e6)
"""Values of C in the first pass of the search."""
REFINEMENTS: Final = 4
FIRST_FACTOR: Final = 10.0
"""Factor between the values of C in the first refinement; its square root in the next one, and so on."""
MAX_ITERATIONS: Final = 1000
TOLERANCE: Final = 1e-4


class Classifier(NamedTuple):
    """Weight [c' d] and bias [c'] of a linear classifier."""

    weight: Tensor
    bias: Tensor

    def predict(self, features: Tensor) -> Tensor:
        """Class [n] of features [n d]."""
        logits = features @ self.weight.T + self.bias
        return (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)


Fit = Callable[[Tensor, Tensor, int, float], Classifier]
"""Function of features [n d], labels [n], number of classes and C."""


def fit(features: Tensor, labels: Tensor, n_classes: int, c: float) -> Classifier:
    """Fit a classifier with the inverse regularization `c`. The result has the dtype and device of the features.

    For C n < 1 the weight is optimized in units of sqrt(C n), so that the penalty is not much steeper than the loss.
    """
    n, width = features.shape
    rows = 1 if n_classes == 2 else n_classes
    scale = min(1.0, (c * n) ** 0.5)
    scaled = torch.zeros(rows, width, dtype=features.dtype, device=features.device, requires_grad=True)
    bias = torch.zeros(rows, dtype=features.dtype, device=features.device, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [scaled, bias],
        max_iter=MAX_ITERATIONS,
        max_eval=15 * MAX_ITERATIONS,
        tolerance_grad=TOLERANCE,
        tolerance_change=64 * torch.finfo(torch.float64).eps,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        logits = F.linear(features, scale * scaled, bias)
        if rows == 1:
            data = F.binary_cross_entropy_with_logits(logits[:, 0], labels.to(logits.dtype))
        else:
            data = F.cross_entropy(logits, labels)
        value = data + scaled.square().sum() * (scale**2 / (2 * c * n))
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    return Classifier(scale * scaled.detach(), bias.detach())


def search(
    train: tuple[Tensor, Tensor], val: tuple[Tensor, Tensor], n_classes: int, fit_classifier: Fit = fit
) -> tuple[float, dict[float, float]]:
    """Return the C with the best macro accuracy on `val`, and the accuracy of each C that was tried.

    `train` and `val` are features [n d] and labels [n]. Values of `GRID` are tried first, then C / f and C * f around
    the best C for factors f from `FIRST_FACTOR` on. The best C changes only if another one is better, so that the
    smallest C of `GRID` wins a tie; it may change between the two values of a refinement.
    """
    tried: dict[float, float] = {}
    best = (-1.0, GRID[0])

    def attempt(c: float) -> None:
        nonlocal best
        if c not in tried:
            predicted = fit_classifier(*train, n_classes, c).predict(val[0])
            tried[c] = macro_accuracy(predicted, val[1], n_classes)
        if tried[c] > best[0]:
            best = (tried[c], c)

    for c in GRID:
        attempt(c)
    factor = FIRST_FACTOR
    for _ in range(REFINEMENTS):
        attempt(best[1] / factor)
        attempt(best[1] * factor)
        factor **= 0.5
    return best[1], tried


NAMES: Final = tuple(key for key in READERS if key != "imagenet")


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate the sets that are present. The metrics are the accuracy of each set and their mean."""
    metrics: dict[str, float] = {}
    chance: dict[str, float] = {}
    rules = {"features": "image tower before its projection", "image": "center crop", "optimizer": "L-BFGS of torch"}
    found: dict[str, object] = {}
    problems = Problems()
    skipped: dict[str, int] = {}
    n_used = 0
    sums: dict[str, str] = {}
    for name in NAMES:
        with problems.of(name):
            data = read_probe(root, name)
            train, val, test = (
                embed_split(embedder, split.take(evenly(len(split.labels), options.max_examples)), skipped)
                for split in (data.train, data.val, data.test)
            )
            c, tried = search(train, val, data.n_classes)
            both = (torch.cat([train[0], val[0]]), torch.cat([train[1], val[1]]))
            predicted = fit(*both, data.n_classes, c).predict(test[0])
            metrics[f"{name}/accuracy"] = macro_accuracy(predicted.cpu(), test[1].cpu(), data.n_classes)
            chance[f"{name}/accuracy"] = 1 / data.n_classes
            sums |= data.checksums
            rules |= {f"{name}/{key}": rule for key, rule in data.rules.items()}
            found[name] = {"C": c, "validation": {f"{key:g}": value for key, value in sorted(tried.items())}}
            n_used += len(test[1])
    problems.require(
        metrics,
        f"{root} has none of the {len(NAMES)} sets with training images; expected the official files that --help "
        f"lists, such as {root}/dtd/dtd/labels/train1.txt, or plain folders {root}/KEY/{{train,val,test}}/CLASS/IMAGE",
    )
    return TaskResult(
        metrics=metrics | {"mean/accuracy": fmean(metrics.values())},
        chance=chance | {"mean/accuracy": fmean(chance.values())},
        rules=rules,
        n_used=n_used,
        skipped=skipped,
        checksums=sums,
        details=problems.details() | found,
    )


def embed_split(embedder: Embedder, split: Split, skipped: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Features [n d] and labels [n] of the usable images, on the device of the model. Others are added to `skipped`."""
    images = embed_sources(embedder, split.images, trunk=True)
    for reason, n in images.skipped().items():
        skipped[reason] = skipped.get(reason, 0) + n
    device = device_of(embedder.model)
    labels = torch.tensor(split.labels)[images.usable]
    return images.features[images.rows[images.usable]].to(device), labels.to(device)
