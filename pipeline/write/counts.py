"""Check the rows of a shard, and count them for the manifest."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from pipeline.read.types import ShardPlan
from pipeline.write.samples import Row
from schemas.manifest import Counts, Removed
from schemas.status import DROPPED, KEPT, check_reason

KEY: Final = re.compile(r"[0-9A-Za-z_-]+")
"""Valid keys of samples. A dot or slash is not allowed: WebDataset ends the key at the first dot of a member name."""


def kept_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that no stage dropped."""
    return [row for row in rows if row["status"] == KEPT]


def count_rows(rows: Sequence[Row], plan: ShardPlan) -> Counts:
    """Count the rows of a shard by status, stage and reason.

    Raises ValueError if the number of rows is not that of the plan, a key occurs twice, or a row is invalid
    (`check_row`).
    """
    n_keys = len({row["key"] for row in rows})
    if len(rows) != plan.n_rows or n_keys != plan.n_rows:
        raise ValueError(
            f"shard {plan.index} was planned with {plan.n_rows} rows, but has {len(rows)} rows with {n_keys} distinct "
            "keys"
        )
    dropped: dict[str, Counter[str]] = {}
    for row in rows:
        check_row(row)
        if row["status"] == DROPPED:
            dropped.setdefault(row["stage"], Counter())[row["reason"]] += 1
    n_dropped = sum(reasons.total() for reasons in dropped.values())
    counts = {stage: dict(reasons) for stage, reasons in dropped.items()}
    return {"read": len(rows), "kept": len(rows) - n_dropped, "dropped": counts}


def check_row(row: Row) -> None:
    """Raise ValueError if the key is invalid, or the row is neither kept with an image nor dropped with a reason.

    The reason must be a drop reason of its stage (schemas.status.REASONS).
    """
    status, stage, reason = row["status"], row["stage"], row["reason"]
    if not KEY.fullmatch(row["key"]):
        raise ValueError(f"key {row['key']!r} cannot name a tar member; use letters, digits, - and _")
    if status == DROPPED and stage is not None and reason is not None:
        check_reason(stage, reason)
    elif status != KEPT or stage is not None or reason is not None:
        raise ValueError(
            f"row {row['key']} is neither kept nor dropped with a reason: "
            f"status {status!r}, stage {stage!r}, reason {reason!r}"
        )
    elif row["image"] is None:
        raise ValueError(f"row {row['key']} is kept without an image")


def count_removed(rows: Sequence[Row]) -> Removed:
    """Count the removed noun chunks and boxes of all rows, dropped rows included, by reason."""
    phrases = Counter(chunk["removed"] for row in rows for chunk in row["noun_chunks"] or ())
    boxes = Counter(score["removed"] for row in rows for score in row["box_scores"] or ())
    return {
        "phrases": {reason: n for reason, n in phrases.items() if reason},
        "boxes": {reason: n for reason, n in boxes.items() if reason},
    }
