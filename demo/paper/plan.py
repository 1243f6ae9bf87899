"""The runs of a study: for every variant and seed a training, an evaluation, and the file with its result."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from demo.paper.sizes import Size
from demo.paper.steps import Step
from demo.paper.variants import VARIANTS, Variant

MEASURED: Final = ("classification", "retrieval", "hierarchical", "vlchecklist", "sugarcrepe", "order")
"""Tasks of `trainer.evaluate` with the metrics of the tables. All seeds are evaluated on them."""
PICTURED: Final = ("norms", "traversal", "interpolation", "factors")
"""Tasks whose figures the page shows. Only the first seed is evaluated on them, and only it has figures."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """The training and the evaluation of a variant with a seed. `result` is the file written at their end."""

    variant: Variant
    seed: int
    training: Step
    evaluation: Step
    result: Path

    @property
    def identity(self) -> dict[str, Any]:
        """All that the result depends on."""
        return self.evaluation.identity

    @property
    def evaluated(self) -> Path:
        """The folder with the files of `trainer.evaluate`: TASK.json, TASK.npz and figures."""
        return self.evaluation.output / self.evaluation.output.name


def tasks_of(seed: int) -> tuple[str, ...]:
    """The tasks on which the models of a seed are evaluated."""
    return MEASURED if seed else (*MEASURED, *PICTURED)


def chosen(size: Size) -> list[Variant]:
    """The variants of a size."""
    return [VARIANTS[key] for key in size.variants or VARIANTS]


def run_name(variant: Variant, seed: int) -> str:
    """Name of a training, of its evaluation and of its result."""
    return f"{variant.key}-{seed}"


def plan(folder: Path, results: Path, size: Size, data: dict[str, Any], workers: int) -> list[Run]:
    """The runs in the order of the seeds, so that an interrupted study has all rows of the first seeds."""
    return [
        plan_run(folder, results, size, variant, seed, data, workers)
        for seed in range(size.seeds)
        for variant in chosen(size)
    ]


def steps_of(runs: Sequence[Run]) -> list[Step]:
    """Trainings and evaluations in their order."""
    return [step for run in runs for step in (run.training, run.evaluation)]


def plan_run(
    folder: Path, results: Path, size: Size, variant: Variant, seed: int, data: dict[str, Any], workers: int
) -> Run:
    """The run of a variant with a seed. Outputs are below `folder`, and the result is in `results`."""
    training = training_step(folder, size, variant, seed, data, workers)
    return Run(
        variant=variant,
        seed=seed,
        training=training,
        evaluation=evaluation_step(folder, training, seed),
        result=results / f"{run_name(variant, seed)}.parquet",
    )


def training_step(folder: Path, size: Size, variant: Variant, seed: int, data: dict[str, Any], workers: int) -> Step:
    """The training of a variant. Seeds set the initial weights and the order of the data."""
    settings = [
        *variant.arguments(),
        *(f"optim.steps={size.steps}", f"batch_size={size.batch_size}"),
        *(f"seed={seed}", f"data.seed={seed}"),
        *('evaluation.shards=""', "evaluation.image_folders=[]", "evaluation.every=0"),
        *size.overrides,
    ]
    name = run_name(variant, seed)
    output = folder / "runs" / name
    paths = [f"data.shards={folder / 'data' / 'shards' / 'train'}", f"output={output}"]
    return Step(
        name=f"train-{name}",
        kind="train with boxes" if variant.has_boxes else "train",
        command=(sys.executable, "-m", "trainer.train", *settings, *paths, f"data.workers={workers}"),
        output=output,
        identity={"settings": settings, "data": data},
    )


def evaluation_step(folder: Path, training: Step, seed: int) -> Step:
    """The evaluation of a trained model."""
    tasks = tasks_of(seed)
    output = folder / "evaluation" / training.output.name
    arguments = [
        f"model=[{training.output / 'model'}]",
        f"data={folder / 'data' / 'sets'}",
        f"output={output}",
        f"tasks=[{','.join(tasks)}]",
        f"figures={str(not seed).lower()}",
        "workers=1",
    ]
    return Step(
        name=f"evaluate-{training.output.name}",
        kind="evaluate" if seed else "evaluate with figures",
        command=(sys.executable, "-m", "trainer.evaluate", *arguments),
        output=output,
        identity={"tasks": list(tasks), **training.identity},
        after=(training.name,),
    )
