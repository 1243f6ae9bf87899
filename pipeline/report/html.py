"""Write report.html: a single file, which a browser opens from disk without network access."""

import base64
import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup
from omegaconf import OmegaConf

from common.errors import UserError
from common.html import render_page
from common.text import duration_text
from pipeline.report.advice import Advice, find_advice
from pipeline.report.cards import make_card
from pipeline.report.charts import Chart, histogram_chart, number
from pipeline.report.config import ReportConfig
from pipeline.report.dropped import find_dropped
from pipeline.report.head import bytes_text, describe_run
from pipeline.report.samples import Picture, Row, Thumbnail, pick_examples, pick_pictures
from pipeline.report.shards import read_manifests, read_manifests_of
from pipeline.report.trees import draw_tree, is_drawable
from pipeline.write.store import Store
from pipeline.write.summary import find_places
from schemas.attempts import shard_of
from schemas.files import REPORT_FILE, STATS_FILE
from schemas.stats import Statistics
from schemas.status import BOX_REMOVALS, PHRASE_REMOVALS, REASONS, STAGES

TEMPLATES: Final = Path(__file__).resolve().parent
MAX_TEXT: Final = 160
"""Maximum length of a URL or caption in a table, in characters."""
HINTS: Final = {
    "dns_error": "If this is frequent: run a caching DNS resolver on the workers, or lower download.concurrency.",
    "timeout": "Raise download.timeout_s, or lower download.concurrency_per_host.",
    "connection_error": "The host may be gone. A later run with another output may reach it again.",
    "http_error": "404 and 410: the image no longer exists. 403 and 429: lower download.concurrency_per_host.",
    "opted_out": "The owner does not allow this use of the image. There is nothing to fix.",
    "undecodable": "Often an error page or half a file. Raise download.timeout_s if many images are truncated.",
    "too_many_bytes": "Raise download.max_bytes.",
    "too_small": "Lower download.limits.min_side_px.",
    "no_phrase": "Head nouns that were wrongly removed belong into parse.keep.",
    "no_box": "The model may not know these images or words. Compare the pictures with the captions.",
    "private_address": "Add the names of your own hosts to download.allowed_private_hosts.",
    "low_score": "Depends on score.min_score. The scores are stored in arrow/, so another threshold needs no GPU.",
    "low_clip_score": "Depends on score.min_clip_score. The cosines are stored in arrow/, so another threshold "
    "needs no GPU.",
    "box_too_small": "Larger stored images (download.resize.size) keep more boxes above the limit.",
}
"""Drop reason -> advice on the page."""
TRUTH_COLUMNS: Final = {
    "n_right": "correct boxes",
    "n_predicted": "boxes",
    "n_true": "true boxes",
    "n_absent": "boxes of absent objects",
    "n_abstract": "boxes of abstract nouns",
}
"""Count in the `truth` of stats.json -> column heading."""


def write_report(output: str, config: ReportConfig | None = None) -> None:
    """Write report.html to the folder or URL `output`, from its stats.json and finished shards.

    Without `config`, the report settings of the job are used. Raises UserError if there is no stats.json.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from pipeline import ShardPlan, WriteConfig, build_stats, write_report, write_shard
    >>> from schemas.rows import SCORED
    >>> plan, provenance = ShardPlan(0, 0, 0, ()), {"config_hash": "0", "models": {"scorer": {"name": "miniature"}}}
    >>> with TemporaryDirectory() as output:
    ...     manifest = write_shard(SCORED.empty_table(), plan, WriteConfig(), output, provenance)
    ...     stats = build_stats(output)
    ...     write_report(output)
    ...     (Path(output) / "report.html").is_file()
    True
    """
    store = Store(output)
    content = store.read(STATS_FILE)
    if content is None:
        raise UserError(f"{output} has no {STATS_FILE}; create it with `python -m pipeline.report {output}`")
    stats: Statistics = json.loads(content)
    make_report(store, stats, config or ReportConfig(**stats["config"].get("report", {})))


def make_report(store: Store, stats: Statistics, config: ReportConfig) -> list[Advice]:
    """Write report.html, and return its warnings."""
    places = stats.get("places") or find_places(read_manifests(store, set(stats["shards"])))
    pictures = pick_pictures(store, read_manifests_of(store, places["kept"]), config)
    shards = {shard for reasons in places["dropped"].values() for found in reasons.values() for shard in found}
    manifests = read_manifests_of(store, [index for index in stats["shards"] if shard_of(index) in shards])
    examples = pick_examples(store, manifests, config.examples)
    dropped = find_dropped(store, manifests, examples)
    advice = find_advice(stats, [*(picture.jpeg for picture in pictures), *(image.jpeg for image in dropped.values())])
    store.write(REPORT_FILE, render(stats, store.root, config, pictures, examples, dropped, advice))
    return advice


def render(
    stats: Statistics,
    output: str,
    config: ReportConfig,
    pictures: Sequence[Picture],
    examples: Mapping[tuple[str, str], list[Row]],
    dropped: Mapping[str, Thumbnail],
    advice: Sequence[Advice],
) -> str:
    """Return the page as HTML, without control characters.

    `dropped` has thumbnails of rows in `examples` by key.
    """
    drawable = [picture.row for picture in pictures if is_drawable(picture.row)][: config.trees]
    script = (TEMPLATES / "report.js").read_text("utf-8")
    return render_page(
        TEMPLATES,
        "template.html",
        {"number": number, "shortened": shortened, "bytes": bytes_text, "duration": duration_text},
        stats=stats,
        style=Markup((TEMPLATES / "style.css").read_text("utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        head=describe_run(stats),
        advice=advice,
        explorer=f"python -m pipeline.explore {shlex.quote(output)}",
        funnel=list(funnel(stats, examples, dropped)),
        cards=[make_card(picture) for picture in pictures],
        trees=[(row["key"], row["caption"], draw_tree(row, i)) for i, row in enumerate(drawable)],
        charts=list(make_charts(stats)),
        truth=list(truth_rows(stats.get("truth", {}), "")),
        truth_columns=TRUTH_COLUMNS,
        meanings={**PHRASE_REMOVALS, **BOX_REMOVALS},
        config_text=OmegaConf.to_yaml(OmegaConf.create(stats["config"])),
        versions=list(flatten(stats["provenance"], "")),
    )


def funnel(
    stats: Statistics, examples: Mapping[tuple[str, str], list[Row]], dropped: Mapping[str, Thumbnail]
) -> Iterator[dict[str, Any]]:
    """Yield, for each stage, the rows that entered and left it and its drop reasons, the most frequent first."""
    left = stats["rows"]["read"] - stats["rows"].get("unfinished", 0)
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
                    "cards": [
                        make_card(Picture(row, *dropped[row["key"]]), is_dropped=True)
                        for row in examples.get((stage, reason), [])
                        if row["key"] in dropped
                    ],
                }
                for reason, n in reasons
            ],
        }


def make_charts(stats: Statistics) -> Iterator[Chart]:
    """Yield the charts of the histograms that are not empty, with the thresholds of the job marked on their axes."""
    thresholds = stats["provenance"].get("thresholds", {})
    marks = {"grounding_score": thresholds.get("min_score"), "clip_cosine": thresholds.get("min_clip_score")}
    for name, data in stats["histograms"].items():
        chart = histogram_chart(name, data, marks.get(name))
        if chart is not None:
            yield chart


def truth_rows(truth: Mapping[str, Any], path: str) -> Iterator[dict[str, Any]]:
    """Yield a table row for each part of `truth` that has a precision and a recall, named by its path in the tree."""
    if {"precision", "recall"} <= truth.keys():
        counts = {name: value for name, value in truth.items() if isinstance(value, int)}
        yield {"name": path or "all", "precision": truth["precision"], "recall": truth["recall"], "counts": counts}
    for name, part in truth.items():
        if isinstance(part, Mapping):
            yield from truth_rows(part, f"{path} · {name}" if path else name)


def flatten(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield the leaves of a tree with their dotted names."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", str(value)


def shortened(text: str | None) -> str:
    """Truncate a text to MAX_TEXT characters; return a dash for None or an empty text."""
    if not text:
        return "–"
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
