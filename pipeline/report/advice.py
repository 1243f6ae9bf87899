"""Warnings that a person should act on: eight cases, found in the statistics of a report."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from hypergrit_common.text import counted
from pipeline.stages.score.filters import CLIP_SCORE_WEIGHT
from schemas.scores import BOX_SCORES, SCORES
from schemas.stats import Statistics
from schemas.status import GIVEN_REMOVALS, PASSING, ROW_DROPPED_EARLY, shown_stage

HINTS: Final = {
    "dns_error": "If this is frequent: run a caching DNS resolver on the workers, or lower download.concurrency.",
    "timeout": "Raise download.timeout_s, or lower download.concurrency_per_host.",
    "connection_error": "The host may be gone. A later run with another output may reach it again.",
    "http_error": "404 and 410: the image no longer exists. 403 and 429: lower download.concurrency_per_host.",
    **dict.fromkeys(
        ("opted_out", "tdm_reserved", "usage_refused", "robots_txt"),
        "The owner does not allow this use of the image. There is nothing to fix.",
    ),
    "undecodable": "Often an error page or half a file. Raise download.timeout_s if many images are truncated.",
    "too_many_bytes": "Raise download.max_bytes.",
    "too_small": "Lower download.min_side_px.",
    "image_refused": "Name the folder of the images in read.image_roots.",
    "image_not_found": "Look at the paths of the images, and at read.image_roots.",
    "bad_row": "The examples name file, line and cause; most causes have a setting, such as read.encoding or read.escape.",
    "missing_url": "Name the column of the pictures (read.image_column) or, if there are none, of the URLs (read.url_column). "
    "In tars, the detail names the files of the sample.",
    "empty_caption": "Name the column of the captions: read.caption_column. Images have theirs in a .txt or .json of the same name.",
    "wrong_language": "Add the language to parse.languages.",
    "no_phrase": "Head nouns that were wrongly removed belong into parse.keep.",
    "no_box": "The model may not know these images or words. Compare the pictures with the captions.",
    "private_address": "Add the names of your own hosts to download.allowed_private_hosts.",
    **{score.reason: f"Depends on score.{score.setting}. {score.hint}" for score in SCORES if score.hint},
    "box_too_small": "Larger stored images (download.resize.size) keep more boxes above the limit.",
    "not_selected": "They do not meet the condition read.where.",
    "taken_down": "The list of read.takedown, or of hypergrit takedown, names them.",
    "in_evaluation_set": "The sets of against= have these images.",
    **dict.fromkeys(("same_url", "same_bytes", "same_picture"), "Other rows have the same: dedupe="),
}
"""Drop reason -> what to do about it."""

CHOSEN: Final = frozenset({"not_selected", "taken_down", "in_evaluation_set", "same_url", "same_bytes", "same_picture"})
"""Drop reasons that the user asked for, by a setting or a command."""
FILTERS: Final = {
    "box_too_small": "score.min_side_px", **{score.reason: f"score.{score.setting}" for score in BOX_SCORES}
}  # fmt: skip
"""Reason to remove a box -> the threshold, in the order in which the filters are applied."""
MIN_ROWS: Final = 20
"""Rows or boxes below which nothing is said about their share."""
MOST: Final = 0.5
"""Share of the rows from which a reason takes most of them."""
NEARLY_ALL: Final = 0.95
"""Share of the boxes from which a threshold removes everything."""
FEW_ROWS: Final = 3
SPLIT: Final = 0.01
"""Rows, and share of the rows with given boxes, above which spans inside words are no accident."""
UNLIKE: Final = 0.75
"""Share of the CLIPScore that a box needs with its phrase, below which a picture is unlike its caption: 2 % of 1,544 drawn
scenes are, and half of them with the caption of another scene."""
MANY_UNLIKE: Final = 0.05
"""Share of such pictures from which wrong captions are likely."""
MANY: Final = 0.1
"""Share of the rows from which it is worth running a verb for them."""


class Advice(NamedTuple):
    """A warning: the key of its case, what is the case, what to do, and the id of the section that shows it."""

    key: str
    text: str
    action: str
    anchor: str


def hint(reason: str) -> str:
    """Return what to do about a drop reason."""
    return HINTS.get(reason, "look at the examples of this reason").rstrip(".")


def find_advice(stats: Statistics) -> Iterator[Advice]:
    """Yield the warnings of a report, the gravest first."""
    rows, boxes = stats["rows"], stats["boxes"]
    n_rows = rows["read"] - rows.get("unfinished", 0)
    dropped = ((stage, reason, n) for stage, reasons in rows["dropped"].items() for reason, n in reasons.items())
    drops = [(n, shown_stage(stage, reason), reason) for stage, reason, n in dropped]
    unasked = max(drops, default=(0, "", ""), key=lambda drop: (drop[2] not in CHOSEN, drop))
    n, stage, reason = unasked
    if drops and not rows["kept"]:
        causes = [
            f"{by} dropped {m:,} of them as {name}: {hint(name)}"
            for m, by, name in dict.fromkeys([max(drops), unasked])
        ]
        yield Advice("nothing_kept", "no row was kept", "; ".join(causes), "rows")
    elif n >= MIN_ROWS and n > MOST * n_rows and reason not in CHOSEN:
        yield Advice("one_reason", f"{stage} dropped {n / n_rows:.0%} of all rows as {reason}", hint(reason), "rows")
    if nulls := stats.get("null_captions"):
        texts = ", ".join(f"{text} ({n:,})" for text, n in nulls.items())
        text = f"{sum(nulls.values()):,} of the captions of the input mean a missing value, or a list: {texts}"
        action = "write them as empty fields, or as lists of JSON Lines or parquet, or leave them out: read.where"
        yield Advice("null_captions", text, action, "rows")
    lost = {name: n for name, n in boxes["removed"].items() if name in GIVEN_REMOVALS}
    left = boxes["found"] - sum(lost.values())
    for name, threshold in FILTERS.items():
        removed = boxes["removed"].get(name, 0)
        if left >= MIN_ROWS and removed >= NEARLY_ALL * left:
            text = f"{threshold} removes {removed:,} of the {counted(left, 'box', 'boxes')} that reach it"
            yield Advice("threshold", text, "calibrate it: hypergrit quality (docs/quality.md)", "distributions")
        left -= removed
    thresholds = stats["provenance"].get("thresholds", {})
    if (pairs := stats["histograms"].get("clip_similarity")) and thresholds.get("min_image_similarity") is None:
        cosine = UNLIKE * thresholds.get("min_clip_score", 0.0) / CLIP_SCORE_WEIGHT
        least = round(50 * cosine) / 50  # an edge of the bins
        ends, counts = pairs["edges"][1:], pairs["counts"]["images"]
        n = sum(count for end, count in zip(ends, counts, strict=True) if end < least + 1e-9)
        if n and n >= MANY_UNLIKE * sum(counts):
            text = f"{n:,} of {counted(sum(counts), 'picture')} are unlike their caption: the cosine is below {least:g}"
            action = f"look at them; `hypergrit rewrite source=OUT output=NEW score.min_image_similarity={least:g}` drops them"
            yield Advice("unlike_caption", text, action, "distributions")
    given = boxes.get("given", {"boxes": 0, "rows": 0, "split": 0})
    units = "GRIT's spans count characters (code points) of the caption, not bytes or UTF-16 units (docs/inputs.md)"
    if faults := {name: n for name, n in lost.items() if name not in ("absent", ROW_DROPPED_EARLY)}:
        n, reasons = sum(faults.values()), ", ".join(f"{name} {n:,}" for name, n in faults.items())
        text = f"{n:,} of the {max(given['boxes'], n):,} given boxes have no phrase in their caption: {reasons}"
        action = units if faults.keys() & {"outside_caption", "other_units"} else "look at their spans (docs/inputs.md)"
        yield Advice("given_boxes", text, action, "phrases")
    if given["split"] > FEW_ROWS and given["split"] >= SPLIT * given["rows"]:
        text = f"given spans begin or end inside words in {given['split']:,} of {counted(given['rows'], 'row')}"
        yield Advice("given_spans", text, units, "phrases")
    lower = "lower thresholds need another job; with score.keep_all=true, `hypergrit rewrite` can lower them after it"
    if stats["config"].get("score", {}).get("keep_all"):
        lower = "`hypergrit rewrite source=OUT output=NEW` with lower thresholds needs no GPU"
    saved = {
        "download": (
            PASSING,
            "a host did not answer",
            "`hypergrit run retry=true output=OUT` asks again for them alone",
        ),
        "score": (FILTERS, "no box passed", lower),
    }
    for place, (names, why, action) in saved.items():
        n = sum(count for count, stage, reason in drops if stage == place and reason in names)
        if n >= MIN_ROWS and n > MANY * n_rows:
            yield Advice("cheaper_verb", f"{n / n_rows:.0%} of the rows are lost because {why}", action, "rows")
