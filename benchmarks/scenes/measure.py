"""Precision, recall and the causes of losses of the pipeline's boxes on scenes with known objects."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.bootstrap import ROUNDS, intervals
from benchmarks.scenes.world import Case
from demo.eval_tables import caption_table
from demo.make_input import canvas_scene
from demo.world.scenes import TEST_SEEDS, Scene
from demo.world.sprites import Style
from demo.world.truth import MIN_IOU, Truth, iou, matches, object_boxes, phrase_of, prediction_of, truth_of
from pipeline.ground.config import GroundConfig
from pipeline.ground.stage import Ground
from pipeline.parse.config import ParseConfig
from pipeline.parse.stage import Parse
from pipeline.score.config import ScoreConfig
from pipeline.score.stage import Score
from pipeline.score.thresholds import resolve_thresholds

SEEDS = {"dev": TEST_SEEDS[40_000:50_000], "held-out": TEST_SEEDS[50_000:60_000]}
BATCH = 50

LOST = {
    "low_score": "score below the threshold",
    "low_clip_score": "CLIPScore below the threshold",
    "box_too_small": "box too small",
}
NO_BOX, OVERLAPPED = "no box at IoU 0.5", "box matched to another object"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The settings of the three stages that decide which boxes are kept."""

    parse: ParseConfig = field(default_factory=ParseConfig)
    ground: GroundConfig = field(default_factory=GroundConfig)
    score: ScoreConfig = field(default_factory=ScoreConfig)

    @classmethod
    def with_weights(cls, folder: Path | None) -> "Setup":
        """Use the GLIP and CLIP in glip/ and clip/ of a folder; None: the miniature models."""
        if folder is None:
            return cls()
        return cls(ground=GroundConfig(grounder=str(folder / "glip")), score=ScoreConfig(scorer=str(folder / "clip")))

    def stages(self) -> tuple[Parse, Ground, Score]:
        """Load the models."""
        thresholds = resolve_thresholds(self.score, self.ground.grounder)
        return Parse(self.parse), Ground(self.ground), Score(self.score, thresholds)


def own_case(seed: int, style: Style) -> Case:
    """Generate a scene of the demo's world on one of the demo's canvases, with tags from the kinds of its phrases."""
    scene = canvas_scene(seed, style)
    names = {"category": "hypernym", "count": "count", "contrast": "told apart by colour"}
    tags = []
    for phrase in scene.phrases:
        found = {names[phrase.kind]} if phrase.kind in names else set()
        if any(scene.objects[index].colour for index in phrase.objects):
            found.add("tinted")
        tags.append(frozenset(found or {"plain"}))
    return Case(scene=scene, tags=tuple(tags))


def run(cases: Sequence[Case], stages: Iterable[Callable[[Any], Any]]) -> list[dict[str, Any]]:
    """Pass the scenes through the stages. Returns the rows of the last one."""
    rows: list[dict[str, Any]] = []
    for start in range(0, len(cases), BATCH):
        table = caption_table([case.scene for case in cases[start : start + BATCH]])
        for stage in stages:
            table = stage(table)
        rows += table.select(["caption", "noun_chunks", "boxes", "box_scores"]).to_pylist()
    return rows


def count(case: Case, row: Mapping[str, Any]) -> Counter[str]:
    """Count true, predicted and correct boxes of one image, the losses by cause and by tag, and the false boxes."""
    scene, truth = case.scene, truth_of(case.scene)
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
        for tag in case.tags[index]:
            counts[f"true: {tag}"] += len(phrase.boxes)
            counts[f"right: {tag}"] += len(phrase.boxes) - len(unmatched)
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


def total(counts: Iterable[Counter[str]]) -> Counter[str]:
    """Return the sum of counts."""
    result: Counter[str] = Counter()
    for part in counts:
        result.update(part)
    return result


def precision(counts: Counter[str]) -> float:
    return counts["right"] / counts["predicted"] if counts["predicted"] else 0.0


def recall(counts: Counter[str]) -> float:
    return counts["right"] / counts["true"] if counts["true"] else 0.0


def precision_and_recall(counts: Iterable[Counter[str]]) -> dict[str, float]:
    """Return precision and recall over images, by name."""
    summed = total(counts)
    return {"precision": precision(summed), "recall": recall(summed)}


def bootstrap_intervals(counts: Iterable[Counter[str]], rounds: int = ROUNDS) -> dict[str, tuple[float, float]]:
    """Return the 95 % bootstrap intervals of precision and recall over images."""
    slim = [Counter({name: part[name] for name in ("right", "predicted", "true")}) for part in counts]
    return intervals(precision_and_recall, slim, rounds)
