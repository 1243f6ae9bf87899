"""Write report.html: a single file, which a browser opens from disk without network access."""

import base64
import dataclasses
import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import UndefinedError
from markupsafe import Markup, escape

from hypergrit_common.config import flatten, from_plain
from hypergrit_common.errors import UserError
from hypergrit_common.html import render_page
from hypergrit_common.json_file import fits
from hypergrit_common.text import duration_text, one_line
from hypergrit_common.yaml_text import dump_yaml
from pipeline.config import ReportConfig
from pipeline.output.ledger import read_manifests_of, stamp_of
from pipeline.output.record import DAMAGE, located
from pipeline.output.store import Store
from pipeline.read.understood import input_lines
from pipeline.report.advice import HINTS, Advice, find_advice
from pipeline.report.cards import Picture, Row, Thumbnail, find_dropped, make_card, pick_examples, pick_pictures
from pipeline.report.charts import histogram_chart, number
from pipeline.report.stats import bytes_text, describe_run, stats_text, trainable
from pipeline.stages.score.filters import clip_score
from schemas.files import REPORT_FILE, STATS_FILE
from schemas.scores import SCORES
from schemas.stats import Statistics
from schemas.status import BOX_REMOVALS, GIVEN_REMOVALS, INTERNAL_ERROR, PHRASE_REMOVALS, all_reasons, shown_stage

# Draw the dependency trees of stored tokens with displaCy.

MAX_TOKENS: Final = 60
"""Maximum number of tokens of a tree; wide ones scroll."""
OPTIONS: Final = {
    "distance": 92,
    "word_spacing": 30,
    "arrow_spacing": 10,
    "arrow_width": 7,
    "arrow_stroke": 1.5,
    "offset_x": 46,
    "color": "currentcolor",
    "bg": "transparent",
    "font": "inherit",
}


def words_and_arcs(row: Row) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """Return the words and arcs of a stored parse, in displaCy's manual format.

    Tags and labels are escaped here; displaCy escapes only the words.
    """
    tokens, caption = row["tokens"], row["caption"]
    words = [{"text": caption[token["start"] : token["end"]], "tag": str(escape(token["pos"]))} for token in tokens]
    arcs = [
        {
            "start": min(i, head),
            "end": max(i, head),
            "label": str(escape(token["dep"])),
            "dir": "left" if i < head else "right",
        }
        for i, token in enumerate(tokens)
        if (head := token["head"]) != i
    ]
    return words, arcs


def draw_tree(row: Row, number: int) -> Markup:
    """Return a parse as SVG; `number` makes its ids unique on the page."""
    # Importing spaCy takes seconds, and loading the configuration imports this package.
    from spacy.displacy import DependencyRenderer

    words, arcs = words_and_arcs(row)
    svg = DependencyRenderer(OPTIONS).render_svg(f"tree-{number}", words, arcs)
    # displaCy puts labels below their arcs, where a short arc leaves too little space; this moves them above.
    return Markup(svg.replace('dy="1.25em"', 'dy="-0.4em"'))


TEMPLATES: Final = Path(__file__).resolve().parent
MAX_TEXT: Final = 160
"""Maximum length of a URL or caption in a table, in characters."""
TRUTH_COLUMNS: Final = {
    "n_right": "correct boxes",
    "n_predicted": "boxes",
    "n_true": "true boxes",
    "n_absent": "boxes of absent objects",
    "n_abstract": "boxes of abstract nouns",
    "n_images": "images",
}
"""Count in the `truth` of stats.json -> column heading."""


def write_report(output: str | Store, config: ReportConfig | None = None) -> None:
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
    store = output if isinstance(output, Store) else Store(output)
    content = store.read(STATS_FILE)
    if content is None:
        root = store.root
        raise UserError(f"{root} has no {STATS_FILE}; create it with `hypergrit explore {root} report=true`")
    try:
        stats: Statistics = json.loads(content)
        if not fits(stats, Statistics):
            raise ValueError("a value has another type")
        make_report(store, stats, config or saved_settings(stats))
    except (*DAMAGE, UndefinedError) as error:
        raise UserError(
            f"{store.url(STATS_FILE)} is damaged ({one_line(error)}); write it again with "
            f"`hypergrit explore {store.root} report=true`"
        ) from error


def saved_settings(stats: Statistics) -> ReportConfig:
    """Return the report settings of a job. Raises UserError for a value of another type."""
    saved = stats["config"].get("report", {})
    names = {item.name for item in dataclasses.fields(ReportConfig)} & saved.keys()
    found: ReportConfig = from_plain(ReportConfig, {name: saved[name] for name in names}, STATS_FILE)
    return found


def make_report(store: Store, stats: Statistics, config: ReportConfig) -> list[Advice]:
    """Write report.html, and return its warnings."""
    places = stats["places"]
    pictures = pick_pictures(store, read_manifests_of(store, places["kept"]), config)
    shards = {shard for reasons in places["dropped"].values() for found in reasons.values() for shard in found}
    manifests = read_manifests_of(store, [index for index in stats["shards"] if index in shards])
    examples = pick_examples(store, manifests, config.examples)
    for row in (row for rows in examples.values() for row in rows):
        row["detail"] = located(store, row)
    dropped = find_dropped(store, manifests, examples)
    advice = list(find_advice(stats))
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
    parsed = [picture.row for picture in pictures if 2 <= len(picture.row["tokens"] or ()) <= MAX_TOKENS]
    thresholds = stats["provenance"].get("thresholds", {})
    marks = {
        score.histogram: clip_score(least) if score.unit == "cosine" else least
        for score in SCORES
        if (least := thresholds.get(score.setting)) is not None
    }
    charts = (histogram_chart(name, data, marks.get(name)) for name, data in stats["histograms"].items())
    script = (TEMPLATES / "report.js").read_text("utf-8")
    return render_page(
        TEMPLATES,
        "template.html",
        {"number": number, "shortened": shortened, "bytes": bytes_text, "duration": duration_text},
        stats=stats,
        stats_hash=stamp_of(stats_text(stats).encode()),
        style=Markup((TEMPLATES / "style.css").read_text("utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        head=describe_run(stats),
        trainable=trainable(stats),
        understood=list(input_lines(stats["input"])) if "input" in stats else [],
        advice=advice,
        explorer=f"hypergrit explore {shlex.quote(output)}",
        funnel=list(funnel(stats, examples, dropped)),
        cards=[make_card(picture) for picture in pictures],
        trees=[(row["key"], row["caption"], draw_tree(row, i)) for i, row in enumerate(parsed[: config.trees])],
        charts=[chart for chart in charts if chart is not None],
        truth=list(truth_rows(stats.get("truth", {}), "")),
        truth_columns=TRUTH_COLUMNS,
        meanings={**PHRASE_REMOVALS, **GIVEN_REMOVALS, **BOX_REMOVALS},
        config_text=dump_yaml(stats["config"]),
        versions=list(flatten(dict(stats["provenance"])).items()),
    )


def funnel(
    stats: Statistics, examples: Mapping[tuple[str, str], list[Row]], dropped: Mapping[str, Thumbnail]
) -> Iterator[dict[str, Any]]:
    """Yield, for each stage, the rows that entered and left it and its drop reasons, the most frequent first.

    Stages that the job did not have are left out. An output of `rewrite` does not name them: it has all that can drop.
    """
    known = all_reasons(stats["provenance"], stats["rows"]["dropped"])
    ran = stats["stages"] or {name for name, reasons in known.items() if reasons.keys() > {INTERNAL_ERROR}}
    shown = {*ran, *stats["rows"]["dropped"]}

    def describe(stage: str, reason: str, n: int) -> dict[str, Any]:
        rows = examples.get((stage, reason), [])
        pictures = (Picture(row, *dropped[row["key"]]) for row in rows if row["key"] in dropped)
        cards = [make_card(picture, is_dropped=True) for picture in pictures]
        about = {"name": reason, "n": n, "meaning": known[stage].get(reason, ""), "hint": HINTS.get(reason)}
        return {**about, "examples": rows, "cards": cards}

    left = stats["rows"]["read"] - stats["rows"].get("unfinished", 0)
    for stage in filter(shown.__contains__, known):
        reasons = sorted(stats["rows"]["dropped"].get(stage, {}).items(), key=lambda item: (-item[1], item[0]))
        entered, left = left, left - sum(n for _, n in reasons)
        found = [describe(stage, reason, n) for reason, n in reasons]
        names = {shown_stage(stage, reason) for reason, _ in reasons}
        name = names.pop() if len(names) == 1 else stage
        yield {"stage": stage, "name": name, "entered": entered, "left": left, "reasons": found}


def truth_rows(truth: Mapping[str, Any], path: str) -> Iterator[dict[str, Any]]:
    """Yield a table row for each part of `truth` that has a precision and a recall, named by its path in the tree."""
    if {"precision", "recall"} <= truth.keys():
        counts = {name: value for name, value in truth.items() if isinstance(value, int)}
        yield {"name": path or "all", "precision": truth["precision"], "recall": truth["recall"], "counts": counts}
    for name, part in truth.items():
        if isinstance(part, Mapping):
            yield from truth_rows(part, f"{path} · {name}" if path else name)


def shortened(text: str | None, most: int = MAX_TEXT) -> str:
    """Truncate a text to `most` characters; return a dash for None or an empty text."""
    if not text:
        return "–"
    return text if len(text) <= most else text[: most - 1] + "…"
