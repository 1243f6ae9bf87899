"""Warnings about runs that train but do not learn: collapse, a parameter at its limit, a dead loss term.

A warning needs `PATIENCE` rows of metrics in a row after the warm-up, and is logged once per run.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Set
from statistics import fmean
from typing import Final, NamedTuple

from trainer.config import TrainConfig
from trainer.models.config import CONTRAST_TERMS, ModelConfig
from trainer.training.build import Training

logger = logging.getLogger(__name__)

PATIENCE: Final = 5
NEAR_CHANCE: Final = 0.01
"""Relative distance of a contrastive loss from that of equal similarities that counts as collapse."""
LEAST_CANDIDATES: Final = 8
"""Candidates from which such a loss is a sign: that of a few differs little from chance in any case."""
AT_LIMIT: Final = 1e-4
"""Relative distance of a parameter from its limit that counts as pinned."""
DEAD: Final = 1e-7
"""Absolute value of a loss term that counts as zero."""


class Problem(NamedTuple):
    """A sign of bad health: a short key, and the message with the fix."""

    key: str
    message: str


class Health:
    """Watches the metrics of a run in its main process."""

    def __init__(self, run: Training) -> None:
        self.run = run
        self.rows: Counter[str] = Counter()
        self.logged: set[str] = set()

    def check(self, step: int, values: dict[str, float]) -> list[str]:
        """Log what is wrong since `PATIENCE` rows; return the messages. `values` are those of the row of this step."""
        if step < self.run.config.optim.warmup_steps:
            return []
        found = {problem.key: problem.message for problem in self.problems(values)}
        self.rows = Counter({key: self.rows[key] + 1 for key in found})
        due = [key for key, n in self.rows.items() if n == PATIENCE and key not in self.logged]
        self.logged.update(due)
        for key in due:
            logger.warning("step %d: %s", step, found[key])
        return [found[key] for key in due]

    def problems(self, values: dict[str, float]) -> Iterator[Problem]:
        """The problems of one row of metrics."""
        yield from collapse(values, self.run.config)
        yield from pinned(values, self.run)
        yield from dead_terms(values, self.run.model.shares)


def collapse(values: dict[str, float], config: TrainConfig) -> Iterator[Problem]:
    """Report a contrastive loss of log n, that of equal similarities with all n candidates.

    Terms of weight 0 reduce it. If boxes are compared with the unknown number of all boxes, it is larger than log n.
    """
    more = values.get("data/boxes_per_sample", 1.0) if config.model.boxes_as_pairs else 0.0
    n = round(config.batch_size * (1 + more))
    chance, loss = weight_of_contrast(config.model) * math.log(n), values.get("loss/contrastive", 0.0)
    loss = values.get("loss/contrastive/global", loss)  # of models with several contrastive losses
    has_more = getattr(config.model, "box_candidates", "") == "paper" and config.data.boxes == "all"
    if (
        chance
        and n >= LEAST_CANDIDATES
        and (abs(loss - chance) <= NEAR_CHANCE * chance or (has_more and loss > chance))
    ):
        yield Problem(
            "collapse",
            f"loss/contrastive is {loss:.3f}, as if all points were equal ({chance:.3f} for {n} candidates): the "
            "points have collapsed, or the model learns nothing. Go back to an earlier checkpoint; lower optim.lr or "
            "model.entail_weight, or raise optim.warmup_steps",
        )


def weight_of_contrast(model: ModelConfig) -> float:
    """Mean weight of the contrastive terms: 1 without `contrast_terms`."""
    weights: dict[str, float] = getattr(model, "contrast_terms", {})
    terms = CONTRAST_TERMS if getattr(model, "use_boxes", False) else CONTRAST_TERMS[:2]
    return fmean(weights.get(term, 1.0) for term in terms)


def pinned(values: dict[str, float], run: Training) -> Iterator[Problem]:
    """Report a temperature or a curvature at the limit to which it is clamped."""
    model = run.config.model
    ratio, center = getattr(model, "curv_max_ratio", 0.0), getattr(model, "curv_init", 0.0)
    learns = getattr(model, "curv_learnable", False) and ratio > 1 and "curv_init" not in model.schedules
    learned = [name for name, setting in run.model.temperatures.items() if setting not in model.schedules]
    limits = [(name, model.max_logit_scale, "model.max_logit_scale") for name in learned]
    limits += [("curvature", center * ratio, "model.curv_max_ratio")] if learns else []
    limits += [("curvature", center / ratio, "model.curv_max_ratio")] if learns else []
    for name, limit, key in limits:
        for suffix in ("", "/min", "/max"):
            value = values.get(f"geometry/{name}{suffix}")
            if value is not None and abs(value - limit) <= AT_LIMIT * limit:
                yield Problem(
                    f"{name} {limit}",
                    f"geometry/{name}{suffix} is at its limit, {limit:g}, and no longer learns; this is usual for the "
                    f"temperature late in a run, otherwise lower optim.lr or change {key}",
                )
                break


def dead_terms(values: dict[str, float], shares: Set[str]) -> Iterator[Problem]:
    """Report loss terms that are zero and therefore have no gradient. `shares` are the names of terms that are none."""
    for name, value in values.items():
        group, _, term = name.partition("/")
        if group == "loss" and term not in shares and not name.endswith(("/min", "/max")) and abs(value) <= DEAD:
            yield Problem(
                f"dead {name}",
                f"{name} is zero and has no gradient: every pair satisfies it, which after a collapse is no success. "
                "Compare its order and auc in the evaluation; check the weight and the eta of this term",
            )
