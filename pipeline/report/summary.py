"""The end of a run in a terminal: rows, boxes and phrases, speed by stage."""

from collections.abc import Mapping
from typing import Any


def summary_table(stats: Mapping[str, Any]) -> str:
    """The figures of stats.json that one wants to see at once, as lines of text."""
    lines = [
        *row_lines(stats["rows"]),
        *found_lines("phrases", "grounded", stats["phrases"]),
        *found_lines("boxes", "kept", stats["boxes"]),
        *stage_lines(stats["stages"]),
    ]
    if "wall_seconds" in stats["run"]:
        lines.append(
            f"last run: {stats['run']['shards']} of {len(stats['shards'])} shards in {stats['run']['wall_seconds']:,.1f} s"
        )
    if "truth" in stats:
        known = [f"{name} {stats['truth'][name]:.3f}" for name in ("precision", "recall") if name in stats["truth"]]
        lines += ["", f"boxes against the truth: {', '.join(known)}"]
    return "\n".join(lines)


def row_lines(rows: Mapping[str, Any]) -> list[str]:
    """Rows read, kept and dropped, the latter by stage and reason, the most frequent reasons first."""
    read, kept = rows["read"], rows["kept"]
    lines = [
        f"{'rows read':34}{read:>12,}",
        f"{'rows kept':34}{kept:>12,}{share(kept, read)}",
        f"{'rows dropped':34}{read - kept:>12,}{share(read - kept, read)}",
    ]
    for stage, reasons in rows["dropped"].items():
        often = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        lines += [f"  {stage + ': ' + reason:32}{n:>12,}" for reason, n in often]
    return lines


def found_lines(name: str, kept: str, counts: Mapping[str, Any]) -> list[str]:
    """Phrases or boxes found, removed by reason, and left; `kept` is the word for the latter."""
    return [
        "",
        f"{name + ' found':34}{counts['found']:>12,}",
        *(f"  {'removed: ' + reason:32}{n:>12,}" for reason, n in counts["removed"].items()),
        f"{name + ' ' + kept:34}{counts[kept]:>12,}{share(counts[kept], counts['found'])}",
    ]


def stage_lines(stages: Mapping[str, Any]) -> list[str]:
    """What each stage took; nothing where no timings are there."""
    if not stages:
        return []
    return [
        "",
        f"{'stage':12}{'rows in':>12}{'seconds':>12}{'rows/s':>12}",
        *(
            f"{stage:12}{timing['rows']:>12,.0f}{timing['seconds']:>12,.2f}{timing['rows_per_second']:>12,.1f}"
            for stage, timing in stages.items()
        ),
    ]


def share(part: int, whole: int) -> str:
    return f"  {part / whole:6.1%}" if whole else ""
