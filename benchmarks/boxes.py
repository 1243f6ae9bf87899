"""Benchmark: boxes of the miniature models, compared with known objects, on the demo's world.

    python -m benchmarks.boxes [--scenes 150] [--split dev|held-out] [--weights FOLDER] [--expressions]

The scenes are of the demo's world (`demo/world/`), and no model was trained on them. They are drawn in the art styles of
the training and in the one that the models never saw. A box is correct at IoU 0.5 with an object of its phrase. Intervals
are 95 % bootstrap intervals over images. The last line is one JSON object; its `ratio` is the smallest quotient of figure
and aim.

With --expressions, the scenes show several objects of one kind, which the caption tells apart by colour or by position: "a
pig in the middle and a pig on the right". A kept box of an expression is right at IoU 0.5 with the object that the
expression means; `best` are the best boxes, which train/ has, `all` those of grit/. The figures are without and with
`ground.check_expressions`; passes are runs of the network after the image tower, seconds are CPU time of the ground stage.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import torch

from benchmarks.phrases import intervals, total
from demo.make_input import CANVASES
from demo.world.captions import Draft, article
from demo.world.grammar import POSITIONS
from demo.world.layout import WorldConfig, draw_layout, position_of
from demo.world.scenes import TEST_SEEDS, Scene, make_scene, render
from demo.world.sprites import HELD_OUT_STYLE, TRAIN_STYLES, Style
from demo.world.truth import MIN_IOU, Truth, iou, matches, object_boxes, phrase_of, prediction_of, truth_of
from pipeline.images import encode_jpeg
from pipeline.output.write.samples import boxes_with_expression
from pipeline.stages.ground.load import GroundConfig
from pipeline.stages.ground.stage import Ground
from pipeline.stages.parse.config import ParseConfig
from pipeline.stages.parse.stage import Parse
from pipeline.stages.score.filters import ScoreConfig, resolve_thresholds
from pipeline.stages.score.stage import Score
from schemas.rows import CAPTIONED
from schemas.status import KEPT

SEEDS: Final = {"dev": TEST_SEEDS[40_000:50_000], "held-out": TEST_SEEDS[50_000:60_000]}
BATCH: Final = 50
GROUPS: Final = {"trained": (TRAIN_STYLES, 0.95, 0.90), "held_out": ((HELD_OUT_STYLE,), 0.90, 0.80)}
"""Styles by group, with the aims of their precision and recall."""
LOST: Final = {
    "low_score": "score below the threshold",
    "low_presence": "presence below the threshold",
    "low_clip_score": "CLIPScore below the threshold",
    "box_too_small": "box too small",
}
NO_BOX, OVERLAPPED = "no box at IoU 0.5", "box matched to another object"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", type=int, default=150, help="scenes per style")
    parser.add_argument("--split", choices=tuple(SEEDS), default="held-out", help="range of seeds")
    parser.add_argument("--weights", type=Path, help="folder with glip/ and clip/; default: the miniature models")
    parser.add_argument("--expressions", action="store_true", help="measure expressions instead of phrases")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.expressions:
        measure_expressions(SEEDS[options.split][: options.scenes], options.weights)
        return
    stages = load_stages(options.weights)
    results: dict[str, dict[str, Any]] = {}
    for group, (styles, min_precision, min_recall) in GROUPS.items():
        seeds = SEEDS[options.split][: options.scenes]
        scenes = [canvas_scene(seed, style) for style in styles for seed in seeds]
        counts = [count(scene, row) for scene, row in zip(scenes, run(scenes, stages), strict=True)]
        quotients = precision(total(counts)) / min_precision, recall(total(counts)) / min_recall
        results[group] = print_result(f"{group} styles", counts) | {"ratio": round(min(quotients), 3)}
    ratio = min(result["ratio"] for result in results.values())
    print(json.dumps({"name": "boxes", "split": options.split, "scenes": options.scenes, **results, "ratio": ratio}))


def print_result(title: str, counts: Sequence[Counter[str]]) -> dict[str, Any]:
    """Print the figures of one set of scenes, and return them."""
    summed = total(counts)
    print(f"\n{title}: {len(counts)} scenes, {summed['true']} objects, {summed['predicted']} boxes")
    result: dict[str, Any] = {}
    slim = [Counter({name: part[name] for name in ("right", "predicted", "true")}) for part in counts]
    bounds = intervals(precision_and_recall, slim)
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
    kinds = sorted(name.partition(": ")[2] for name, n in summed.items() if name.startswith("true: ") and n)
    result["recall_by_kind"] = {kind: round(summed[f"right: {kind}"] / summed[f"true: {kind}"], 4) for kind in kinds}
    for kind in kinds:
        print(f"  recall, {kind:34}{result['recall_by_kind'][kind]:7.3f}  of {summed[f'true: {kind}']}", flush=True)
    return result


def canvas_scene(seed: int, style: Style) -> Scene:
    """Generate the scene of a seed on one of the demo's canvases, drawn from the seed."""
    width, height = Random(f"canvas {seed}").choice(CANVASES)
    return make_scene(seed, style, WorldConfig(width=width, height=height))


def measure_expressions(seeds: Sequence[int], weights: Path | None) -> None:
    """Print the precision of the boxes of expressions without and with the check, and what both cost."""
    drawn = [part for style in TRAIN_STYLES for seed in seeds if (part := scene_of_one_kind(seed, style))]
    parse, ground, score = load_stages(weights)
    results: dict[str, Any] = {}
    for check in (False, True):
        checked = Ground(replace(ground.config, check_expressions=check), ground.grounder)
        costs, counts = Counter[str](), Counter[str]()
        rows = run([scene for _, scene in drawn], (parse, partial(timed, checked, costs), score))
        for (kind, scene), row in zip(drawn, rows, strict=True):
            counts += count_expressions(kind, scene, row)
        kinds: dict[str, Any] = {}
        for kind in ("colour", "position"):
            for name in ("best", "all"):
                right, boxes = counts[f"right: {name} {kind}"], counts[f"boxes: {name} {kind}"]
                figures = {"right": right, "boxes": boxes, "precision": round(right / boxes, 3) if boxes else None}
                kinds[f"{kind}, {name}"] = figures
        results["with" if check else "without"] = {**kinds, "passes": costs["passes"], "seconds": costs["ms"] / 1000}
    print(json.dumps({"name": "expressions", "scenes": len(drawn), **results}, indent=1))


def timed(ground: Ground, costs: Counter[str], table: pa.Table) -> pa.Table:
    """Ground a table, and add its passes and its CPU time in ms to `costs`."""
    model: Any = ground.grounder.model  # type: ignore[attr-defined]  # a GLIP
    handle = model.rpn["head"].register_forward_hook(lambda *_: costs.update(passes=1))
    start = time.process_time()
    try:
        return ground(table)
    finally:
        costs["ms"] += round(1000 * (time.process_time() - start))
        handle.remove()


def scene_of_one_kind(seed: int, style: Style) -> tuple[str, Scene] | None:
    """Generate a scene whose caption tells objects of one kind apart, and by what; None if they have no own positions."""
    width, height = Random(f"canvas {seed}").choice(CANVASES)
    config = WorldConfig(width=width, height=height, repeated_share=1.0, tinted_share=0.5)
    slots, rng, draft = draw_layout(Random(f"layout {seed}"), config), Random(f"caption {seed}"), Draft()
    names = Counter(slot.concept.name for slot in slots)
    members = [n for n, slot in enumerate(slots) if slot.concept.name == max(names, key=lambda name: names[name])]
    places = [position_of(slots[n], config) for n in members]
    if len(set(places)) < len(members) or len(members) < 2:
        return None
    for k, n in enumerate(members):
        slot = slots[n]
        colour = f"{slot.colour} " if slot.colour else ""
        draft.add_text("" if not k else " and " if k == len(members) - 1 else ", ")
        draft.add_phrase("contrast", (n,), f"{article(colour + slot.concept.noun)} {colour}", slot.concept.noun)
        draft.add_text(f" {rng.choice(POSITIONS[places[k]])}")
    image, objects = render(slots, Random(f"picture {seed}"), style, config)
    scene = Scene(
        seed=seed, style=style, image=image, objects=objects, caption=draft.text, phrases=tuple(draft.phrases)
    )
    return "colour" if len({slots[n].colour for n in members}) > 1 else "position", scene


def count_expressions(kind: str, scene: Scene, row: Mapping[str, Any]) -> Counter[str]:
    """Count the kept boxes of expressions longer than their noun chunk, and those that are right: the best, and all."""
    truth, counts = truth_of(scene), Counter[str]()
    kept = [row["boxes"][i] for i in boxes_with_expression(row)] if row["boxes"] else []
    for expression in row["ref_exps"] or ():
        chunk = row["noun_chunks"][expression["chunk"]]
        own = [prediction_of(chunk, box).box for box in kept if box["phrase"] == expression["chunk"]]
        index = phrase_of(chunk["start"], chunk["end"], truth)
        if own and expression["end"] > chunk["end"]:
            true = truth.phrases[index].boxes if index is not None else ()
            is_right = [bool(overlaps.max(initial=0.0) >= MIN_IOU) for overlaps in iou(own, true)]
            for name, flags in (("best", is_right[:1]), ("all", is_right)):
                counts[f"boxes: {name} {kind}"] += len(flags)
                counts[f"right: {name} {kind}"] += sum(flags)
    return counts


def caption_table(scenes: Sequence[Scene]) -> pa.Table:
    """Return scenes as a table in the schema after the captions stage."""
    return pa.Table.from_pylist([caption_row(index, scene) for index, scene in enumerate(scenes)], CAPTIONED)


def caption_row(index: int, scene: Scene) -> dict[str, Any]:
    """Return a scene as a row of `CAPTIONED`."""
    height, width = scene.image.shape[:2]
    return {
        "key": f"{index:012d}",
        "source": "demo.world",
        "source_row": scene.seed,
        "caption_original": scene.caption,
        "caption": scene.caption,
        "image": encode_jpeg(scene.image),
        "width": width,
        "height": height,
        "original_width": width,
        "original_height": height,
        "original_format": "jpeg",
        "status": KEPT,
    }


def load_stages(weights: Path | None) -> tuple[Parse, Ground, Score]:
    """Load the stages with the GLIP and CLIP in glip/ and clip/ of a folder; None: the miniature models."""
    ground = GroundConfig(grounder=str(weights / "glip")) if weights else GroundConfig()
    score = ScoreConfig(scorer=str(weights / "clip")) if weights else ScoreConfig()
    return Parse(ParseConfig()), Ground(ground), Score(score, resolve_thresholds(score, ground.grounder))


def run(scenes: Sequence[Scene], stages: Iterable[Callable[[Any], Any]]) -> list[dict[str, Any]]:
    """Pass the scenes through the stages. Returns the rows of the last one."""
    rows: list[dict[str, Any]] = []
    for start in range(0, len(scenes), BATCH):
        table = caption_table(scenes[start : start + BATCH])
        for stage in stages:
            table = stage(table)
        rows += table.select(
            ["caption", "noun_chunks", "ref_exps", "boxes", "has_expression", "box_scores"]
        ).to_pylist()
    return rows


def count(scene: Scene, row: Mapping[str, Any]) -> Counter[str]:
    """Count true, predicted and correct boxes of one image, the losses by cause and by kind of phrase, and the false boxes."""
    truth = truth_of(scene)
    assert row["caption"] == scene.caption
    boxes = list(zip(row["boxes"] or [], row["box_scores"] or [], strict=True))
    kept = [prediction_of(row["noun_chunks"][b["phrase"]], b) for b, s in boxes if s["removed"] is None]
    found, counts = matches(kept, truth), Counter[str]()
    counts["predicted"], counts["right"] = len(found), sum(match.is_correct for match in found)
    for match in found:
        if not match.is_correct:
            counts[f"false: {false_cause(match.prediction.box, match.phrase, truth, scene)}"] += 1
    right: dict[int, list[Any]] = {}
    for match in found:
        if match.is_correct and match.phrase is not None:
            right.setdefault(match.phrase, []).append(match.prediction.box)
    for index, phrase in enumerate(truth.phrases):
        counts["true"] += len(phrase.boxes)
        unmatched = unmatched_boxes(phrase.boxes, right.get(index, []))
        counts[f"true: {phrase.kind}"] += len(phrase.boxes)
        counts[f"right: {phrase.kind}"] += len(phrase.boxes) - len(unmatched)
        for box in unmatched:
            counts[f"lost: {lost_cause(box, index, row, boxes, truth)}"] += 1
    return counts


def unmatched_boxes(true: Sequence[Any], predicted: Sequence[Any]) -> list[Any]:
    """Return the true boxes that no predicted box was matched with, in the order of `matches`."""
    left = list(true)
    for box in predicted:
        left.pop(int(iou([box], left)[0].argmax()))
    return left


def lost_cause(box: Any, index: int, row: Mapping[str, Any], boxes: Sequence[tuple[Any, Any]], truth: Truth) -> str:
    """Return why no kept box matches a true box of the phrase with this index."""
    chunks = [n for n, c in enumerate(row["noun_chunks"] or []) if phrase_of(c["start"], c["end"], truth) == index]
    removed = [row["noun_chunks"][n]["removed"] for n in chunks]
    if all(removed):
        return f"phrase removed: {removed[0]}" if removed else "no phrase"
    near = [
        (b["score"], s["removed"])
        for b, s in boxes
        if b["phrase"] in chunks
        and iou([prediction_of(row["noun_chunks"][b["phrase"]], b).box], [box])[0, 0] >= MIN_IOU
    ]
    if not near:
        return NO_BOX
    best = max(near, key=lambda item: (item[1] is None, item[0]))
    return OVERLAPPED if best[1] is None else LOST[best[1]]


def false_cause(box: Any, phrase: int | None, truth: Truth, scene: Scene) -> str:
    """Return what a false box shows: another object, the background, or an object that is found twice or imprecisely."""
    if phrase is None:
        return "phrase without an object"
    if not truth.phrases[phrase].boxes:
        return f"{truth.phrases[phrase].kind} phrase"
    own = iou([box], truth.phrases[phrase].boxes)[0].max()
    if own >= MIN_IOU:
        return "second box of an object"
    if (iou([box], object_boxes(scene)) >= MIN_IOU).any():
        return "another object"
    return "imprecise box" if own >= 0.2 else "background"


def precision(counts: Counter[str]) -> float:
    return counts["right"] / counts["predicted"] if counts["predicted"] else 0.0


def recall(counts: Counter[str]) -> float:
    return counts["right"] / counts["true"] if counts["true"] else 0.0


def precision_and_recall(counts: Iterable[Counter[str]]) -> dict[str, float]:
    """Return precision and recall over images, by name."""
    summed = total(counts)
    return {"precision": precision(summed), "recall": recall(summed)}


if __name__ == "__main__":
    main()
