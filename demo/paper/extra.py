"""Experiments that no paper has, `SIZE=extra`: each has one figure and three sentences on the page of the full study.

- boxes: HyCoCLIP on true boxes that are moved until they overlap the true one by a given IoU.
- score, side: HyCoCLIP on predicted boxes, with other rules for a box than the score of 0.65 and the 32 px of GRIT.
- captions: MERU on the captions that are farthest from the root of another MERU, and on as many at random. MERU's authors
  propose to filter captions so (section 7).
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

from demo.paper.data import PREDICTED, features_of, make_data, write_features, write_shards
from demo.paper.heads import JOB as HEADS
from demo.paper.heads import evaluate
from demo.paper.run import Folders, Run, cached_features, choices, each, run_of, trainings
from demo.paper.scenes import FORMAT
from demo.paper.sizes import Size
from demo.paper.variants import VARIANTS, Variant
from demo.train_demo import run_verb
from demo.train_demo_data import add_member, is_current, make_shards, record_settings
from hypergrit_common.disk import atomic_write
from hypergrit_common.json_file import read_object, write_object
from hypergrit_common.plots import COLORS, axes
from pipeline.output.ledger import read_batches, read_manifests
from pipeline.output.store import Store
from schemas.status import KEPT

IOUS: Final = (0.85, 0.7, 0.5, 0.3)
N_TARS: Final = 4
"""Tars of scenes whose boxes are moved: 12,000 scenes of the full study."""
SEEDS: Final = 3
SCORES: Final = (0.2, 0.35, 0.5, 0.65, 0.75)
SIDES: Final = (0, 32, 48, 64)
RULES: Final = {f"score{score}": (f"score.min_score={score}", "score.min_side_px=32") for score in SCORES} | {
    f"side{side}": ("score.min_score=0.5", f"score.min_side_px={side}") for side in SIDES
}
"""Rules for boxes by name, as settings of a rewrite."""
FAR, RANDOM, ALL = "far{}", "random{}", "every"
SHARES: Final = (75, 50, 25)
"""Percent of the captions that stay: those farthest from the root, or as many at random; and every caption."""
ACCURACY: Final = "classification:scenes/accuracy"
ORDER: Final = "order:cross_image/order"
FACTORS: Final = ("clip", "hycoclip", "phyclip-k1", "phyclip-k8", "phyclip-k16", "phyclip-k32", "phyclip-k64")
STRUCTURES: Final = {"scenes": "tree", "product": "product", "lattice": "lattice"}
"""Structures of the task `distortion`, with their names on the page: the tree is that of the concepts."""
PHASES: Final = tuple(product((5e-4, 2e-3, 8e-3), (0.1, 1.0, 10.0), (0.03, 0.1, 0.3)))
"""Rates, initial curvatures, and K."""
TASKS: Final = {
    **dict.fromkeys(("boxes", "score", "side"), ("classification", "order")),
    "captions": ("classification", "retrieval"),
    "structures": ("distortion",),
    "phases": ("classification",),
}
"""Tasks of each experiment."""
Values = Mapping[str, list[dict[str, float]]]
"""The figures of each case, by seed."""


def run_extra(size: Size, folders: Folders, n_jobs: int, report: Callable[[str], None]) -> None:
    """Run what is missing on the data of a study, and write the entries of its page."""
    make_data(folders.data, size, [VARIANTS[key] for key in ("meru", *FACTORS)], report)
    chosen = choices(folders)
    for iou in IOUS:
        move_boxes(folders.data / "scenes" / "train", iou)
        row = on_boxes("hycoclip", f"iou{iou}")
        write_shards(folders.data, "train", row.boxes, size)
        write_features(folders.data, row)
        report(f"features of boxes with an IoU of {iou}")
    candidates = write_candidates(folders, size, chosen)
    filters = {**RULES, **caption_filters(candidates)}
    for name, settings in filters.items():
        write_filtered(folders.data, candidates, name, settings)
        write_features(folders.data, on_boxes("hycoclip", name))
        report(f"features of the filtered shards {name}")
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


def on_boxes(row: str, name: str) -> Variant:
    """A row on the features of the shards train-NAME."""
    return replace(VARIANTS[row], boxes=name)


def write_candidates(folders: Folders, size: Size, chosen: Mapping[str, Any]) -> Path:
    """Run the pipeline on the first scenes, with all scores and pictures, and the distances of captions to the root."""
    output, meru = folders.data / "shards" / "train-candidates", folders.work / "extra" / "meru"
    if not is_current(output, {"done": True}):
        found, features = chosen[VARIANTS["meru"].choice], features_of(folders.data, VARIANTS["meru"])
        settings = [f"lr={found['lr']}", f"steps={found['step']}", "seed=100", "device=cpu", f"output={meru}"]
        run_verb("train", [HEADS, "model_name=meru", f"data.features={features}", *size.overrides, *settings])
        scenes = folders.data / "scenes" / "train" / "first"
        scenes.mkdir(exist_ok=True)
        for path in sorted((folders.data / "scenes" / "train" / "pairs").glob("*.tar"))[:N_TARS]:
            (scenes / path.name).unlink(missing_ok=True)
            (scenes / path.name).hardlink_to(path)
        settings = [*PREDICTED, "write.image_bytes=true", f"score.head={meru}/model", f"ray.runner={size.runner}"]
        make_shards(scenes, output, *settings)
        record_settings(output, {"done": True})
    return output


def caption_filters(candidates: Path) -> dict[str, tuple[str, ...]]:
    """Settings of rewrites that keep shares of the rows: by the distance of the caption to the root, and at random."""
    store = Store(str(candidates))
    rows = [
        (row["head_score"], row["sha256"])
        for manifest in read_manifests(store)
        for batch in read_batches(store, manifest, ("status", "head_score", "sha256"))
        for row in batch.to_pylist()
        if row["status"] == KEPT
    ]
    distances, images = sorted(distance for distance, _ in rows), sorted({image for _, image in rows})
    Random(0).shuffle(images)
    filters: dict[str, tuple[str, ...]] = {ALL: ()}
    for share in SHARES:
        filters[FAR.format(share)] = (f"score.min_head_score={distances[len(distances) * (100 - share) // 100]}",)
        path = candidates.with_name(f"{candidates.name}-not-{share}.txt")
        path.write_text("".join(f"{image}\n" for image in images[len(images) * share // 100 :]), "utf-8")
        filters[RANDOM.format(share)] = (f"against={path}",)
    return filters


def write_filtered(folder: Path, candidates: Path, name: str, settings: Sequence[str]) -> None:
    """Write the shards train-NAME: rows and boxes of the candidates that pass a filter."""
    output = folder / "shards" / f"train-{name}"
    if not is_current(output, {"settings": list(settings)}):
        fixed = ["write.formats=[train]", "ray.runner=local", "overwrite=true"]
        run_verb("rewrite", [f"source={candidates}", f"output={output}", *fixed, *settings])
        record_settings(output, {"settings": list(settings)})


def all_runs(size: Size, chosen: Mapping[str, Any]) -> Iterator[tuple[str, Run]]:
    """Yield the trainings of all experiments, with the name of the experiment."""
    for seed in range(min(SEEDS, size.seeds)):
        run = partial(run_of, size=size, chosen=chosen, seed=seed)
        yield from (("boxes", run(on_boxes("hycoclip", f"iou{iou}"))) for iou in IOUS)
        yield from ((name.rstrip(".0123456789"), run(on_boxes("hycoclip", name))) for name in RULES)
        names = (ALL, *(kind.format(share) for share in SHARES for kind in (FAR, RANDOM)))
        yield from (("captions", run(on_boxes("meru", name))) for name in names)
        yield from (("structures", run(VARIANTS[key])) for key in FACTORS)
        for lr, curvature, radius in PHASES:
            settings = (f"model.curv_init={curvature}", f"model.min_radius={radius}")
            yield "phases", replace(run(replace(VARIANTS["hycoclip"], overrides=settings)), lr=lr)


def case_of(name: str, run: Run) -> str:
    """The setting that differs between the trainings of an experiment."""
    if name == "phases":
        return " ".join([f"{run.lr:g}", *(setting.partition("=")[2] for setting in run.variant.overrides)])
    return run.variant.key if name == "structures" else run.variant.boxes.removeprefix("iou")


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


def draw_lines(path: Path, xs: Sequence[float], lines: Mapping[str, Sequence[float]], xlabel: str, ylabel: str) -> None:
    """Draw a line for each label over the same values."""
    with axes(path, 6, 3.4) as ax:
        for (label, heights), color in zip(lines.items(), COLORS, strict=False):
            ax.plot(xs, heights, "o-", color=color, label=label)
        ax.set(xlabel=xlabel, ylabel=ylabel)
        ax.legend()


def show_boxes(title: str, boxes: str, xlabel: str, prefix: str, values: Values, path: Path) -> dict[str, Any]:
    """Accuracy and order by a property of the `boxes` that is swept."""
    limits = [float(case.removeprefix(prefix)) for case in values]
    found, orders = ([100 * mean(values, case, metric) for case in values] for metric in (ACCURACY, ORDER))
    draw_lines(path, limits, {"accuracy": found, "box nearer the root than image": orders}, xlabel, "percent")
    (low, at_low), (high, at_high) = (f(zip(found, limits, strict=True)) for f in (min, max))
    return entry(
        path,
        title,
        f"HyCoCLIP was trained on {boxes} {limits[0]:g} to {limits[-1]:g}.",
        f"The accuracy is lowest at {at_low:g} ({low:.1f} %) and highest at {at_high:g} ({high:.1f} %).",
        f"Boxes are nearer the root than their images in {orders[0]:.0f} % of the pairs at {limits[0]:g}, and in "
        f"{orders[-1]:.0f} % at {limits[-1]:g}.",
    )


def show_captions(values: Values, path: Path) -> dict[str, Any]:
    """Accuracy by the share of captions that stay."""
    kinds = {"farthest from the root": FAR, "at random": RANDOM}
    found = {
        label: [100 * mean(values, case, ACCURACY) for case in (ALL, *map(kind.format, SHARES))]
        for label, kind in kinds.items()
    }
    draw_lines(path, (100, *SHARES), found, "captions that stay, percent", "accuracy, percent")
    middle = len(SHARES) // 2
    far, random = (f"{line[1 + middle]:.1f} %" for line in found.values())
    return entry(
        path,
        "Without general captions",
        "The captions nearest to the root of a MERU were left out with rewrite, and another MERU was trained on the rest.",
        f"On all pairs the accuracy is {found['at random'][0]:.1f} %, on the {SHARES[middle]} % that are farthest from the "
        f"root {far}, and on {SHARES[middle]} % at random {random}.",
        "All trainings have the same number of steps.",
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


MOVED: Final = "true boxes that were moved until their IoU with the true one was"
LEAST_SCORE: Final = "predicted boxes with a grounding score of at least"
LEAST_SIDE: Final = "predicted boxes with a side in pixels of at least"
SHOWN: Final[dict[str, Callable[[Values, Path], dict[str, Any]]]] = {
    "boxes": partial(show_boxes, "Loose boxes", MOVED, "IoU of the boxes with the true ones", ""),
    "score": partial(show_boxes, "The rule for the score of a box", LEAST_SCORE, "least grounding score", "score"),
    "side": partial(show_boxes, "The rule for the side of a box", LEAST_SIDE, "least side in pixels", "side"),
    "captions": show_captions,
    "structures": show_structures,
    "phases": show_phases,
}
