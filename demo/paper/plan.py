"""The trainings and evaluations of a study: one of each for every variant and seed."""

import sys
from pathlib import Path
from typing import Any, Final

from demo.paper.sizes import Size
from demo.paper.steps import Step
from demo.paper.variants import VARIANTS, Variant

TASKS: Final = (
    *("classification", "retrieval", "hierarchical", "vlchecklist", "sugarcrepe", "order"),
    *("norms", "traversal", "interpolation", "factors"),
)
"""Tasks of `trainer.evaluate`."""


def chosen(size: Size) -> list[Variant]:
    """The variants of a size."""
    return [VARIANTS[key] for key in size.variants or VARIANTS]


def run_name(variant: Variant, seed: int) -> str:
    """Name of a training and of its evaluation."""
    return f"{variant.key}-{seed}"


def plan(folder: Path, size: Size, data: dict[str, Any], workers: int) -> list[Step]:
    """The steps in the order of the seeds, so that an interrupted study has all rows of the first seeds."""
    steps = []
    for seed in range(size.seeds):
        for variant in chosen(size):
            training = training_step(folder, size, variant, seed, data, workers)
            steps += [training, evaluation_step(folder, training)]
    return steps


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
        kind="train",
        command=(sys.executable, "-m", "trainer.train", *settings, *paths, f"data.workers={workers}"),
        output=output,
        identity={"settings": settings, "data": data},
    )


def evaluation_step(folder: Path, training: Step) -> Step:
    """The evaluation of a trained model on all tasks."""
    output = folder / "evaluation" / training.output.name
    arguments = [
        f"model=[{training.output / 'model'}]",
        f"data={folder / 'data' / 'sets'}",
        f"output={output}",
        f"tasks=[{','.join(TASKS)}]",
        "workers=1",
    ]
    return Step(
        name=f"evaluate-{training.output.name}",
        kind="evaluate",
        command=(sys.executable, "-m", "trainer.evaluate", *arguments),
        output=output,
        identity={"tasks": list(TASKS), **training.identity},
        after=(training.name,),
    )


def result_folder(folder: Path, variant: Variant, seed: int) -> Path:
    """The folder of the results TASK.json and TASK.npz of one model."""
    name = run_name(variant, seed)
    return folder / "evaluation" / name / name
