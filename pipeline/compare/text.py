"""The comparison as lines of text for the terminal."""

from collections.abc import Iterator, Sequence
from typing import Final

from common.text import message, printable
from pipeline.compare.figures import MISSING, Difference, Figure, Section

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
