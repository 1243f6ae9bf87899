"""Sizes of the miniature study, from a check of the commands to a run on a GPU."""

from dataclasses import dataclass, replace
from typing import Final, Literal

FP32: Final = ("precision=fp32",)
TINY: Final = (
    "model.image.size_px=32",
    "model.image.kwargs.channels=[16,16,32,32]",
    "model.image.kwargs.stem_width=8",
    "model.text.width=32",
    "model.text.layers=1",
    "model.text.heads=2",
    "model.embed_dim=32",
)
"""Overrides of towers for SIZE=smoke."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Data, trainings and evaluations of a study. All trainings see the same number of image-text pairs."""

    about: str
    train_rows: int
    held_out_rows: int
    steps: int
    batch_size: int
    seeds: int
    variants: tuple[str, ...] = ()
    """Keys of `variants.VARIANTS`; empty: all."""
    pictures: int = 6
    """Zero-shot pictures of each concept and style."""
    captioned: int = 500
    """Images for retrieval, with two captions each."""
    pairs: int = 300
    """Pairs of captions in each file of hard negatives."""
    replicates: int = 2000
    """Replicates of the bootstrap."""
    overrides: tuple[str, ...] = FP32
    has_claims: bool = True
    """False if the trainings are too short for statements about the models."""
    runner: Literal["ray", "local"] = "ray"
    """Runner of the pipeline."""


COMPARED: Final = ("clip-boxes", "meru-boxes", "hycoclip", "hycoclip-no-entailment", "phyclip")

FULL: Final = Size(
    about="all models and ablations with 6 seeds, about 4 h on 2 cores",
    train_rows=9600,
    held_out_rows=400,
    steps=600,
    batch_size=48,
    seeds=6,
)
SIZES: Final[dict[str, Size]] = {
    "smoke": Size(
        about="a check of all commands, at most 4 min on 2 cores; no claims",
        train_rows=120,
        held_out_rows=48,
        steps=12,
        batch_size=16,
        seeds=2,
        variants=("clip-boxes", "hycoclip", "phyclip"),
        pictures=1,
        captioned=24,
        pairs=8,
        replicates=200,
        overrides=(*FP32, *TINY, "optim.warmup_steps=2"),
        has_claims=False,
        runner="local",
    ),
    "small": replace(
        FULL,
        about="CLIP and MERU with boxes, HyCoCLIP with and without entailment, PHyCLIP; about 1 h on 2 cores",
        seeds=3,
        variants=COMPARED,
    ),
    "full": FULL,
    "gpu": replace(
        FULL,
        about="full with ten times the rows, for GPUs",
        train_rows=96_000,
        held_out_rows=2000,
        steps=4050,
        batch_size=160,
        captioned=1000,
        pairs=500,
        overrides=("precision=auto",),
    ),
}
