"""How good the two miniature models are on unseen scenes, through the pipeline's own stages: `python -m demo.eval`.

Chooses the two thresholds on one set of scenes and reports on another. Writes the thresholds into the models'
config.json and the figures into demo/weights/MODEL_CARD.md, unless `--dry-run`.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from demo.calibration import Point, Scored, choose, grid, grid_table
from demo.eval_tables import captioned, listed, read_predictions, without_weak_boxes
from demo.make_input import CANVASES
from demo.world.layout import WorldConfig
from demo.world.scenes import TEST_SEEDS, Scene, list_prompt, make_scene
from demo.world.sprites import HELD_OUT_STYLE, STYLES, TRAIN_STYLES, Style
from demo.world.truth import Prediction, Truth, average_precision, iou, matches, recall_at, truth_of
from pipeline.ground.config import GroundConfig
from pipeline.ground.stage import Ground
from pipeline.parse.config import ParseConfig
from pipeline.parse.stage import Parse
from pipeline.score.config import CLIP_SCORE_WEIGHT, ScoreConfig
from pipeline.score.stage import Score
from pipeline.score.thresholds import resolve_thresholds

WEIGHTS = Path(__file__).parent / "weights"
CARD = WEIGHTS / "MODEL_CARD.md"
BEGIN, END = "<!-- figures: made by demo/eval.py -->", "<!-- end of figures -->"
CALIBRATION_SEEDS = TEST_SEEDS[10_000:20_000]
REPORT_SEEDS = TEST_SEEDS[20_000:30_000]
N_SCENES = 150
# What the demo promises at the least is 0.90 and 0.85; the figures of the report come from other scenes than the choice.
MIN_PRECISION = {"trained": 0.955, "held_out": 0.90}
SEARCH_FLOOR = 0.02  # for average precision and recall among many boxes; what is scored has the pipeline's own floor

Images = list[tuple[list[Prediction], Truth]]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenes", type=int, default=N_SCENES, help="scenes a style, for each of the two sets")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of glip/ and clip/")
    parser.add_argument("--dry-run", action="store_true", help="write neither thresholds nor card")
    options = parser.parse_args()
    models = Models(options.weights)
    calibration = {style: models.scored(scenes(style, CALIBRATION_SEEDS, options.scenes))[1] for style in STYLES}
    chosen = choose(by_share(calibration), MIN_PRECISION)["trained"]
    report = {style: models.scored(scenes(style, REPORT_SEEDS, options.scenes)) for style in STYLES}
    lists = {style: models.listed(scenes(style, REPORT_SEEDS, options.scenes)) for style in STYLES}
    lines = card_lines(options.scenes, chosen, report, lists)
    print("\n".join(lines))
    if not options.dry_run:
        write_thresholds(options.weights, chosen)
        write_card(CARD, lines)


def card_lines(
    n_scenes: int, chosen: Point, report: dict[Style, tuple[Images, list[Scored]]], lists: dict[Style, Images]
) -> list[str]:
    """Markdown: what the model card says of both models at the thresholds `chosen`."""
    scored = {style: images for style, (_, images) in report.items()}
    lines = [
        f"{n_scenes} scenes a style (seeds from {REPORT_SEEDS.start}), canvases as in the demo, boxes right at "
        "IoU 0.5. `list`: the prompt names what is there and what is not; `caption`: noun chunks of the caption.",
        "",
        *detector_table(lists, {style: images for style, (images, _) in report.items()}),
        "",
        f"Thresholds, chosen on {n_scenes} other scenes a style (seeds from {CALIBRATION_SEEDS.start}) for the "
        f"highest recall at a precision of at least {MIN_PRECISION['trained']} in the styles seen in training and "
        f"{MIN_PRECISION['held_out']} in the one held out: grounding score >= {chosen.min_score:.2f}, cosine >= "
        f"{max(chosen.min_cosine, 0.0):.2f} (CLIPScore >= {clip_score(chosen):.2f}).",
        "",
        *filter_table(scored, chosen),
    ]
    for name, images in by_share(scored).items():
        title = f"`{HELD_OUT_STYLE}`, never seen" if name == "held_out" else "styles seen in training"
        lines += ["", f"Precision / recall over both thresholds, {title}:", "", *grid_table(images)]
    return lines


class Models:
    """The pipeline's stages, with nothing filtered away but boxes too small to be kept."""

    def __init__(self, weights: Path) -> None:
        glip, clip = str(weights / "glip"), str(weights / "clip")
        self.parse = Parse(ParseConfig())
        self.ground = Ground(GroundConfig(grounder=glip, floor=SEARCH_FLOOR))
        config = ScoreConfig(scorer=clip, min_score=0.0, min_clip_score=0.0)
        self.score = Score(config, resolve_thresholds(config, glip))

    def scored(self, items: Sequence[Scene]) -> tuple[Images, list[Scored]]:
        """Boxes for the captions of scenes: all of them, and those that the filters will judge."""
        truths = [truth_of(scene) for scene in items]
        table = self.ground(self.parse(captioned(items)))
        found = read_predictions(table)
        scored = self.score(without_weak_boxes(table, GroundConfig().floor))
        return list(zip(found, truths, strict=True)), read_scored(scored, truths)

    def listed(self, items: Sequence[Scene]) -> Images:
        """Boxes for list prompts of the same scenes."""
        prompts = [list_prompt(scene) for scene in items]
        return list(zip(read_predictions(self.ground(listed(prompts))), map(truth_of, prompts), strict=True))


def scenes(style: Style, seeds: range, n: int) -> list[Scene]:
    """The first `n` scenes of `seeds`, on the demo's canvases."""
    made = []
    for seed in seeds[:n]:
        width, height = Random(f"canvas {seed}").choice(CANVASES)
        made.append(make_scene(seed, style, WorldConfig(width=width, height=height)))
    return made


def read_scored(table: pa.Table, truths: Sequence[Truth]) -> list[Scored]:
    """Boxes with their cosines; boxes that are too small have none and are left out."""
    verdicts = table["box_scores"].to_pylist()
    images = []
    for truth, boxes, scores in zip(truths, read_predictions(table), verdicts, strict=True):
        pairs = [(box, score["clip_cosine"]) for box, score in zip(boxes, scores or [], strict=True)]
        pairs = [(box, cosine) for box, cosine in pairs if cosine is not None]
        images.append(
            Scored(truth=truth, boxes=tuple(box for box, _ in pairs), cosines=tuple(cosine for _, cosine in pairs))
        )
    return images


def by_share(images: dict[Style, list[Scored]]) -> dict[str, list[Scored]]:
    """All images of the styles seen in training, and those of the style held out."""
    return {"trained": [i for style in TRAIN_STYLES for i in images[style]], "held_out": images[HELD_OUT_STYLE]}


def clip_score(point: Point) -> float:
    """The cosine threshold as the pipeline has it, in CLIPScore."""
    return round(CLIP_SCORE_WEIGHT * max(point.min_cosine, 0.0), 4)


def detector_table(lists: dict[Style, Images], captions: dict[Style, Images]) -> list[str]:
    """Markdown: the detector alone, style by style."""
    lines = [
        "| style | list AP50 | caption AP50 | caption R@1 | any of 20 | mean IoU of hits |",
        "|---|---|---|---|---|---|",
    ]
    for style, images in captions.items():
        first = [hit for found, truth in images for hit in recall_at(1, found, truth)]
        many = [hit for found, truth in images for hit in recall_at(20, found, truth)]
        hits = [
            float(iou([box.box], truth.phrases[index].boxes).max())
            for found, truth in images
            for box, index, right in matches(found, truth)
            if right and index is not None
        ]
        cells = [average_precision(lists[style]), average_precision(images), mean(first), mean(many), mean(hits)]
        lines.append(f"| {style} | {' | '.join(f'{cell:.3f}' for cell in cells)} |")
    return lines


def filter_table(images: dict[Style, list[Scored]], chosen: Point) -> list[str]:
    """Markdown: what the two filters do at the chosen thresholds."""
    lines = [
        "| precision / recall | before both | grounding score | both filters |",
        "|---|---|---|---|",
    ]
    groups: list[tuple[str, list[Scored]]] = [*images.items(), *by_share(images).items()]
    steps = [(0.0, -1.0), (chosen.min_score, -1.0), (chosen.min_score, chosen.min_cosine)]
    for name, group in groups:
        points = [grid(group, (score,), (cosine,))[0] for score, cosine in steps]
        lines.append(f"| {name} | {' | '.join(f'{p.precision:.3f} / {p.recall:.3f}' for p in points)} |")
    return lines


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def write_thresholds(weights: Path, chosen: Point) -> None:
    """Where the pipeline looks for the models' own calibration."""
    changes: tuple[tuple[str, str, str, float], ...] = (
        ("glip", "detect", "score_threshold", chosen.min_score),
        ("clip", "thresholds", "clip_score", clip_score(chosen)),
    )
    for model, part, key, value in changes:
        path = weights / model / "config.json"
        config: dict[str, Any] = json.loads(path.read_text("utf-8"))
        config.setdefault(part, {})[key] = value
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_card(path: Path, lines: Sequence[str]) -> None:
    """Replace the figures in the model card; the rest of it is written by hand."""
    before, _, rest = path.read_text("utf-8").partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{path}: the lines {BEGIN!r} and {END!r} that enclose the figures are not there")
    figures = "\n".join(lines)
    path.write_text(f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
