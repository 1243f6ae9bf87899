"""The figures of two outputs beside each other."""

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from common.config_help import format_default
from pipeline.compare.contents import Contents
from pipeline.report.charts import STYLES
from pipeline.report.head import count_unfinished
from pipeline.report.html import flatten
from pipeline.resume.record import flatten as flatten_settings
from schemas.stats import Statistics
from schemas.status import BOX_REMOVALS, PHRASE_REMOVALS, REASONS, STAGES

TOP: Final = 20
"""Texts and hosts in a table of differences."""
MISSING: Final = "–"

Both = tuple[Statistics, Statistics]
"""The statistics of A and B."""


@dataclass(frozen=True)
class Figure:
    """A figure of both outputs; `whole` is what its share refers to. None: one output does not have it."""

    name: str
    a: float | None
    b: float | None
    whole_a: float = 0.0
    whole_b: float = 0.0
    note: str = ""

    @property
    def share_a(self) -> float | None:
        """The share in A."""
        return share(self.a, self.whole_a)

    @property
    def share_b(self) -> float | None:
        """The share in B."""
        return share(self.b, self.whole_b)

    @property
    def change(self) -> float | None:
        """The difference of the shares, or else of the figures, B - A; None if one of them is missing."""
        a, b = (self.share_a, self.share_b) if self.has_share else (self.a, self.b)
        return None if a is None or b is None else b - a

    @property
    def has_share(self) -> bool:
        """True for a count of some whole."""
        return bool(self.whole_a or self.whole_b)


@dataclass(frozen=True)
class Section:
    """A table of figures."""

    title: str
    note: str
    figures: list[Figure]


@dataclass(frozen=True)
class Difference:
    """A setting or version that differs."""

    name: str
    a: str
    b: str


def share(part: float | None, whole: float) -> float | None:
    """Return a share; None without a whole."""
    return part / whole if part is not None and whole else None


def figure(name: str, values: Sequence[float | None], wholes: Sequence[float] = (0.0, 0.0), note: str = "") -> Figure:
    """Return a figure of A and B with the wholes that its shares refer to."""
    (a, b), (whole_a, whole_b) = values, wholes
    return Figure(name, a, b, whole_a, whole_b, note)


def sections(a: Contents, b: Contents) -> list[Section]:
    """Return the tables of two outputs, without empty ones."""
    both = (a.stats, b.stats)
    n_read = [stats["rows"]["read"] for stats in both]
    n_grounded = [stats["phrases"]["grounded"] for stats in both]
    found = [
        Section("Rows", "Shares of the rows read.", list(rows(both))),
        Section("Dropped rows by stage and reason", "Shares of the rows read.", list(drops(both))),
        Section("Phrases", "Shares of the noun chunks found.", list(phrases(both))),
        Section("Boxes", "Shares of the boxes found.", list(boxes(both))),
        Section("Means", "Of the distributions.", list(means(both))),
        Section("Speed", "Rows per second of one worker, by stage.", list(speeds(both))),
        Section(
            "Phrases that differ most",
            "Grounded phrases by the difference of their shares of all grounded phrases.",
            most_different(a.totals.phrases.upper_bounds(), b.totals.phrases.upper_bounds(), n_grounded),
        ),
        Section(
            "Head nouns that differ most",
            "Of grounded phrases, in the same way.",
            most_different(a.totals.heads.upper_bounds(), b.totals.heads.upper_bounds(), n_grounded),
        ),
        Section(
            "Hosts that differ most",
            "Rows that download dropped, by host, as shares of the rows read.",
            most_different(hosts(a), hosts(b), n_read),
        ),
    ]
    return [section for section in found if section.figures]


def rows(both: Both) -> Iterator[Figure]:
    """Yield the shards, finished or not, the rows read, kept, dropped and unfinished, and the repeated images."""
    counts = [stats["rows"] for stats in both]
    n_read = [count["read"] for count in counts]
    unfinished = [count.get("unfinished", 0) for count in counts]
    yield figure("shards", [len(stats["shards"]) for stats in both])
    if any(lacking := [count_unfinished(stats) for stats in both]):
        yield figure("shards not finished", lacking)
    yield figure("read", n_read)
    yield figure("kept", [count["kept"] for count in counts], n_read)
    dropped = [count["read"] - count["kept"] - n for count, n in zip(counts, unfinished, strict=True)]
    yield figure("dropped", dropped, n_read)
    if any(unfinished):
        yield figure("unfinished, in failed shards", unfinished, n_read)
    retried = [count.get("retried", 0) for count in counts]
    if any(retried):
        yield figure("tried again", retried, n_read)
        yield figure("kept when tried again", [count.get("recovered", 0) for count in counts], n_read)
    images = [stats["duplicates"] for stats in both]
    if any(found["images"] for found in images):
        repeated = [found["repeated"] for found in images]
        yield figure("repeated images", repeated, [found["images"] for found in images], "share of the images")


def drops(both: Both) -> Iterator[Figure]:
    """Yield the drop reasons that occur, in the order of the stages, the most frequent first."""
    n_read = [stats["rows"]["read"] for stats in both]
    for stage in STAGES:
        counts = [stats["rows"]["dropped"].get(stage, {}) for stats in both]
        reasons = counts[0].keys() | counts[1].keys()
        figures = [
            figure(f"{stage}: {name}", [count.get(name, 0) for count in counts], n_read, REASONS[stage].get(name, ""))
            for name in reasons
        ]
        yield from sorted(figures, key=lambda f: (-max(f.share_a or 0, f.share_b or 0), f.name))


def phrases(both: Both) -> Iterator[Figure]:
    """Yield the noun chunks found, removed and grounded."""
    counts = [stats["phrases"] for stats in both]
    found = [count["found"] for count in counts]
    yield figure("found", found)
    yield from removals([count["removed"] for count in counts], PHRASE_REMOVALS, found)
    yield figure("passed to the grounder", [count["given"] for count in counts], found)
    yield figure("with a kept box", [count["grounded"] for count in counts], found)


def boxes(both: Both) -> Iterator[Figure]:
    """Yield the boxes found, removed and kept, and those of a kept row."""
    counts = [stats["boxes"] for stats in both]
    found = [count["found"] for count in counts]
    yield figure("found", found)
    yield from removals([count["removed"] for count in counts], BOX_REMOVALS, found)
    yield figure("kept", [count["kept"] for count in counts], found)
    yield figure("kept per kept row", [share(stats["boxes"]["kept"], stats["rows"]["kept"]) for stats in both])


def removals(counts: Sequence[Mapping[str, int]], reasons: Mapping[str, str], found: Sequence[int]) -> Iterator[Figure]:
    """Yield the removals of phrases or boxes that occur."""
    for reason, meaning in reasons.items():
        values = [count.get(reason, 0) for count in counts]
        if any(values):
            yield figure(f"removed: {reason}", values, found, meaning)


def means(both: Both) -> Iterator[Figure]:
    """Yield the means of the histograms."""
    for name, style in STYLES.items():
        found = [stats["histograms"].get(name) for stats in both]
        series = dict.fromkeys(series for histogram in found if histogram for series in histogram["counts"])
        for one in series:
            values = [histogram["mean"].get(one) if histogram else None for histogram in found]
            if any(value is not None for value in values):
                yield figure(f"{style.title}, {one}" if len(series) > 1 else style.title, values)


def speeds(both: Both) -> Iterator[Figure]:
    """Yield the speed of each stage."""
    for stage in STAGES:
        found = [stats["stages"].get(stage) for stats in both]
        if any(found):
            yield figure(stage, [speed["rows_per_second"] if speed else None for speed in found])


def hosts(contents: Contents) -> Counter[str]:
    """Count the rows that `download` dropped by host."""
    counts = Counter[str]()
    for name, n in contents.totals.hosts.upper_bounds().items():
        counts[name.partition(" ")[2]] += n
    return counts


def most_different(a: Counter[str], b: Counter[str], wholes: Sequence[float] | None = None) -> list[Figure]:
    """Return the TOP texts with the largest difference of shares; those with equal shares are left out."""
    wholes = wholes or (a.total(), b.total())
    if not all(wholes):
        return []
    figures = (figure(text, [a[text], b[text]], wholes) for text in a.keys() | b.keys())
    ranked = heapq.nsmallest(TOP, figures, key=lambda f: (-abs(f.change or 0.0), f.name))
    return [found for found in ranked if found.change]


def differences(both: Both) -> tuple[list[Difference], list[Difference]]:
    """Return the settings that differ, and the versions, models and thresholds.

    The hash of the settings and the path of the output tell nothing more.
    """
    settings = [flatten_settings(dict(stats["config"])) for stats in both]
    versions = [dict(flatten(stats["provenance"], "")) for stats in both]
    return different(settings, "output"), different(versions, "config_hash")


def different(both: Sequence[Mapping[str, Any]], known: str) -> list[Difference]:
    """Return the values that differ by name, without that of `known`."""
    names = sorted((both[0].keys() | both[1].keys()) - {known})
    found = (Difference(name, *(shown(values, name) for values in both)) for name in names)
    return [difference for difference in found if difference.a != difference.b]


def shown(values: Mapping[str, Any], name: str) -> str:
    """Format a value as it is written on the command line; a dash if it is missing."""
    return format_default(values[name]) if name in values else MISSING
