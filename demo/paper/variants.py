"""Rows of the tables: each registered model, and its ablations that its settings allow.

A new entry of `trainer.models.registry.MODELS` gets a row by itself, a row without boxes if it has the setting
`use_boxes`, and a row without entailment loss if it has one (`entail_weight` above 0).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from demo.train_demo import job_files
from trainer.models.registry import MODELS


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A row: a model with settings of the trainer. `has_boxes` is true if it is trained on boxes."""

    key: str
    model: str
    title: str
    has_boxes: bool
    overrides: tuple[str, ...] = ()
    is_ablation: bool = False

    def arguments(self) -> list[str]:
        """The arguments of `trainer.train`."""
        return [*job_files(self.model, few_steps=True), f"model_name={self.model}", *self.overrides]


def variants_of(model: str) -> Iterator[Variant]:
    """Yield the rows of a registered model."""
    entry = MODELS[model]
    name = entry.title + " (experimental)" * entry.is_experimental
    plain = ("model.boxes_as_pairs=false",)
    uses_boxes = hasattr(entry.config, "use_boxes")
    yield Variant(key=model, model=model, title=name, has_boxes=uses_boxes, overrides=plain)
    if entry.has_paired_boxes:
        pairs = ("model.boxes_as_pairs=true",)
        yield Variant(key=f"{model}-boxes", model=model, title=f"{name} with boxes", has_boxes=True, overrides=pairs)
    if uses_boxes:
        yield Variant(
            key=f"{model}-no-boxes",
            model=model,
            title=f"{name} without boxes",
            has_boxes=False,
            overrides=(*plain, "model.use_boxes=false"),
            is_ablation=True,
        )
    if getattr(entry.config(), "entail_weight", 0):
        yield Variant(
            key=f"{model}-no-entailment",
            model=model,
            title=f"{name} without entailment",
            has_boxes=uses_boxes,
            overrides=(*plain, "model.entail_weight=0"),
            is_ablation=True,
        )


VARIANTS: Final[dict[str, Variant]] = {variant.key: variant for model in MODELS for variant in variants_of(model)}
