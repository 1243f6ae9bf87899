"""The figures of two outputs beside each other."""

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from hypergrit_common.config import flatten
from hypergrit_common.config_help import format_default, print_text
from hypergrit_common.disk import write_text
from hypergrit_common.errors import UserError
from hypergrit_common.html import render_page
from hypergrit_common.text import message, printable
from pipeline.output.store import Store
from pipeline.report import html
from pipeline.report.charts import (
    BASE,
    STYLES,
    TOP,
    Axes,
    Style,
    ToX,
    number,
    on_axis,
    round_step,
    trim,
    x_scale,
    x_ticks,
)
from pipeline.report.stats import collect, count_unfinished, make_stats
from pipeline.summary.totals import Totals
from schemas.stats import HistogramJson, Statistics
from schemas.status import BOX_REMOVALS, PHRASE_REMOVALS, ROW_DROPPED, all_reasons

# The statistics of an output, from the summaries of its finished shards; nothing is written.


@dataclass(frozen=True)
class Contents:
    """An output, its statistics, and the totals that they come from, with the counts of all texts that are kept."""

    output: str
    stats: Statistics
    totals: Totals


def read_contents(output: str) -> Contents:
    """Count the shards of an output, with a progress bar on a terminal. Raises UserError without a finished shard."""
    store = Store(output)
    try:
        part = collect(store)
        stats = make_stats(store, part)
    except ValueError as error:
        raise UserError(f"{output}: {error}; check it with `hypergrit verify {output}`") from error
    return Contents(output, stats, part.summary.totals)


N_TEXTS: Final = 20
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
    images = [stats["duplicates"] for stats in both]
    if any(found["images"] for found in images):
        repeated = [found["repeated"] for found in images]
        yield figure("repeated images", repeated, [found["images"] for found in images], "share of the images")


def stages_of(both: Both) -> dict[str, Mapping[str, str]]:
    """Return the drop reasons of the stages of two outputs, with their meanings; stages of the user may differ."""
    first, second = (all_reasons(stats["provenance"], stats["rows"]["dropped"]) for stats in both)
    return {**first, **second}


def drops(both: Both) -> Iterator[Figure]:
    """Yield the drop reasons that occur, in the order of the stages, the most frequent first."""
    n_read = [stats["rows"]["read"] for stats in both]
    for stage, meanings in stages_of(both).items():
        counts = [stats["rows"]["dropped"].get(stage, {}) for stats in both]
        reasons = counts[0].keys() | counts[1].keys()
        figures = [
            figure(f"{stage}: {name}", [count.get(name, 0) for count in counts], n_read, meanings.get(name, ""))
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
    meanings = {**BOX_REMOVALS, ROW_DROPPED: "no filter of boxes removed the box, but its row was dropped"}
    yield from removals([count["removed"] for count in counts], meanings, found)
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
            stored = [histogram["mean"].get(one) if histogram else None for histogram in found]
            values = [None if mean is None else mean * style.factor for mean in stored]
            if any(value is not None for value in values):
                yield figure(f"{style.title}, {one}" if len(series) > 1 else style.title, values)


def speeds(both: Both) -> Iterator[Figure]:
    """Yield the speed of each stage."""
    for stage in stages_of(both):
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
    ranked = heapq.nsmallest(N_TEXTS, figures, key=lambda f: (-abs(f.change or 0.0), f.name))
    return [found for found in ranked if found.change]


def differences(both: Both) -> tuple[list[Difference], list[Difference]]:
    """Return the settings that differ, and the versions, models and thresholds.

    The hash of the settings and the path of the output tell nothing more.
    """
    settings = [flatten(dict(stats["config"])) for stats in both]
    versions = [flatten(dict(stats["provenance"])) for stats in both]
    return different(settings, "output"), different(versions, "config_hash")


def different(both: Sequence[Mapping[str, Any]], known: str) -> list[Difference]:
    """Return the values that differ by name, without that of `known`."""
    names = sorted((both[0].keys() | both[1].keys()) - {known})
    found = (Difference(name, *(shown(values, name) for values in both)) for name in names)
    return [difference for difference in found if difference.a != difference.b]


def shown(values: Mapping[str, Any], name: str) -> str:
    """Format a value as it is written on the command line; a dash if it is missing."""
    return format_default(values[name]) if name in values else MISSING


# The histograms of two outputs, laid over each other as shares, so that outputs of different sizes can be compared.


@dataclass(frozen=True, kw_only=True)
class Overlay(Axes):
    """Two outlines, and for each bin (x, width, tooltip)."""

    outlines: tuple[str, str]
    bins: list[tuple[float, float, str]]


def overlays(a: Statistics, b: Statistics) -> Iterator[Overlay]:
    """Yield a chart for each series of the histograms that has values in both outputs."""
    for name, style in STYLES.items():
        ours, theirs = a["histograms"].get(name), b["histograms"].get(name)
        if not ours or not theirs or ours["edges"] != theirs["edges"]:
            continue
        for series in ours["counts"]:
            if ours["n"].get(series) and theirs["n"].get(series):
                yield overlay(name, series, style, on_axis(ours, style), on_axis(theirs, style))


def overlay(name: str, series: str, style: Style, a: HistogramJson, b: HistogramJson) -> Overlay:
    """Return the chart of one series, which has values in both."""
    edges, counts = trim(a["edges"], [a["counts"][series], b["counts"][series]], style)
    shares = [[n / sum(values) for n in values] for values in counts]
    to_x, ticks = x_scale(edges, style), share_ticks(max(max(values) for values in shares))

    def to_y(value: float) -> float:
        return round(BASE - value / ticks[-1] * (BASE - TOP), 2)

    facts = (f"{label}: n = {h['n'][series]:,}, mean {number(h['mean'][series])}" for label, h in (("A", a), ("B", b)))
    return Overlay(
        name=f"{name}-{series}",
        title=f"{style.title}: {series}" if len(a["counts"]) > 1 else style.title,
        axis=style.axis,
        summary="; ".join(facts),
        outlines=(outline(edges, shares[0], to_x, to_y), outline(edges, shares[1], to_x, to_y)),
        bins=[
            (
                to_x(left),
                round(to_x(right) - to_x(left), 2),
                f"{number(left) if style.is_integer else f'{number(left)} to {number(right)}'}: A {x:.1%}, B {y:.1%}",
            )
            for (left, right), x, y in zip(pairwise(edges), *shares, strict=True)
        ],
        x_ticks=x_ticks(edges, style, to_x),
        y_ticks=[(to_y(tick), f"{100 * tick:g} %") for tick in ticks],
    )


def outline(edges: Sequence[float], shares: Sequence[float], to_x: ToX, to_y: ToX) -> str:
    """Return the path of the steps of a histogram."""
    steps = (f"V{to_y(value)}H{to_x(right)}" for value, right in zip(shares, edges[1:], strict=True))
    return f"M{to_x(edges[0])} {BASE}{''.join(steps)}V{BASE}"


def share_ticks(highest: float) -> list[float]:
    """Return two to six shares in equal steps, from 0 to at least `highest`."""
    step = round_step(highest / 4)
    return [round(i * step, 6) for i in range(math.ceil(highest / step - 1e-9) + 1)]


# The comparison as lines of text for the terminal.

NAME_CHARS: Final = 48


def comparison_lines(
    names: tuple[str, str], sections: Sequence[Section], settings: Sequence[Difference], versions: Sequence[Difference]
) -> Iterator[str]:
    """Yield the tables, and the settings and versions that differ."""
    yield from (message(f"{label}: {name}") for label, name in zip("AB", names, strict=True))
    for section in sections:
        yield ""
        yield f"{section.title:{NAME_CHARS}}{'A':>12}{'':8}{'B':>12}{'':8}{'B - A':>13}"
        for figure in section.figures:
            yield figure_line(figure)
    for title, found in (("Settings that differ", settings), ("Versions, models and thresholds that differ", versions)):
        yield ""
        yield f"{title}:" if found else f"{title}: none"
        for item in found:
            yield message(f"  {item.name}: {item.a} -> {item.b}")


def figure_line(figure: Figure) -> str:
    """Return one line of a table; long names end in an ellipsis."""
    name = printable(figure.name)  # a phrase may hold a line break
    name = name if len(name) < NAME_CHARS - 2 else f"{name[: NAME_CHARS - 4]}…"
    values = [amount(figure.a), percent(figure.share_a), amount(figure.b), percent(figure.share_b)]
    return f"  {name:{NAME_CHARS - 2}}{values[0]:>12}{values[1]:>8}{values[2]:>12}{values[3]:>8}{change(figure):>13}"


def amount(value: float | None) -> str:
    """Format a count, or a number with up to three digits after the point."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}" if abs(value) < 100 else f"{value:,.1f}"


def percent(value: float | None) -> str:
    """Format a share; empty for none."""
    return "" if value is None else f"{value:.1%}"


def change(figure: Figure) -> str:
    """Format a difference: in percentage points for shares."""
    if figure.change is None:
        return MISSING
    if figure.has_share:
        return f"{100 * figure.change:+.2f} pts" if figure.change else "0"
    sign = "+" if figure.change > 0 else ""
    return f"{sign}{amount(round(figure.change, 4))}"


# The comparison as a web page: one file without scripts, which a browser opens from disk without network access.

TEMPLATES: Final = Path(__file__).resolve().parent


def render(
    a: Contents,
    b: Contents,
    sections: Sequence[Section],
    settings: Sequence[Difference],
    versions: Sequence[Difference],
) -> str:
    """Return the page as HTML. All texts of the outputs are escaped."""
    return render_page(
        TEMPLATES,
        "compare.html",
        {"amount": amount, "percent": percent, "change": change, "shortened": html.shortened},
        style=Markup(
            (html.TEMPLATES / "style.css").read_text("utf-8") + (TEMPLATES / "compare.css").read_text("utf-8")
        ),
        outputs=(("A", a), ("B", b)),
        sections=sections,
        charts=list(overlays(a.stats, b.stats)),
        settings=settings,
        versions=versions,
    )


def compare(a_output: str, b_output: str, page: Path) -> None:
    """Print what differs between two outputs, and write the page. Raises UserError.

    The figures are counted from the shards, so that an output without a report, or with an old one, is compared as it
    is. Neither output is changed.
    """
    if page.is_dir() or not page.absolute().parent.is_dir():
        raise UserError(f"compare is {page}; give a file in a folder that exists")
    a, b = read_contents(a_output), read_contents(b_output)
    tables, (settings, versions) = sections(a, b), differences((a.stats, b.stats))
    print_text("\n".join(comparison_lines((a.output, b.output), tables, settings, versions)))
    write_text(page, render(a, b, tables, settings, versions))
    print_text(f"page: {page}")
