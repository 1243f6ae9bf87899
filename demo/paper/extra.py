"""What no paper measures, `SIZE=extra`: each experiment has one figure and three sentences on the page of the full study.

- boxes: HyCoCLIP on true boxes that are moved until they overlap the true one by a given IoU.
- structures: distortion of trees, of a product of trees and of a lattice, and Gromov's delta, by number of factors.
- phases: HyCoCLIP by rate, initial curvature and K: where it learns, and where it collapses.

WORK/extra/NAME.json has the figures of a training, and OUT/results/extra.json what the page shows.
"""

import json
import math
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, Final

from demo.paper.data import write_features, write_shards
from demo.paper.heads import evaluate
from demo.paper.run import Folders, Run, cached_features, each, trainings
from demo.paper.scenes import FORMAT
from demo.paper.sizes import Size
from demo.paper.variants import VARIANTS, Variant
from demo.train_demo_data import add_member
from hypergrit_common.disk import atomic_write
from hypergrit_common.json_file import read_object, write_object
from hypergrit_common.plots import COLORS, axes

IOUS: Final = (0.85, 0.7, 0.5, 0.3)
N_TARS: Final = 4
"""Tars of scenes whose boxes are moved: 12,000 scenes of the full study."""
SEEDS: Final = 3
ACCURACY: Final = "classification:scenes/accuracy"
ORDER: Final = "order:cross_image/order"
FACTORS: Final = ("clip", "hycoclip", "phyclip-k1", "phyclip-k8", "phyclip-k16", "phyclip-k32", "phyclip-k64")
STRUCTURES: Final = {"scenes": "tree", "product": "product", "lattice": "lattice"}
"""Structures of the task `distortion`, with their names on the page: the tree is that of the concepts."""
PHASES: Final = tuple(product((5e-4, 2e-3, 8e-3), (0.1, 1.0, 10.0), (0.03, 0.1, 0.3)))
"""Rates, initial curvatures, and K."""
TASKS: Final = {"boxes": ("classification", "order"), "structures": ("distortion",), "phases": ("classification",)}
"""Tasks of each experiment."""
Values = Mapping[str, list[dict[str, float]]]
"""The figures of each case, by seed."""


def run_extra(size: Size, folders: Folders, n_jobs: int, report: Callable[[str], None]) -> None:
    """Run what is missing on the data of a study, and write the entries of its page."""
    chosen = read_object(folders.results / "tuning.json")
    for iou in IOUS:
        move_boxes(folders.data / "scenes" / "train", iou)
        row = moved(iou)
        write_shards(folders.data, "train", row.boxes, size)
        write_features(folders.data, row)
        report(f"features of boxes with an IoU of {iou}")
    runs = list(all_runs(size, chosen))
    missing = [(name, run) for name, run in runs if not path_of(folders, name, run).is_file()]
    each(partial(measure, folders), missing, n_jobs, report)
    values: dict[str, dict[str, list[dict[str, float]]]] = {}
    for name, run in runs:
        found = read_object(path_of(folders, name, run))
        values.setdefault(name, {}).setdefault(case_of(name, run), []).append(found)
    pictures = folders.out / "pictures" / "extra"
    pictures.mkdir(parents=True, exist_ok=True)
    entries = [show(values[name], pictures / f"{name}.png") for name, show in SHOWN.items()]
    write_object({"entries": entries}, folders.results / "extra.json")


def moved(iou: float) -> Variant:
    """HyCoCLIP on moved boxes."""
    return replace(VARIANTS["hycoclip@true"], boxes=f"iou{iou}")


def all_runs(size: Size, chosen: Mapping[str, Any]) -> Iterator[tuple[str, Run]]:
    """Yield the trainings of all experiments, with the name of the experiment."""
    for seed in range(min(SEEDS, size.seeds)):

        def run(variant: Variant, seed: int = seed, lr: float | None = None) -> Run:
            found = chosen[variant.choice]
            return Run(variant=variant, seed=seed, lr=lr or found["lr"], at=(found["step"],), size=size)

        yield from (("boxes", run(moved(iou))) for iou in IOUS)
        yield from (("structures", run(VARIANTS[key])) for key in FACTORS)
        for lr, curvature, radius in PHASES:
            settings = (f"model.curv_init={curvature}", f"model.min_radius={radius}")
            yield "phases", run(replace(VARIANTS["hycoclip"], overrides=settings), lr=lr)


def case_of(name: str, run: Run) -> str:
    """What differs between the trainings of an experiment."""
    if name == "phases":
        return " ".join([f"{run.lr:g}", *(setting.partition("=")[2] for setting in run.variant.overrides)])
    return run.variant.boxes.removeprefix("iou") if name == "boxes" else run.variant.key


def path_of(folders: Folders, name: str, run: Run) -> Path:
    """The file with the figures of a training."""
    return folders.work / "extra" / name / f"{case_of(name, run).replace(' ', '_')}-{run.seed}.json"


def measure(folders: Folders, named: tuple[str, Run]) -> str:
    """Train a head, evaluate it, and write its figures."""
    name, run = named
    trained = next(trainings(run, folders))
    tower = cached_features(folders.data, run.variant.tower)
    found = evaluate(trained, tower, folders.data / "sets" / "test", TASKS[name])
    metrics = {f"{task}:{key}": value for task, result in found.items() for key, value in result.metrics.items()}
    path = path_of(folders, name, run)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_object(metrics | {"collapsed": float(trained.has_collapsed)}, path)
    return f"{name}, {case_of(name, run)}"


def move_boxes(folder: Path, iou: float) -> None:
    """Write the first tars of scenes with moved boxes. Finished tars are kept."""
    output = folder / f"iou{iou}"
    output.mkdir(exist_ok=True)
    for path in sorted((folder / "true").glob("*.tar"))[:N_TARS]:
        if (output / path.name).is_file():
            continue
        with (
            atomic_write(output / path.name) as draft,
            tarfile.open(draft, "w", format=FORMAT) as target,
            tarfile.open(path) as source,
        ):
            for member in source:
                file = source.extractfile(member)
                content = file.read() if file else b""
                if member.name.endswith(".json"):
                    fields = json.loads(content)
                    rng = Random(f"{member.name} {iou}")
                    fields["noun_chunks"] = [[*c[:2], *move(c[2:6], iou, rng), c[6]] for c in fields["noun_chunks"]]
                    content = json.dumps(fields).encode()
                add_member(target, member.name, content)


def move(box: Sequence[float], iou: float, rng: Random) -> tuple[float, ...]:
    """A box of the same size, moved in a random direction until its IoU with the box is as given, in the picture.

    A shift by shares a and b of the sides leaves an overlap of (1 - a)(1 - b) = 2 IoU / (1 + IoU) of the box.
    """
    x0, y0, x1, y1 = box
    angle, low, high = rng.uniform(0, math.pi / 2), 0.0, 1.5
    for _ in range(40):
        middle = (low + high) / 2
        shares = [max(0.0, 1 - middle * f(angle)) for f in (math.cos, math.sin)]
        low, high = (middle, high) if math.prod(shares) > 2 * iou / (1 + iou) else (low, middle)
    shifts = []
    for first, last, f in ((x0, x1, math.cos), (y0, y1, math.sin)):
        size = low * f(angle) * (last - first)
        signs = [sign for sign in (-1, 1) if first + sign * size >= 0 and last + sign * size <= 1]
        shifts.append(size * rng.choice(signs or (-1, 1)))
    dx, dy = shifts
    return tuple(min(max(value, 0.0), 1.0) for value in (x0 + dx, y0 + dy, x1 + dx, y1 + dy))


def mean(values: Values, case: str, metric: str) -> float:
    """The mean of a metric over the seeds of a case."""
    return fmean(found[metric] for found in values[case])


def show_boxes(values: Values, path: Path) -> dict[str, Any]:
    """Accuracy and order by the IoU of the boxes."""
    with axes(path, 6, 3.4) as ax:
        for metric, label, color in (
            (ACCURACY, "accuracy", COLORS[0]),
            (ORDER, "box nearer the root than image", COLORS[1]),
        ):
            ax.plot(
                [float(case) for case in values],
                [100 * mean(values, case, metric) for case in values],
                "o-",
                color=color,
                label=label,
            )
        ax.set(xlabel="IoU of the boxes with the true ones", ylabel="percent")
        ax.legend()
    first, last = (f"{100 * mean(values, f'{iou}', ACCURACY):.1f} %" for iou in (IOUS[0], IOUS[-1]))
    orders = [f"{100 * mean(values, f'{iou}', ORDER):.0f} %" for iou in (IOUS[0], IOUS[-1])]
    return entry(
        path,
        "Loose boxes",
        f"HyCoCLIP was trained on true boxes that were moved until their IoU with the true one was {IOUS[0]} to {IOUS[-1]}.",
        f"The accuracy is {first} at an IoU of {IOUS[0]} and {last} at {IOUS[-1]}.",
        f"Boxes are nearer the root than their images in {orders[0]} and {orders[1]} of the pairs.",
    )


def show_structures(values: Values, path: Path) -> dict[str, Any]:
    """Distortion of trees, products and lattices by row."""
    with axes(path, 6, 3.4) as ax:
        for place, (name, label) in enumerate(STRUCTURES.items()):
            heights = [mean(values, case, f"distortion:{name}/distortion") for case in values]
            ax.bar(
                [number + 0.27 * place for number in range(len(values))],
                heights,
                0.27,
                color=COLORS[place],
                label=label,
            )
        ax.set_xticks([number + 0.27 for number in range(len(values))], list(values), fontsize=7)
        ax.set(ylabel="distortion; less is better")
        ax.legend()
    best = {n: min(values, key=lambda case, n=n: mean(values, case, f"distortion:{n}/distortion")) for n in STRUCTURES}  # type: ignore[misc]
    deltas = ", ".join(f"{case} {mean(values, case, 'distortion:lattice/delta'):.2f}" for case in values)
    return entry(
        path,
        "Trees, products and lattices",
        "PHyCLIP's propositions predict that one hyperbolic space holds a tree, and only a product of factors a lattice.",
        "The least distortion of "
        + ", ".join(f"the {STRUCTURES[name]} is that of {case}" for name, case in best.items())
        + ".",
        f"Gromov's delta of the lattice: {deltas}.",
    )


def show_phases(values: Values, path: Path) -> dict[str, Any]:
    """Accuracy by rate, curvature and K."""
    with axes(path, 7, 3.4) as ax:
        accuracies = [100 * mean(values, case, ACCURACY) for case in values]
        lost = [mean(values, case, "collapsed") > 0 for case in values]
        ax.bar(range(len(values)), accuracies, color=[COLORS[1] if bad else COLORS[0] for bad in lost])
        ax.set_xticks(range(len(values)), list(values), rotation=90, fontsize=6)
        ax.set(ylabel="accuracy, percent", xlabel="rate, initial curvature, K")
    top = max(values, key=lambda case: mean(values, case, ACCURACY))
    low = min(values, key=lambda case: mean(values, case, ACCURACY))
    return entry(
        path,
        "Where HyCoCLIP learns",
        "HyCoCLIP was trained at three rates, initial curvatures and K, which are named below the bars in this order.",
        f"The best is {top} with {100 * mean(values, top, ACCURACY):.1f} %, the worst {low} with "
        f"{100 * mean(values, low, ACCURACY):.1f} %.",
        f"In {sum(lost)} of {len(values)} cases, a loss or a gradient was not finite for a seed.",
    )


def entry(path: Path, title: str, *sentences: str) -> dict[str, Any]:
    """An entry of the page."""
    return {"title": title, "text": list(sentences), "figure": path.name}


SHOWN: Final = {"boxes": show_boxes, "structures": show_structures, "phases": show_phases}
