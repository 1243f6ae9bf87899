"""The end of a run in a terminal: rows, boxes and phrases, speed by stage."""

from collections.abc import Mapping
from typing import Any


def summary_table(stats: Mapping[str, Any]) -> str:
    """The figures of stats.json that one wants to see at once, as lines of text."""
    rows, boxes, phrases = stats["rows"], stats["boxes"], stats["phrases"]
    lines = [
        f"{'rows read':34}{rows['read']:>12,}",
        f"{'rows kept':34}{rows['kept']:>12,}{share(rows['kept'], rows['read'])}",
    ]
    lines.append(
        f"{'rows dropped':34}{rows['read'] - rows['kept']:>12,}{share(rows['read'] - rows['kept'], rows['read'])}"
    )
    for stage, reasons in rows["dropped"].items():
        lines += [
            f"  {stage + ': ' + reason:32}{n:>12,}"
            for reason, n in sorted(reasons.items(), key=lambda r: (-r[1], r[0]))
        ]
    for name, counts, kept in (("phrases", phrases, "grounded"), ("boxes", boxes, "kept")):
        lines += ["", f"{name + ' found':34}{counts['found']:>12,}"]
        lines += [f"  {'removed: ' + reason:32}{n:>12,}" for reason, n in counts["removed"].items()]
        lines.append(f"{name + ' ' + kept:34}{counts[kept]:>12,}{share(counts[kept], counts['found'])}")
    if stats["stages"]:
        lines += ["", f"{'stage':12}{'rows in':>12}{'seconds':>12}{'rows/s':>12}"]
        lines += [
            f"{stage:12}{timing['rows']:>12,.0f}{timing['seconds']:>12,.2f}{timing['rows_per_second']:>12,.1f}"
            for stage, timing in stats["stages"].items()
        ]
    if "wall_seconds" in stats["run"]:
        lines.append(
            f"last run: {stats['run']['shards']} of {len(stats['shards'])} shards in {stats['run']['wall_seconds']:,.1f} s"
        )
    if "truth" in stats:
        known = [f"{name} {stats['truth'][name]:.3f}" for name in ("precision", "recall") if name in stats["truth"]]
        lines += ["", f"boxes against the truth: {', '.join(known)}"]
    return "\n".join(lines)


def share(part: int, whole: int) -> str:
    return f"  {part / whole:6.1%}" if whole else ""
