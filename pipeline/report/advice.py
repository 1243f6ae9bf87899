"""Warnings that a person should act on, found in the statistics and the pictures of a report."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from hypergrit_common.images import STORED_IMAGE_LIMITS, decode
from hypergrit_common.text import counted
from pipeline.images import UNLIKE_DRAWINGS, are_unlike_drawings, miniature_models
from pipeline.stages.score.filters import CLIP_SCORE_WEIGHT
from schemas.stats import HistogramJson, Statistics
from schemas.status import INTERNAL_ERROR, REASONS, all_reasons

# Usual shares of dropped rows, and the shares from which a person should look: one table, with its sources.


class Usual(NamedTuple):
    """The usual share of drops among the rows that reach a stage; `reasons` are counted together, () for all.

    `usual` is None if no share is known.
    """

    stage: str
    reasons: tuple[str, ...]
    usual: float | None
    limit: float  # a report warns above it
    source: str


LAION: Final = "LAION-400M with img2dataset: 68 % of the downloads succeed (its issue 400)"
DEMO: Final = "the demo of HyperGRIT 0.6 with the miniature models: 185 rows with a phrase"
LINKS: Final = ("dns_error", "connection_error", "tls_error", "timeout")
NEVER: Final = "0 in a job whose input and settings fit each other"

CHOSEN: Final = frozenset(
    {"not_selected", "taken_down", "in_evaluation_set", "same_url", "same_bytes", "same_picture", "same_meaning"}
)
"""Drop reasons that the user asked for, by a setting or a command."""

KNOWN: Final = (
    Usual("download", (), 0.5, 0.7, "GRIT with img2dataset: 50 to 60 % of the downloads succeed (hycoclip, issue 3)"),
    Usual("download", ("http_error",), None, 0.5, "GRIT: at most 50 % of the downloads fail for any reason"),
    *(Usual("download", (reason,), 0.1, 0.32, f"all failures together in {LAION}") for reason in LINKS),
    Usual("download", ("undecodable", "not_an_image"), 0.1, 0.32, f"all failures together in {LAION}"),
    Usual("download", ("too_small",), 0.1, 0.32, f"all failures together in {LAION}"),
    Usual("read", ("bad_row", "missing_url"), 0.0, 0.02, NEVER),
    Usual("read", ("image_refused", "image_not_found"), 0.0, 0.02, NEVER),
    Usual("download", ("private_address", "invalid_url"), 0.0, 0.02, NEVER),
    Usual("parse", ("wrong_language",), 0.03, 0.3, "LAION: 1.6 to 3 % German or French captions in English subsets"),
    Usual("parse", ("no_phrase",), 0.02, 0.25, "the demo of HyperGRIT 0.6: 3 of 188 captions"),
    Usual("ground", ("no_box",), 0.0, 0.3, DEMO),
    Usual("score", ("low_score",), 0.01, 0.4, DEMO),
    Usual("score", ("low_clip_score",), 0.0, 0.4, DEMO),
    Usual("score", ("box_too_small",), 0.0, 0.3, DEMO),
)
OTHERS: Final = tuple(
    Usual(stage, (reason,), None, 0.1, "no share is known; the limit is a choice")
    for stage, reasons in REASONS.items()
    for reason in reasons
    if reason not in {*CHOSEN, INTERNAL_ERROR, *(name for share in KNOWN if share.stage == stage for name in share.reasons)}
)  # fmt: skip
"""All other drop reasons; the report warns about the first internal_error by itself."""
USUAL: Final = (*KNOWN, *OTHERS)


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
    "missing_url": "Name the column of the URLs: read.url_column.",
    "wrong_language": "Add the language to parse.languages.",
    "no_phrase": "Head nouns that were wrongly removed belong into parse.keep.",
    "no_box": "The model may not know these images or words. Compare the pictures with the captions.",
    "private_address": "Add the names of your own hosts to download.allowed_private_hosts.",
    "low_score": "Depends on score.min_score. The scores are stored in arrow/, so another threshold needs no GPU.",
    "low_presence": "Depends on score.min_presence. The presence is stored in arrow/.",
    "low_clip_score": "Depends on score.min_clip_score. The cosines are stored in arrow/, so another threshold "
    "needs no GPU.",
    "box_too_small": "Larger stored images (download.resize.size) keep more boxes above the limit.",
}
"""Drop reason -> what to do about it."""

MIN_ROWS: Final = 20
"""Rows with a problem below which nothing is said about their share."""
MIN_BOXES: Final = 100
HOST_SHARE: Final = 0.8
"""Share of the rows of a host that fail from which it is named, if its share is twice that of the other hosts."""
MOST_HOSTS: Final = 3
CUT_SHARE: Final = 0.25
"""Share of the kept boxes within CUT_BINS bins above a threshold from which it cuts through the bulk of the scores."""
CUT_BINS: Final = 2
PASS_SHARE: Final = 0.05
"""Share of the boxes that pass a filter below which model, threshold and data do not fit each other."""
FILTERS: Final = {
    "box_too_small": "score.min_side_px", "low_score": "score.min_score", "low_presence": "score.min_presence",
    "low_clip_score": "score.min_clip_score",
}  # fmt: skip
"""Reason to remove a box -> the threshold, in the order in which the filters are applied."""
EDGE_SHARE: Final = 0.05
"""Share of values in the last bin of an axis, which also holds all larger ones."""


class Advice(NamedTuple):
    """A warning: what is the case, what to do, and the id of the section of the report that shows it."""

    text: str
    action: str
    anchor: str


def find_advice(stats: Statistics, pictures: Sequence[bytes] = ()) -> list[Advice]:
    """Return the warnings of a report, the gravest first; `pictures` are thumbnails of its rows."""
    return [
        *about_rows(stats),
        *about_models(stats, pictures),
        *about_drops(stats),
        *about_hosts(stats),
        *about_scores(stats),
        *about_axes(stats),
    ]


def about_rows(stats: Statistics) -> Iterator[Advice]:
    """Warn about an empty result, failed shards, damaged files and faulty rows."""
    rows = stats["rows"]
    if unfinished := rows.get("unfinished", 0):
        yield Advice(
            f"{counted(unfinished, 'row')} unfinished, in shards that failed",
            "read the errors in _failed/, and run the same command again",
            "rows",
        )
    if not rows["kept"] and rows["read"] > unfinished:
        yield Advice("no row was kept", most_frequent_drop(stats), "rows")
    if files := stats.get("damaged"):
        yield Advice(
            f"{counted(len(files), 'input file')} damaged, of which only the rows before the damage were read",
            "replace the files, and run the same command again",
            "damaged",
        )
    if n := sum(reasons.get(INTERNAL_ERROR, 0) for reasons in rows["dropped"].values()):
        yield Advice(
            f"{counted(n, 'row')} dropped as internal_error", "report the error in their detail as a bug", "rows"
        )


def most_frequent_drop(stats: Statistics) -> str:
    """Return advice that names the most frequent drop reason."""
    drops = [(n, stage, reason) for stage, reasons in stats["rows"]["dropped"].items() for reason, n in reasons.items()]
    n, stage, reason = max(drops)
    if len(drops) == 1 and reason in HINTS:
        return f"{stage}: {reason} is the reason of all: {HINTS[reason]}"
    return f"the most frequent reason is {stage}: {reason} ({counted(n, 'row')}); see its examples"


def about_models(stats: Statistics, pictures: Sequence[bytes]) -> Iterator[Advice]:
    """Warn about miniature models on images unlike drawings."""
    groups = (stats["config"].get("ground") or {}, stats["config"].get("score") or {})
    names = miniature_models(str(groups[0].get("grounder")), str(groups[1].get("scorer")))
    if names and are_unlike_drawings(decode(picture, STORED_IMAGE_LIMITS) for picture in pictures):
        settings = " and ".join(f"{name}=miniature" for name in names)
        text, _, action = UNLIKE_DRAWINGS.format(settings=settings).partition("; ")
        yield Advice(text, action, "samples")


def about_drops(stats: Statistics) -> Iterator[Advice]:
    """Warn about drop reasons far above their usual shares (`pipeline.report.advice`)."""
    dropped = stats["rows"]["dropped"]
    entered: dict[str, int] = {}
    left = stats["rows"]["read"] - stats["rows"].get("unfinished", 0)
    for stage in all_reasons(stats["provenance"], dropped):
        entered[stage] = left
        left -= sum(dropped.get(stage, {}).values())
    for share in USUAL:
        found, n_rows = dropped.get(share.stage, {}), entered[share.stage]
        n = sum(n for reason, n in found.items() if reason in (share.reasons or found.keys() - CHOSEN))
        if n >= MIN_ROWS and n > share.limit * n_rows:
            name = " and ".join(filter(found.get, share.reasons)) or "all reasons together"
            usual = "in the drawings of the demo" if share.source == DEMO else "usually"
            than = f"more than {share.limit:.0%}" if share.usual is None else f"{usual} about {share.usual:.0%}"
            yield Advice(
                f"{share.stage}: {name}: {n / n_rows:.0%} of {counted(n_rows, 'row')}, {than}",
                "look at the examples of this reason, and at its hint",
                "rows",
            )


def about_hosts(stats: Statistics) -> Iterator[Advice]:
    """Warn about the hosts, at most MOST_HOSTS, of whose rows most fail, and not those of other hosts."""
    rows = stats["rows"]
    n_failed = sum(rows["dropped"].get("download", {}).values())
    n_rows = rows["read"] - rows.get("unfinished", 0) - sum(rows["dropped"].get("read", {}).values())
    counts = [(host, host["rows"], host.get("of", 0)) for host in stats["failures"]]
    failing = [(host, n, total) for host, n, total in counts if n >= MIN_ROWS and n > HOST_SHARE * total
               and 2 * (n_failed - n) * total <= n * (n_rows - total)]  # fmt: skip
    for host, n, total in failing[:MOST_HOSTS]:
        reasons = host["reasons"]
        yield Advice(
            f"host {host['host']}: {n:,} of its {counted(total, 'row')} failed, most often as "
            f"{max(reasons, key=lambda reason: reasons[reason])}",
            "open one of its URLs; lower download.concurrency_per_host if it refuses many requests at once",
            "hosts",
        )


def about_scores(stats: Statistics) -> Iterator[Advice]:
    """Warn about thresholds that cut through the bulk of the scores, or that remove nearly all boxes that reach them."""
    left = stats["boxes"]["found"]
    for reason, key in FILTERS.items():
        n = stats["boxes"]["removed"].get(reason, 0)
        if left >= MIN_BOXES and left - n < PASS_SHARE * left:
            yield Advice(
                f"{key} removes {n:,} of the {counted(left, 'box', 'boxes')} that reach it: model, threshold and data do "
                "not fit",
                "check the models, or calibrate the thresholds: hypergrit quality (docs/quality.md)",
                "distributions",
            )
        left -= n
    thresholds = stats["provenance"].get("thresholds", {})
    clip = thresholds.get("min_clip_score")
    for name, key, value, factor in (
        ("grounding_score", "score.min_score", thresholds.get("min_score"), 1.0),
        ("clip_cosine", "score.min_clip_score", clip, CLIP_SCORE_WEIGHT),
    ):
        data = stats["histograms"].get(name)
        if data is None or value is None or sum(data["n"].values()) < MIN_BOXES:
            continue
        kept = data["n"].get("kept", 0)
        if kept >= MIN_BOXES and (share := share_above(data, value / factor) / kept) > CUT_SHARE:
            yield Advice(
                f"{key}={value:g} cuts through the bulk of the scores: {share:.0%} of the kept boxes are just above it",
                "compare thresholds with hypergrit quality, and try others with hypergrit rewrite (docs/quality.md)",
                "distributions",
            )


def share_above(data: HistogramJson, threshold: float) -> int:
    """Return the number of kept boxes in the first CUT_BINS bins from the threshold on."""
    first = next((i for i, edge in enumerate(data["edges"][1:]) if edge > threshold + 1e-9), 0)
    return sum(data["counts"]["kept"][first : first + CUT_BINS])


def about_axes(stats: Statistics) -> Iterator[Advice]:
    """Warn about values beyond the axis of their histogram."""
    for name in ("boxes_per_image", "caption_length", "image_side"):
        data = stats["histograms"].get(name)
        n = sum(data["n"].values()) if data else 0
        last = sum(counts[-1] for counts in data["counts"].values()) if data else 0
        if data and n >= MIN_BOXES and last > EDGE_SHARE * n:
            yield Advice(
                f"{name}: {last / n:.0%} of the values are at or beyond the end of the axis, {data['edges'][-2]:g}",
                "check that the input is what you expect",
                "distributions",
            )
