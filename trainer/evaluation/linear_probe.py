"""Logistic regression on frozen features, and the search of its regularization (MERU, appendix).

The loss is that of scikit-learn's LogisticRegression: the mean cross entropy plus |W|^2 / (2 C n); the bias is not
penalized. Two classes have one weight vector. The optimizer is L-BFGS with scikit-learn's limits: at most 1,000
iterations, until no entry of the gradient exceeds 1e-4.

Shapes: n examples, d features, c classes; c' is c, or 1 for two classes.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.evaluation.metrics import macro_accuracy

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
