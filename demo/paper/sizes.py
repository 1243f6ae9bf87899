"""Sizes of the miniature study, from a check of the commands to a run on a GPU."""

from dataclasses import dataclass, replace
from typing import Final, Literal

from demo.paper.variants import VARIANTS, Variant


@dataclass(frozen=True, kw_only=True)
class Size:
    """Data, trainings and evaluations of a study. All trainings of a row see the same number of image-text pairs."""

    about: str
    train_rows: int
    held_out_rows: int
    rows: tuple[str, ...] = ()
    """Keys of `variants.VARIANTS`; empty: all."""
    seeds: int = 10
    """Largest number of seeds of a row."""
    rates: tuple[float, ...] = (2e-3, 4e-3, 8e-3, 1.6e-2)
    steps: tuple[int, ...] = (500, 1000)
    """Learning rates, and steps of a training of the last number, among which the validation split chooses."""
    tuning_seeds: int = 2
    pictures: int = 28
    """Test scenes of each concept."""
    captioned: int = 2000
    """Scenes for retrieval, with two captions each; a quarter as many chains."""
    pairs: int = 1000
    """Pairs of captions in each file of hard negatives."""
    overrides: tuple[str, ...] = ()
    has_claims: bool = True
    """False if the trainings are too short for statements about the models."""
    runner: Literal["ray", "local"] = "ray"
    """Runner of the pipeline."""

    def seeds_of(self, variant: Variant) -> int:
        """The number of seeds of a row."""
        return min(self.seeds, variant.seeds)


def rows_of(size: Size) -> list[Variant]:
    """The rows of a size, in the order in which they are trained."""
    return [VARIANTS[key] for key in size.rows or VARIANTS]


COMPARED: Final = ("clip", "clip-boxes", "meru", "meru-boxes", "hycoclip", "hycoclip-no-entailment", "phyclip")
FULL: Final = Size(
    about="all rows, an estimated 8 h on 2 cores after 1.5 h for the data", train_rows=60_000, held_out_rows=1000
)
SIZES: Final[dict[str, Size]] = {
    "smoke": Size(
        about="a check of all commands, at most 4 min on 2 cores; no claims",
        train_rows=120,
        held_out_rows=48,
        rows=("clip", "hycoclip", "phyclip@scenes", "clip-boxes@true", "meru-w96"),
        seeds=2,
        rates=(1e-3, 2e-3),
        steps=(5, 10),
        tuning_seeds=1,
        pictures=1,
        captioned=24,
        pairs=8,
        overrides=("batch_size=32", "optim.warmup_steps=2"),
        has_claims=False,
        runner="local",
    ),
    "small": replace(
        FULL,
        about="seven rows on one tower with 3 seeds, about 15 min on 2 cores",
        train_rows=6000,
        held_out_rows=400,
        rows=COMPARED,
        seeds=3,
        rates=(8e-3,),
        steps=(1000,),
        pictures=10,
        captioned=800,
        pairs=400,
    ),
    "full": FULL,
    "gpu": replace(FULL, about="full with ten times the scenes, for GPUs and many cores", train_rows=600_000),
}
