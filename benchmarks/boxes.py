"""Benchmark: boxes of the miniature models, compared with known objects, on two worlds.

    python -m benchmarks.boxes [--scenes 150] [--split dev|held-out] [--weights FOLDER]

World `own` is the demo's (`demo/world/`), on scenes that no model was trained on. World `independent`
(`benchmarks/scenes/`) has the same drawings, but other layouts, backgrounds, looks and captions, and serves for
measuring alone. Each is drawn in the art styles of the training and in the one that the models never saw. A box is
correct at IoU 0.5 with an object of its phrase. Intervals are 95 % bootstrap intervals over images. The last line is
one JSON object; its `ratio` is the smallest quotient of figure and aim.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.scenes.measure import (
    SEEDS,
    Setup,
    bootstrap_intervals,
    count,
    own_case,
    precision,
    precision_and_recall,
    recall,
    run,
    total,
)
from benchmarks.scenes.world import Case, independent_scene
from demo.world.sprites import HELD_OUT_STYLE, TRAIN_STYLES, Style

WORLDS: Final[dict[str, Callable[[int, Style], Case]]] = {"own": own_case, "independent": independent_scene}
GROUPS: Final[dict[str, tuple[Style, ...]]] = {"trained": TRAIN_STYLES, "held_out": (HELD_OUT_STYLE,)}
AIMS: Final = {
    ("own", "trained"): (0.95, 0.90),
    ("independent", "trained"): (0.93, 0.85),
    ("own", "held_out"): (0.90, 0.80),
    ("independent", "held_out"): (0.90, 0.80),
}
"""Aims of precision and recall by world and styles."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", type=int, default=150, help="scenes per style and world")
    parser.add_argument("--split", choices=tuple(SEEDS), default="held-out", help="range of seeds")
    parser.add_argument("--weights", type=Path, help="folder with glip/ and clip/; default: the miniature models")
    options = parser.parse_args()
    torch.set_num_threads(1)
    stages = Setup.with_weights(options.weights).stages()
    results: dict[str, dict[str, Any]] = {world: {} for world in WORLDS}
    for (world, group), (min_precision, min_recall) in AIMS.items():
        cases = [
            WORLDS[world](seed, style) for style in GROUPS[group] for seed in SEEDS[options.split][: options.scenes]
        ]
        counts = [count(case, row) for case, row in zip(cases, run(cases, stages), strict=True)]
        results[world][group] = print_result(f"{world} world, {group} styles", counts)
        results[world][group]["ratio"] = round(
            min(precision(total(counts)) / min_precision, recall(total(counts)) / min_recall), 3
        )
    ratio = min(result["ratio"] for world in results.values() for result in world.values())
    print(json.dumps({"name": "boxes", "split": options.split, "scenes": options.scenes, **results, "ratio": ratio}))


def print_result(title: str, counts: Sequence[Counter[str]]) -> dict[str, Any]:
    """Print the figures of one set of scenes, and return them."""
    summed = total(counts)
    print(f"\n{title}: {len(counts)} scenes, {summed['true']} objects, {summed['predicted']} boxes")
    result: dict[str, Any] = {}
    bounds = bootstrap_intervals(counts)
    for name, value in precision_and_recall(counts).items():
        low, high = bounds[name]
        print(f"  {name:42}{value:7.3f}  [{low:.3f}, {high:.3f}]")
        result[name], result[f"{name}_interval"] = round(value, 4), [round(low, 4), round(high, 4)]
    for kind, whole, heading in (("lost", "true", "lost"), ("false", "predicted", "wrong")):
        parts = {name: n for name, n in summed.items() if name.startswith(f"{kind}: ")}
        shares = {name.partition(": ")[2]: n / summed[whole] for name, n in parts.items()}
        for name, share in sorted(shares.items(), key=lambda item: -item[1]):
            print(f"  {heading}: {name:{40 - len(heading)}}{share:7.3f}")
        result[kind] = {name: round(share, 4) for name, share in sorted(shares.items())}
    tags = sorted(name.partition(": ")[2] for name in summed if name.startswith("true: "))
    result["recall_by_tag"] = {tag: round(summed[f"right: {tag}"] / summed[f"true: {tag}"], 4) for tag in tags}
    for tag in tags:
        print(f"  recall, {tag:34}{result['recall_by_tag'][tag]:7.3f}  of {summed[f'true: {tag}']}", flush=True)
    return result


if __name__ == "__main__":
    main()
