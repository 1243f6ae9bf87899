"""Warnings that a person should act on, found in the statistics and the pictures of a report."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from common.images import STORED_IMAGE_LIMITS, decode
from common.text import counted
from pipeline.drawn import UNLIKE_DRAWINGS, are_unlike_drawings, miniature_models
from pipeline.report.usual import CHOSEN, USUAL
from pipeline.score.config import CLIP_SCORE_WEIGHT
from schemas.stats import HistogramJson, Statistics
from schemas.status import INTERNAL_ERROR, STAGES

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
    """Warn about drop reasons far above their usual shares (`pipeline.report.usual`)."""
    dropped = stats["rows"]["dropped"]
    entered: dict[str, int] = {}
    left = stats["rows"]["read"] - stats["rows"].get("unfinished", 0)
    for stage in STAGES:
        entered[stage] = left
        left -= sum(dropped.get(stage, {}).values())
    for share in USUAL:
        found, n_rows = dropped.get(share.stage, {}), entered[share.stage]
        n = sum(n for reason, n in found.items() if reason in (share.reasons or found.keys() - CHOSEN))
        if n >= MIN_ROWS and n > share.limit * n_rows:
            name = " and ".join(filter(found.get, share.reasons)) or "all reasons together"
            than = f"more than {share.limit:.0%}" if share.usual is None else f"usually about {share.usual:.0%}"
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
    """Warn about thresholds that cut through the bulk of the scores, or that hardly any box passes."""
    thresholds = stats["provenance"].get("thresholds", {})
    clip = thresholds.get("min_clip_score")
    for name, key, value, factor in (
        ("grounding_score", "score.min_score", thresholds.get("min_score"), 1.0),
        ("clip_cosine", "score.min_clip_score", clip, CLIP_SCORE_WEIGHT),
    ):
        data = stats["histograms"].get(name)
        if data is None or value is None or sum(data["n"].values()) < MIN_BOXES:
            continue
        kept, n = data["n"].get("kept", 0), sum(data["n"].values())
        if kept < PASS_SHARE * n:
            yield Advice(
                f"{key}={value:g} keeps {kept:,} of {counted(n, 'box', 'boxes')}: model, threshold and data do not fit",
                "check the models, or calibrate the thresholds: python -m pipeline.calibrate (docs/quality.md)",
                "distributions",
            )
        elif kept >= MIN_BOXES and (share := share_above(data, value / factor) / kept) > CUT_SHARE:
            yield Advice(
                f"{key}={value:g} cuts through the bulk of the scores: {share:.0%} of the kept boxes are just above it",
                "compare thresholds with pipeline.calibrate, and try others with pipeline.refilter (docs/quality.md)",
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
