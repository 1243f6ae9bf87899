"""Ablation: what thresholds, NMS, filters and prompt contribute to the precision and recall of phrases and boxes.

    python -m benchmarks.ablation [--scenes 60] [--weights FOLDER]

Boxes are measured as in `benchmarks/boxes.py`, over all art styles; phrases as in `benchmarks/phrases.py`, on all of its
captions. The settings are those of the pipeline, changed one at a time. Prints a Markdown table; the last line is one
JSON object.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.boxes import WORLDS
from benchmarks.phrases import CAPTIONS, RULES, shares, without
from benchmarks.phrases import count as count_phrases
from benchmarks.scenes.measure import SEEDS, Setup, count, precision, recall, run, total
from benchmarks.scenes.world import Case
from demo.world.sprites import STYLES
from pipeline.parse.chunks import NOUNS, NounPhrase
from pipeline.parse.phrases import PhraseRules
from pipeline.parse.stage import Parse
from pipeline.parse.types import Token
from pipeline.score.filters import clip_score
from pipeline.score.stage import Score
from pipeline.score.thresholds import resolve_thresholds

SCORE_STEPS, CLIP_STEPS = (-0.2, -0.1, 0.1, 0.2), (-0.5, -0.25, 0.25, 0.5)
NMS = (0.3, 0.45, 0.75, 1.0)


class NoFilter(PhraseRules):
    """Rules that remove only phrases without a noun."""

    def removal(self, words: Sequence[str], tokens: Sequence[Token], phrase: NounPhrase) -> str | None:
        """Return "pronoun" or None."""
        is_noun = any(token.pos in NOUNS for token in tokens[phrase.first : phrase.end])
        return None if is_noun else "pronoun"


class Bench:
    """The scenes of both worlds, and the rows of the pipeline for each variant that changes phrases or boxes."""

    def __init__(self, n_scenes: int, setup: Setup) -> None:
        self.setup = setup
        self.thresholds = resolve_thresholds(setup.score, setup.ground.grounder)
        self.cases: dict[str, list[Case]] = {
            name: [make(seed, style) for style in STYLES for seed in SEEDS["held-out"][:n_scenes]]
            for name, make in WORLDS.items()
        }

    def rows(self, setup: Setup, rules: PhraseRules | None = None) -> dict[str, list[dict[str, Any]]]:
        """Run the stages without thresholds. Returns the rows of each world."""
        parse, ground, _ = setup.stages()
        replace_rules(parse, rules)
        open_score = replace(setup.score, min_score=0.0, min_clip_score=0.0)
        score = Score(open_score, resolve_thresholds(open_score, setup.ground.grounder))
        return {name: run(cases, (parse, ground, score)) for name, cases in self.cases.items()}

    def figures(
        self,
        rows: Mapping[str, Sequence[dict[str, Any]]],
        min_score: float | None = None,
        min_clip: float | None = None,
    ) -> dict[str, float]:
        """Return precision and recall of each world after the thresholds; None: those of the models."""
        low = self.thresholds.min_score if min_score is None else min_score
        low_clip = self.thresholds.min_clip_score if min_clip is None else min_clip
        found: dict[str, float] = {}
        for name, cases in self.cases.items():
            counts = total(count(case, kept(row, low, low_clip)) for case, row in zip(cases, rows[name], strict=True))
            found[f"{name} precision"], found[f"{name} recall"] = precision(counts), recall(counts)
        return found


def replace_rules(parse: Parse, rules: PhraseRules | None) -> None:
    """Replace the rules of a parse stage."""
    if rules is not None:
        parse.parser.rules = rules


def kept(row: dict[str, Any], min_score: float, min_clip: float) -> dict[str, Any]:
    """Apply thresholds to a row whose boxes all have a cosine, except those that are too small."""
    scores = []
    for box, measured in zip(row["boxes"] or [], row["box_scores"] or [], strict=True):
        removed = measured["removed"]
        if removed is None and box["score"] < min_score:
            removed = "low_score"
        elif removed is None and clip_score(measured["clip_cosine"]) < min_clip:
            removed = "low_clip_score"
        scores.append({**measured, "removed": removed})
    return {**row, "box_scores": scores}


def phrase_figures(parse: Parse) -> dict[str, float]:
    """Return precision and recall of phrases on the labelled captions."""
    labelled = [json.loads(line) for line in CAPTIONS.read_text(encoding="utf-8").splitlines()]
    parses = parse.parser.parse([row["caption"] for row in labelled])
    values = shares([count_phrases(row, found) for row, found in zip(labelled, parses, strict=True)])
    return {"phrase precision": values["precision"], "phrase recall": values["recall"]}


def variants(bench: Bench) -> dict[str, dict[str, float]]:
    """Return the figures of each variant by its name."""
    setup, limits = bench.setup, bench.thresholds
    rows = bench.rows(setup)
    default = bench.figures(rows)
    table = {f"default (score {limits.min_score:.2f}, CLIPScore {limits.min_clip_score:.2f})": default}
    table["without both thresholds"] = bench.figures(rows, 0.0, 0.0)
    table["without CLIP filter"] = bench.figures(rows, None, 0.0)
    table["without score threshold"] = bench.figures(rows, 0.0, None)
    for step in SCORE_STEPS:
        table[f"score threshold {step:+.2f}"] = bench.figures(rows, max(limits.min_score + step, 0.0))
    for step in CLIP_STEPS:
        table[f"CLIPScore threshold {step:+.2f}"] = bench.figures(rows, None, max(limits.min_clip_score + step, 0.0))
    for iou in NMS:
        changed = replace(setup, ground=replace(setup.ground, nms_iou=iou))
        name = f"NMS at IoU {iou}" if iou < 1 else "without NMS"
        table[f"{name} (default {setup.ground.nms_iou})"] = bench.figures(bench.rows(changed))
    phrases = replace(setup, ground=replace(setup.ground, prompt="phrases"))
    table["prompt: list of phrases"] = bench.figures(bench.rows(phrases))
    defaults = PhraseRules.from_config(setup.parse)
    for name, rules in {
        "without abstract nouns": replace(defaults, abstract=frozenset(), suffixes=()),
        "without any phrase filter": NoFilter(abstract=frozenset(), suffixes=(), keep=frozenset()),
    }.items():
        parse = Parse(setup.parse)
        replace_rules(parse, rules)
        table[name] = bench.figures(bench.rows(setup, rules)) | phrase_figures(parse)
    grit = replace(setup, parse=without(setup.parse, *RULES))
    table["phrases in GRIT's form"] = bench.figures(bench.rows(grit)) | phrase_figures(Parse(grit.parse))
    default |= phrase_figures(Parse(setup.parse))
    return table


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", type=int, default=60, help="scenes per style and world")
    parser.add_argument("--weights", type=Path, help="folder with glip/ and clip/; default: the miniature models")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = variants(Bench(options.scenes, Setup.with_weights(options.weights)))
    columns = ["own precision", "own recall", "independent precision", "independent recall"]
    columns += ["phrase precision", "phrase recall"]
    print(f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|", sep="\n")
    for name, figures in table.items():
        print(f"| {name} | {' | '.join(f'{figures[c]:.3f}' if c in figures else '' for c in columns)} |")
    rounded = {name: {column: round(value, 4) for column, value in row.items()} for name, row in table.items()}
    print(json.dumps({"name": "ablation", "scenes": options.scenes, "variants": rounded}))


if __name__ == "__main__":
    main()
