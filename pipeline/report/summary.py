"""The summary of a run as text for the terminal: rows, phrases, boxes, and the speed of each stage."""

from collections.abc import Mapping

from pipeline.report.head import progress_text
from schemas.manifest import Counts
from schemas.stats import BoxCounts, PhraseCounts, StageSpeed, Statistics


def summary_table(stats: Statistics) -> str:
    """Return the main figures of stats.json as lines of text.

    >>> counts = {"found": 3, "removed": {}, "grounded": 2, "kept": 2}
    >>> rows = {"read": 2, "kept": 1, "dropped": {"download": {"http_error": 1}}}
    >>> stats = {"rows": rows, "phrases": counts, "boxes": counts, "stages": {}, "run": {}, "shards": [0]}
    >>> print(summary_table(stats))
    rows read                                    2
    rows kept                                    1   50.0%
    rows dropped                                 1   50.0%
      download: http_error                       1
    <BLANKLINE>
    phrases found                                3
    phrases grounded                             2   66.7%
    <BLANKLINE>
    boxes found                                  3
    boxes kept                                   2   66.7%
    """
    progress = progress_text(stats)
    lines = [
        *([progress, ""] if progress else []),
        *row_lines(stats["rows"]),
        *phrase_lines(stats["phrases"]),
        *box_lines(stats["boxes"]),
        *stage_lines(stats["stages"]),
    ]
    if "wall_seconds" in stats["run"]:
        run = stats["run"]
        lines.append(f"last run: {run['shards']} of {len(stats['shards'])} shards in {run['wall_seconds']:,.1f} s")
    lines += [f"damaged input file, {file['rows']:,} rows read: {file['path']}" for file in stats.get("damaged", ())]
    if "truth" in stats:
        known = [f"{name} {stats['truth'][name]:.3f}" for name in ("precision", "recall") if name in stats["truth"]]
        lines += ["", f"boxes compared with the ground truth: {', '.join(known)}"]
    return "\n".join(lines)


def row_lines(rows: Counts) -> list[str]:
    """Return the rows read, kept, unfinished and dropped; the most frequent drop reasons of each stage come first."""
    read, kept, unfinished = rows["read"], rows["kept"], rows.get("unfinished", 0)
    dropped = read - kept - unfinished
    lines = [f"{'rows read':34}{read:>12,}", f"{'rows kept':34}{kept:>12,}{share(kept, read)}"]
    if unfinished:
        lines.append(f"{'rows unfinished, in failed shards':34}{unfinished:>12,}{share(unfinished, read)}")
    lines.append(f"{'rows dropped':34}{dropped:>12,}{share(dropped, read)}")
    if retried := rows.get("retried", 0):
        lines.append(f"{'rows tried again':34}{retried:>12,}  {rows['recovered']:,} of them kept")
    for stage, reasons in rows["dropped"].items():
        ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        lines += [f"  {stage + ': ' + reason:32}{n:>12,}" for reason, n in ordered]
    return lines


def phrase_lines(phrases: PhraseCounts) -> list[str]:
    """Return the phrases found, removed and grounded."""
    return _count_lines("phrases", phrases["found"], phrases["removed"], "grounded", phrases["grounded"])


def box_lines(boxes: BoxCounts) -> list[str]:
    """Return the boxes found, removed and kept."""
    return _count_lines("boxes", boxes["found"], boxes["removed"], "kept", boxes["kept"])


def _count_lines(name: str, found: int, removed: Mapping[str, int], result: str, n: int) -> list[str]:
    return [
        "",
        f"{name + ' found':34}{found:>12,}",
        *(f"  {'removed: ' + reason:32}{count:>12,}" for reason, count in removed.items()),
        f"{name + ' ' + result:34}{n:>12,}{share(n, found)}",
    ]


def stage_lines(stages: Mapping[str, StageSpeed]) -> list[str]:
    """Return a table of the time of each stage; no lines without timings."""
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


def share(part: int, total: int) -> str:
    """Format a percentage; empty if the total is 0."""
    return f"  {part / total:6.1%}" if total else ""
