"""The end of a run: stats.json, report.html, and a summary as text for the terminal."""

import logging
from collections.abc import Collection, Mapping

from hypergrit_common.cli import logs_json, notify
from hypergrit_common.config_help import print_text
from hypergrit_common.text import counted, printable
from pipeline.config import PipelineConfig
from pipeline.output.store import Store
from pipeline.report.html import make_report
from pipeline.report.stats import build_stats, progress_text, trainable
from schemas.files import REPORT_FILE
from schemas.manifest import Counts
from schemas.stats import StageSpeed, Statistics
from schemas.status import shown_stage


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
    progress, phrases, boxes = progress_text(stats), stats["phrases"], stats["boxes"]
    lines = [
        *([progress, ""] if progress else []),
        *row_lines(stats["rows"]),
        *([f"{'rows kept as pairs, without a box':34}{stats['pairs']:>12,}"] if "pairs" in stats else []),
        *count_lines("phrases", phrases["found"], phrases["removed"], "grounded", phrases["grounded"]),
        *count_lines("boxes", boxes["found"], boxes["removed"], "kept", boxes["kept"]),
        *([f"  {'without an expression':32}{boxes['unconfirmed']:>12,}"] if "unconfirmed" in boxes else []),
        *stage_lines(stats["stages"]),
        *trainable(stats),
    ]
    if stats["run"].keys() >= {"wall_seconds", "shards"}:
        run = stats["run"]
        lines.append(
            f"last run: {run['shards']} of {counted(len(stats['shards']), 'shard')} in {run['wall_seconds']:,.1f} s"
        )
    lines += [
        f"damaged input file, {counted(file['rows'], 'row')} read: {file['path']}" for file in stats.get("damaged", ())
    ]
    if "truth" in stats:
        known = [f"{name} {stats['truth'][name]:.3f}" for name in ("precision", "recall") if name in stats["truth"]]
        lines += ["", f"boxes compared with the ground truth: {', '.join(known)}"]
    return "\n".join(map(printable, lines))


def row_lines(rows: Counts) -> list[str]:
    """Return the rows read, kept, unfinished and dropped; the most frequent drop reasons of each stage come first."""
    read, kept, unfinished = rows["read"], rows["kept"], rows.get("unfinished", 0)
    dropped = read - kept - unfinished
    lines = [f"{'rows read':34}{read:>12,}", f"{'rows kept':34}{kept:>12,}{share(kept, read)}"]
    if unfinished:
        lines.append(f"{'rows unfinished, in failed shards':34}{unfinished:>12,}{share(unfinished, read)}")
    lines.append(f"{'rows dropped':34}{dropped:>12,}{share(dropped, read)}")
    for stage, reasons in rows["dropped"].items():
        ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        lines += [f"  {shown_stage(stage, reason) + ': ' + reason:32}{n:>12,}" for reason, n in ordered]
    return lines


def count_lines(name: str, found: int, removed: Mapping[str, int], result: str, n: int) -> list[str]:
    """Return how many phrases or boxes were found, removed for each reason, and are left as the `result`."""
    return [
        "",
        f"{name + ' found':34}{found:>12,}",
        *(f"  {'removed: ' + reason:32}{count:>12,}{share(count, found)}" for reason, count in removed.items()),
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


def report(config: PipelineConfig, store: Store, shards: Collection[int]) -> Statistics:
    """Write stats.json and report.html of these shards, print summary and warnings, and return the statistics.

    The caller holds the lease of the output.
    """
    stats = build_stats(store, shards=shards, holds_lease=True)
    advice = make_report(store, stats, config.report)
    if config.report.summary and not config.quiet and not logs_json():
        print_text(summary_table(stats))
    for warning in advice:
        notify(f"warning: {warning.text}; {warning.action}")
    if logs_json():
        logging.getLogger("hypergrit").info("report: %s/%s", config.output, REPORT_FILE)
    elif not config.quiet:
        print_text(f"report: {config.output}/{REPORT_FILE}")
    return stats
