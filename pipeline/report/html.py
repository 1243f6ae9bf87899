"""report.html: one file that opens from disk, without scripts and without a network."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from omegaconf import OmegaConf

from common.errors import UserError
from pipeline.report.cards import make_card
from pipeline.report.charts import Chart, histogram_chart, number
from pipeline.report.config import ReportConfig
from pipeline.report.samples import Row, pick_examples, pick_pictures
from pipeline.report.shards import read_manifests
from pipeline.report.stats import STATS_FILE
from pipeline.report.trees import draw_tree, is_drawable
from pipeline.score.config import CLIP_SCORE_WEIGHT
from pipeline.write.store import Store
from schemas.status import BOX_REMOVALS, PHRASE_REMOVALS, REASONS, STAGES

REPORT_FILE: Final = "report.html"
TEMPLATES: Final = Path(__file__).resolve().parent
MAX_TEXT: Final = 160
"""Characters of a URL or caption in a table."""
HINTS: Final = {
    "dns_error": "many of these: run a caching resolver beside the workers, or lower the number of connections",
    "timeout": "raise the time-out, or lower the number of connections a host",
    "connection_error": "often a host that is gone; a later run with the same input may find it again",
    "http_error": "404 and 410 are gone for good; 403 and 429 ask for fewer requests",
    "opted_out": "the owner's wish; nothing to mend",
    "private_address": "name hosts of your own in download.allowed_private_hosts",
    "low_score": "the grounding threshold decides; the scores are stored, so another cut needs no GPU",
    "low_clip_score": "the CLIP threshold decides; the cosines are stored, so another cut needs no GPU",
    "box_too_small": "a larger stored image (download.resize) keeps more of them",
}
"""What the user can do about a reason."""


def write_report(output: str, config: ReportConfig | None = None) -> None:
    """Write report.html from stats.json and the finished shards; without `config`, with that of the run.

    Raises UserError without stats.json.
    """
    store = Store(output)
    content = store.read(STATS_FILE)
    if content is None:
        raise UserError(f"{output} has no {STATS_FILE}: make it with `python -m pipeline.report {output}`")
    stats = json.loads(content)
    config = config or ReportConfig(**stats["config"].get("report", {}))
    store.write(REPORT_FILE, render(stats, store, config))


def render(stats: dict[str, Any], store: Store, config: ReportConfig) -> str:
    """The page as text."""
    manifests = read_manifests(store, set(stats["shards"]))
    pictures = pick_pictures(store, manifests, config)
    drawable = [picture.row for picture in pictures if is_drawable(picture.row)][: config.trees]
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "shortened": shortened}
    return environment.get_template("template.html").render(
        stats=stats,
        style=Markup((TEMPLATES / "style.css").read_text("utf-8")),
        funnel=list(funnel(stats, pick_examples(store, manifests, config.examples))),
        cards=[make_card(picture) for picture in pictures],
        trees=[(row["key"], row["caption"], draw_tree(row, i)) for i, row in enumerate(drawable)],
        charts=list(make_charts(stats)),
        truth=list(truth_rows(stats.get("truth", {}), "")),
        meanings={**PHRASE_REMOVALS, **BOX_REMOVALS},
        config_text=OmegaConf.to_yaml(OmegaConf.create(stats["config"])),
        versions=list(flatten(stats["provenance"], "")),
    )


def funnel(stats: Mapping[str, Any], examples: Mapping[tuple[str, str], list[Row]]) -> Iterator[dict[str, Any]]:
    """For each stage how many rows entered and left it, and its reasons, the most frequent first."""
    left = stats["rows"]["read"]
    for stage in STAGES:
        reasons = sorted(stats["rows"]["dropped"].get(stage, {}).items(), key=lambda item: (-item[1], item[0]))
        entered, left = left, left - sum(n for _, n in reasons)
        yield {
            "stage": stage,
            "entered": entered,
            "left": left,
            "reasons": [
                {
                    "name": reason,
                    "n": n,
                    "meaning": REASONS[stage][reason],
                    "hint": HINTS.get(reason),
                    "examples": examples.get((stage, reason), []),
                }
                for reason, n in reasons
            ],
        }


def make_charts(stats: Mapping[str, Any]) -> Iterator[Chart]:
    """The histograms that counted something, with the thresholds that decided marked where they are on the axis."""
    thresholds = stats["provenance"].get("thresholds", {})
    clip_score = thresholds.get("min_clip_score")
    marks = {
        "grounding_score": thresholds.get("min_score"),
        "clip_cosine": None if clip_score is None else clip_score / CLIP_SCORE_WEIGHT,
    }
    for name, data in stats["histograms"].items():
        chart = histogram_chart(name, data, marks.get(name))
        if chart is not None:
            yield chart


def truth_rows(truth: Mapping[str, Any], path: str) -> Iterator[dict[str, Any]]:
    """Every part of the truth that has a precision and a recall, named by the way to it."""
    if {"precision", "recall"} <= truth.keys():
        counts = {name: value for name, value in truth.items() if isinstance(value, int)}
        yield {"name": path or "all", "precision": truth["precision"], "recall": truth["recall"], "counts": counts}
    for name, part in truth.items():
        if isinstance(part, Mapping):
            yield from truth_rows(part, f"{path} · {name}" if path else name)


def flatten(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Leaves of a tree with their dotted names."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", str(value)


def shortened(text: str | None) -> str:
    """At most MAX_TEXT characters; a dash for nothing."""
    if not text:
        return "–"
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
