"""The head of the report: when a job ran, how long, how fast, and what it wrote."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from schemas.attempts import attempt_of
from schemas.stats import Statistics


class Head(NamedTuple):
    """Facts about the last run; empty texts for what is not known."""

    finished: str
    duration: str
    rate: str
    command: str
    n_bytes: int
    progress: str


def describe_run(stats: Statistics) -> Head:
    """Return the facts about the last run that wrote shards."""
    run = stats["run"]
    seconds = run.get("wall_seconds", 0.0)
    rate = run["rows"] / seconds if seconds and "rows" in run else 0.0
    return Head(
        finished=finish_time(run.get("started", ""), seconds),
        duration=duration_text(seconds) if seconds else "",
        rate=f"{rate:,.1f} rows/s" if rate else "",
        command=run.get("command", ""),
        n_bytes=sum(stats.get("bytes", {}).values()),
        progress=progress_text(stats),
    )


def progress_text(stats: Statistics) -> str:
    """Return how many shards are finished, for a job that is running or was stopped; "" if all are, or nobody knows."""
    n, planned = sum(not attempt_of(index) for index in stats["shards"]), stats.get("planned", 0)
    return f"{n:,} of {planned:,} shards finished" if n < planned else ""


def finish_time(started: str, seconds: float) -> str:
    """Return the end of a run as date and time in UTC; "" if its start is not known."""
    try:
        end = datetime.fromisoformat(started) + timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        return ""
    return end.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def duration_text(seconds: float) -> str:
    """Format a duration with its two largest units.

    >>> duration_text(12.34), duration_text(187), duration_text(90000)
    ('12.3 s', '3 min 7 s', '25 h 0 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def bytes_text(n: float) -> str:
    """Format a number of bytes with a decimal unit.

    >>> bytes_text(999), bytes_text(48_210_000)
    ('999 B', '48.2 MB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000:
            return f"{n:.0f} B" if unit == "B" else f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:,.3g} PB"
