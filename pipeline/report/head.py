"""The head of the report: when a job ran, how long, how fast, and what it wrote."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from common.text import duration_text
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
    planned = stats.get("planned", 0)
    return f"{planned - left:,} of {planned:,} shards finished" if (left := count_unfinished(stats)) else ""


def count_unfinished(stats: Statistics) -> int:
    """Return the number of planned shards that are not finished; 0 if the plan is not known."""
    return max(stats.get("planned", 0) - sum(not attempt_of(index) for index in stats["shards"]), 0)


def finish_time(started: str, seconds: float) -> str:
    """Return the end of a run as date and time in UTC; "" if its start is not known."""
    try:
        end = datetime.fromisoformat(started) + timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        return ""
    return end.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


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
