"""Experiments that no paper has, `SIZE=extra`: each has one figure and three sentences on the page of the full study.

- boxes: HyCoCLIP on true boxes that are moved until they overlap the true one by a given IoU.
- score, side: HyCoCLIP on predicted boxes, with other rules for a box than the score of 0.65 and the 32 px of GRIT.
- captions: MERU on the captions that are farthest from the root of another MERU, and on as many at random with the same
  numbers of words. MERU's authors propose to filter captions so (section 7).
- structures: distortion of trees, of a product of trees and of a lattice, and Gromov's delta, by number of factors.
- phases: HyCoCLIP by rate, initial curvature and K: where it learns, and where it collapses.

WORK/extra/NAME/*.json has the figures of a training, and OUT/results/extra.json those that the page shows.
"""

import json
import math
import string
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Final

from demo.paper.data import PREDICTED, features_of, make_data, write_features, write_shards
from demo.paper.heads import JOB as HEADS
from demo.paper.heads import evaluate
from demo.paper.run import Folders, Run, cached_features, choices, each, run_of, trainings
from demo.paper.scenes import FORMAT, SCENES_PER_TAR
from demo.paper.sizes import Size
from demo.paper.statistics import Estimate, seeds_only
from demo.paper.tables import ACCURACY
from demo.paper.variants import VARIANTS, Variant
from demo.train_demo import run_verb
from demo.train_demo_data import add_member, is_current, make_shards, record_settings
from hypergrit_common.disk import atomic_write
from hypergrit_common.json_file import read_object, write_object
from hypergrit_common.plots import COLORS, axes
from pipeline.output.ledger import read_batches, read_manifests
from pipeline.output.store import Store
from schemas.status import KEPT

IOUS: Final = (1.0, 0.85, 0.7, 0.5, 0.3)
N_TARS: Final = 4
"""Tars of scenes on which trainings with other boxes or captions rest."""
SEEDS: Final = 3
SCORES: Final = (0.2, 0.35, 0.5, 0.65, 0.75)
SIDES: Final = (0, 32, 48, 64)
RULES: Final = {f"score{score}": (f"score.min_score={score}", "score.min_side_px=32") for score in SCORES} | {
    f"side{side}": ("score.min_score=0.5", f"score.min_side_px={side}") for side in SIDES
}
"""Rules for boxes by name, as settings of a rewrite."""
FAR, RANDOM, ALL = "far{}", "random{}", "every"
SHARES: Final = (75, 50, 25)
"""Percent of the captions that stay: those farthest from the root, or random ones of the same lengths; and every caption."""
ORDER: Final = "order:cross_image/order"
RECALL: Final = "retrieval:coco/text_to_image/recall@5"
SINGLE: Final = "phyclip-k1"
FACTORS: Final = ("clip", "hycoclip", SINGLE, "phyclip-k8", "phyclip-k16", "phyclip-k32", "phyclip-k64")
STRUCTURES: Final = {"scenes": "tree", "product": "product", "lattice": "lattice"}
"""Structures of the task `distortion`, with their names on the page: the tree is that of the concepts."""
SAVED: Final = {ACCURACY, ORDER, RECALL, "pairs", "collapsed", "distortion:lattice/delta"} | {
    f"distortion:{name}/distortion" for name in STRUCTURES
}
"""Metrics that results keep."""
PHASES: Final = tuple(product((5e-4, 2e-3, 8e-3), (0.1, 1.0, 10.0), (0.03, 0.1, 0.3)))
"""Rates, initial curvatures, and K."""
TASKS: Final = {
    **dict.fromkeys(("boxes", "score", "side"), ("classification", "order")),
    "captions": ("classification", "retrieval"),
    "structures": ("distortion",),
    "phases": ("classification",),
}
"""Tasks of each experiment."""
Values = Mapping[str, Sequence[Mapping[str, float]]]
"""The figures of each case, by seed."""


def run_extra(size: Size, folders: Folders, n_jobs: int, report: Callable[[str], None]) -> None:
    """Run what is missing on the data of a study, and write the figures that its page shows."""
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
    each(partial(write_filtered, folders.data, candidates), [*filters.items()], n_jobs, report)
    runs = list(all_runs(size, chosen))
    each(partial(measure, folders), [run for run in runs if not path_of(folders, *run).is_file()], n_jobs, report)
    values: dict[str, dict[str, list[dict[str, float]]]] = {}
    for name, run in runs:
        values.setdefault(name, {}).setdefault(case_of(name, run), []).append(read_object(path_of(folders, name, run)))
    write_object(values, folders.results / "extra.json")


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
        settings = [*PREDICTED, "write.image_bytes=true", f"score.head={meru}/model", f"ray.runner={size.runner}"]
        scenes, limit = folders.data / "scenes" / "train" / "pairs", N_TARS * SCENES_PER_TAR
        make_shards(scenes, output, f"limit={limit}", *settings)
        record_settings(output, {"done": True})
    return output


def caption_filters(candidates: Path) -> dict[str, tuple[str, ...]]:
    """Settings of rewrites that keep shares of the rows: by the distance of the caption to the root, and at random.

    Both have the same numbers of captions of each number of words, since short captions are near the root.
    """
    store = Store(str(candidates))
    rows = [
        (row["head_score"], row["sha256"], len(row["caption"].split()))
        for manifest in read_manifests(store)
        for batch in read_batches(store, manifest, ("status", "head_score", "sha256", "caption"))
        for row in batch.to_pylist()
        if row["status"] == KEPT
    ]
    distances, shuffled = sorted(distance for distance, _, _ in rows), Random(0).sample(sorted(rows), len(rows))
    filters: dict[str, tuple[str, ...]] = {ALL: ()}
    for share in SHARES:
        least = distances[len(distances) * (100 - share) // 100]
        filters[FAR.format(share)] = (f"score.min_head_score={least}",)
        left = Counter(n for distance, _, n in rows if distance >= least)
        path = candidates.with_name(f"not-{share}.txt")
        with path.open("w", encoding="utf-8") as file:
            for _, image, n in shuffled:
                left[n] -= 1
                file.write(f"{image}\n" * (left[n] < 0))
        filters[RANDOM.format(share)] = (f"against={path}",)
    return filters


def write_filtered(folder: Path, candidates: Path, named: tuple[str, Sequence[str]]) -> str:
    """Write the shards train-NAME, rows and boxes of the candidates that pass a filter, and their features."""
    name, settings = named
    output = folder / "shards" / f"train-{name}"
    if not is_current(output, {"settings": list(settings)}):
        fixed = ["write.formats=[train]", "ray.runner=local", "overwrite=true"]
        run_verb("rewrite", [f"source={candidates}", f"output={output}", *fixed, *settings])
        record_settings(output, {"settings": list(settings)})
    write_features(folder, on_boxes("hycoclip", name))
    return f"features of the filtered shards {name}"


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
    return run.variant.key if name == "structures" else run.variant.boxes


def path_of(folders: Folders, name: str, run: Run) -> Path:
    """The file with the figures of a training."""
    return folders.work / "extra" / name / f"{case_of(name, run).replace(' ', '_')}-{run.seed}-{run.hash}.json"


def measure(folders: Folders, named: tuple[str, Run]) -> str:
    """Train a head, evaluate it, and write its figures."""
    name, run = named
    trained = next(trainings(run, folders))
    tower = cached_features(folders.data, run.variant.tower)
    found = evaluate(trained, tower, folders.data / "sets" / "test", TASKS[name])
    metrics = {f"{task}:{key}": value for task, result in found.items() for key, value in result.metrics.items()}
    metrics["pairs"] = read_object(features_of(folders.data, run.variant) / "features.json")["n_samples"]
    metrics["collapsed"] = float(trained.has_collapsed)
    path = path_of(folders, name, run)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_object({key: value for key, value in metrics.items() if key in SAVED}, path)
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
    angle, away = rng.uniform(0, math.pi / 2), 1 - 2 * iou / (1 + iou)
    both, one = math.cos(angle) + math.sin(angle), math.cos(angle) * math.sin(angle)
    length = 2 * away / (both + math.sqrt(both**2 - 4 * one * away))  # (1 - length cos)(1 - length sin) = 1 - away
    shifts = []
    for first, last, f in ((x0, x1, math.cos), (y0, y1, math.sin)):
        size = length * f(angle) * (last - first)
        signs = [sign for sign in (-1, 1) if first + sign * size >= 0 and last + sign * size <= 1]
        shifts.append(size * rng.choice(signs or (-1, 1)))
    dx, dy = shifts
    return tuple(min(max(value, 0.0), 1.0) for value in (x0 + dx, y0 + dy, x1 + dx, y1 + dy))


def read_entries(out: Path) -> list[dict[str, Any]]:
    """The entries of the page from OUT/results/extra.json, if it exists; their figures are drawn in OUT/pictures/extra."""
    path, pictures = out / "results" / "extra.json", out / "pictures" / "extra"
    found = list[dict[str, Any]]()
    for name, values in (read_object(path) if path.is_file() else {}).items():
        pictures.mkdir(parents=True, exist_ok=True)
        title, *text = SHOWN[name](values, figure := pictures / f"{name}.png")
        found.append({"title": title, "text": text, "figure": figure})
    return found


def estimates(values: Values, cases: Iterable[str], metric: str, reference: str = "") -> list[Estimate]:
    """The means over seeds of a metric, or of its differences to the reference with the same seeds."""
    others = [run[metric] for run in values[reference]] if reference else [0.0] * SEEDS
    return [seeds_only([run[metric] - o for run, o in zip(values[case], others, strict=False)]) for case in cases]


def phrase(found: Estimate, sign: str = "+") -> str:
    """A mean in percent with half of its interval."""
    return f"{100 * found.value:{sign}.1f} ± {100 * found.half():.1f}"


def phrases(cases: Iterable[str], found: Iterable[Estimate], sign: str = "+") -> str:
    """The means of cases, with their names."""
    return ", ".join(f"{phrase(value, sign)} ({case})" for case, value in zip(cases, found, strict=True))


def draw(path: Path, cases: Sequence[str], lines: Mapping[str, Sequence[Estimate]], xlabel: str, ylabel: str) -> None:
    """Draw means in percent with intervals over the cases, in a colour for each label."""
    with axes(path, 6.4, 3.4) as ax:
        for place, (label, found) in enumerate(lines.items()):
            xs, heights = [x + 0.08 * (place - 1) for x in range(len(cases))], [100 * entry.value for entry in found]
            halves = [100 * entry.half() if math.isfinite(entry.error) else 0.0 for entry in found]
            ax.errorbar(xs, heights, halves, fmt="o", color=COLORS[place], capsize=3, label=label)
        ax.set_xticks(range(len(cases)), cases)
        ax.set(xlabel=xlabel, ylabel=ylabel)
        ax.legend(frameon=False)


def show_boxes(title: str, boxes: str, reference: str, values: Values, path: Path) -> tuple[str, ...]:
    """Accuracy and order by a property of the `boxes` that is swept, against a reference."""
    cases = [case for case in values if case != reference]
    *names, at = (case.lstrip(string.ascii_letters) for case in (*cases, reference))
    own = [phrase(estimates(values, [reference], metric)[0], sign="") for metric in (ACCURACY, ORDER)]
    found = [estimates(values, cases, metric, reference) for metric in (ACCURACY, ORDER)]
    sizes = ", ".join(f"{values[case][0]['pairs']:,.0f} ({name})" for case, name in zip(cases, names, strict=True))
    lines = dict(zip(("accuracy", "box nearer the root than image"), found, strict=True))
    draw(path, names, lines, boxes, f"difference to {at}, percentage points")
    return (
        title,
        f"Trainings of HyCoCLIP differ in {boxes}, not in the number of steps; the pairs that pass are "
        f"{values[reference][0]['pairs']:,.0f} ({at}), {sizes}.",
        f"The accuracy is {own[0]} % at {at}, and differs by {phrases(names, found[0])} points.",
        f"Boxes are nearer the root than their images in {own[1]} % of the pairs; this differs by {phrases(names, found[1])}.",
    )


def show_captions(values: Values, path: Path) -> tuple[str, ...]:
    """Accuracy and recall by the share of captions that stay."""
    kinds = {"farthest from the root": FAR, "at random": RANDOM}
    cases = {label: [ALL, *map(kind.format, SHARES)] for label, kind in kinds.items()}
    found = {label: estimates(values, names, ACCURACY) for label, names in cases.items()}
    draw(path, ["100", *map(str, SHARES)], found, "captions that stay, percent", "accuracy, percent")
    pairs = [(f"{share} %", FAR.format(share), RANDOM.format(share)) for share in SHARES]
    accuracy, recall = (
        phrases((name for name, _, _ in pairs), (estimates(values, [a], metric, b)[0] for _, a, b in pairs))
        for metric in (ACCURACY, RECALL)
    )
    return (
        "Without general captions",
        f"Of {values[ALL][0]['pairs']:,.0f} captions, those nearest to the root of a MERU that was trained on them and others "
        "were left out with rewrite, or as many at random with the same numbers of words; another MERU was trained on the rest "
        "with the same number of steps.",
        f"On all of them the accuracy is {phrase(found['at random'][0], sign='')} %; captions far from the root differ from "
        f"random ones by {accuracy} points.",
        f"Text-to-image recall at 5 differs by {recall} points.",
    )


def show_structures(values: Values, path: Path) -> tuple[str, ...]:
    """Distortion of trees, products and lattices by row."""
    metrics = {label: f"distortion:{name}/distortion" for name, label in STRUCTURES.items()}
    names = [case.replace("phyclip-k", "k = ") for case in values]
    lines = {label: estimates(values, values, metric) for label, metric in metrics.items()}
    draw(path, names, lines, "CLIP, HyCoCLIP, and PHyCLIP with k factors", "distortion, percent; less is better")
    last = [*values][-1]
    changes = phrases(metrics, [estimates(values, [last], metric, SINGLE)[0] for metric in metrics.values()])
    deltas = estimates(values, values, "distortion:lattice/delta")
    return (
        "Trees, products and lattices",
        "PHyCLIP's propositions predict that one hyperbolic space holds a tree, and only a product of factors a product of "
        "trees and a lattice; most words of our product and lattice are not those of the drawn scenes, and CLIP and HyCoCLIP "
        "have a quarter of PHyCLIP's width.",
        f"The distortion of {last} differs from that of {SINGLE} by {changes} points.",
        "Gromov's delta in percent of half the diameter is 100 for the lattice itself and 0 for a tree; here it is "
        f"{phrases(names, deltas, '')}.",
    )


def show_phases(values: Values, path: Path) -> tuple[str, ...]:
    """Accuracy by rate, curvature and K."""
    places = [case.split(" ", 1) for case in values]
    rates, settings = ([*dict.fromkeys(names)] for names in zip(*places, strict=True))
    found = {case: 100 * estimates(values, [case], ACCURACY)[0].value for case in values}
    lost = {case: sum(run["collapsed"] for run in values[case]) for case in values}
    with axes(path, 7.5, 2.8) as ax:
        grid = [[found.get(f"{rate} {setting}", math.nan) for setting in settings] for rate in rates]
        ax.imshow(grid, cmap="Blues", aspect="auto", vmin=0, vmax=1.6 * max(found.values()))
        for case, (rate, setting) in zip(values, places, strict=True):
            text = f"{found[case]:.1f}" + f"\n{lost[case]:g} lost" * (lost[case] > 0)
            ax.text(settings.index(setting), rates.index(rate), text, ha="center", va="center", fontsize=8)
        ax.set_xticks(range(len(settings)), [setting.replace(" ", "\n") for setting in settings])
        ax.set_yticks(range(len(rates)), rates)
        ax.set(xlabel="initial curvature, and K below it", ylabel="learning rate")
    top, low = (choose(found, key=lambda case: found[case]) for choose in (max, min))
    names = ["rate {}, curvature {}, K {}".format(*case.split()) for case in (top, low)]
    ends = phrases(names, estimates(values, (top, low), ACCURACY), "")
    return (
        "Where HyCoCLIP learns",
        f"HyCoCLIP was trained with {len(values)} combinations of rate, initial curvature and K, with {SEEDS} seeds each; the "
        "curvature can change tenfold, and the figure has the mean accuracy.",
        f"The highest and the lowest of these means are {ends} %.",
        f"In {sum(n > 0 for n in lost.values())} combinations, a loss or a gradient of a seed was not finite (lost).",
    )


MOVED: Final = "the IoU of a true box and the same box after a random shift"
SCORE: Final = "the least score of a predicted box (square root of the area at least 32 px)"
SIDE: Final = "the least square root of the area in px of a predicted box (scores of at least 0.5)"
SHOWN: Final[dict[str, Callable[[Values, Path], tuple[str, ...]]]] = {
    "boxes": partial(show_boxes, "Displaced boxes", MOVED, f"iou{IOUS[0]}"),
    "score": partial(show_boxes, "The rule for the score of a box", SCORE, "score0.65"),
    "side": partial(show_boxes, "The rule for the side of a box", SIDE, "side32"),
    "captions": show_captions,
    "structures": show_structures,
    "phases": show_phases,
}
