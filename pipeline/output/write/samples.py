"""Functions shared by the formats: the kept boxes of a row, their phrases, and reproducible JSON."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from hypergrit_common.text import AT, USER_INFO_IN_PROSE
from hypergrit_common.urls import (
    LOCAL_FOLDERS,
    id_without_secrets,
    json_without_secrets,
    text_without_secrets,
    without_secrets,
)
from pipeline.read.types import ShardPlan
from schemas.manifest import Counts, Removed
from schemas.status import DROPPED, INTERNAL_ERROR, KEPT, check_reason, further_reasons, lost_boxes

Row = Mapping[str, Any]
"""One row of a SCORED table, as returned by `Table.to_pylist`."""


@dataclass(frozen=True)
class GroundedPhrase:
    """A span of the caption with a kept box; `box` is an index in the row's `boxes`."""

    kind: Literal["noun_chunk", "ref_exp"]
    start: int
    end: int
    box: int


def kept_boxes(row: Row) -> list[int]:
    """Return the indices in `boxes` of the boxes that no filter removed, best first; `check_rows` has seen the row."""
    return [i for i, score in enumerate(row["box_scores"]) if score["removed"] is None]


def boxes_with_expression(row: Row) -> list[int]:
    """Return the indices in `boxes` of the kept boxes that have the referring expression of their noun chunk."""
    chunks = {expression["chunk"] for expression in row["ref_exps"] or ()}
    flags = row["has_expression"]
    return [i for i in kept_boxes(row) if row["boxes"][i]["phrase"] in chunks and (flags is None or flags[i])]


def unconfirmed(row: Row) -> int:
    """Return the number of kept boxes of a kept row that have no referring expression."""
    return len(kept_boxes(row)) - len(boxes_with_expression(row))


def grounded_phrases(row: Row) -> Iterator[GroundedPhrase]:
    """Yield the noun chunk of each kept box, then the referring expressions of these boxes, as in the GRIT release."""
    for i in kept_boxes(row):
        chunk = row["noun_chunks"][row["boxes"][i]["phrase"]]
        yield GroundedPhrase("noun_chunk", chunk["start"], chunk["end"], i)
    spans: dict[int, dict[tuple[int, int], None]] = {}
    for expression in row["ref_exps"] or ():
        spans.setdefault(expression["chunk"], {})[expression["start"], expression["end"]] = None
    for i in boxes_with_expression(row):
        for start, end in spans[row["boxes"][i]["phrase"]]:
            yield GroundedPhrase("ref_exp", start, end, i)


def shortest_float(value: float | None) -> float | None:
    """Return the float64 with the fewest digits that rounds to the same float32: 0.65 instead of 0.6499999761581421."""
    return None if value is None else float(str(np.float32(value)))


def shorten_floats(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Apply `shortest_float` to every float of `fields`."""
    return {name: shortest_float(value) if isinstance(value, float) else value for name, value in fields.items()}


def to_json(value: Any) -> bytes:
    """Encode as UTF-8 JSON with sorted keys. Raises ValueError for NaN and infinity, which JSON does not have."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


# Check the rows of a shard, and count them for the manifest.

KEY: Final = re.compile(r"[0-9A-Za-z_-]+")
"""Valid keys of samples. A dot or slash is not allowed: WebDataset ends the key at the first dot of a member name."""


def kept_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that no stage dropped."""
    return [row for row in rows if row["status"] == KEPT]


def count_rows(rows: Sequence[Row], plan: ShardPlan, provenance: Mapping[str, Any]) -> Counts:
    """Count the rows of a shard by status, stage and reason; `provenance` records the stages of the user.

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
    further = further_reasons(provenance)
    for row in rows:
        check_row(row, further)
        if row["status"] == DROPPED:
            dropped.setdefault(row["stage"], Counter())[row["reason"]] += 1
    n_dropped = sum(reasons.total() for reasons in dropped.values())
    counts = {stage: dict(reasons) for stage, reasons in dropped.items()}
    return {"read": len(rows), "kept": len(rows) - n_dropped, "dropped": counts}


def check_row(row: Row, further: Mapping[str, Collection[str]]) -> None:
    """Raise ValueError if the key is invalid, or the row is neither kept with an image nor dropped with a reason.

    The reason must be a drop reason of its stage (schemas.status.REASONS, or `further` ones of the user's stages).
    """
    status, stage, reason = row["status"], row["stage"], row["reason"]
    if not KEY.fullmatch(row["key"]):
        raise ValueError(f"key {row['key']!r} cannot name a tar member; use letters, digits, - and _")
    if status == DROPPED and stage is not None and reason is not None:
        check_reason(stage, reason, further)
    elif status != KEPT or stage is not None or reason is not None:
        raise ValueError(
            f"row {row['key']} is neither kept nor dropped with a reason: "
            f"status {status!r}, stage {stage!r}, reason {reason!r}"
        )
    elif row["image"] is None:
        raise ValueError(f"row {row['key']} is kept without an image")


def count_kept(rows: Sequence[Row]) -> Counter[str]:
    """Return counts of a manifest: of the kept rows, and as "asked" the noun chunks of all rows that are not removed."""
    found = Counter(asked=sum(chunk["removed"] is None for row in rows for chunk in row["noun_chunks"] or ()))
    for row in kept_rows(rows):
        boxes = kept_boxes(row)
        phrases = {row["boxes"][i]["phrase"] for i in boxes}
        found.update(boxes=len(boxes), phrases=len(phrases), pairs=not boxes, unconfirmed=unconfirmed(row))
    return found


def count_removed(rows: Sequence[Row]) -> Removed:
    """Count the removed noun chunks and boxes of all rows, dropped rows included, by reason."""
    phrases = Counter(chunk["removed"] for row in rows for chunk in row["noun_chunks"] or ())
    boxes = Counter(score["removed"] for row in rows for score in row["box_scores"] or ())
    boxes.update(reason for row in rows for reason in lost_boxes(row))
    return {
        "phrases": {reason: n for reason, n in phrases.items() if reason},
        "boxes": {reason: n for reason, n in boxes.items() if reason},
    }


# URLs of the rows without secrets: user names, passwords and, on request, queries are not written.


def remove_url_secrets(row: Row, *, strip_query: bool) -> dict[str, Any]:
    """Return a row whose URLs have no user info and, if `strip_query`, no query. Captions keep their queries.

    >>> remove_url_secrets({"url": "http://ann:pw@example.org/1.jpg?key=7"}, strip_query=False)
    {'url': 'http://example.org/1.jpg?key=7'}
    """
    cleaned = dict(row)
    for name, clean in (
        ("id", id_without_secrets),
        ("url", without_secrets),
        ("source", text_without_secrets),
        ("detail", text_without_secrets),
        ("extra", json_without_secrets),
    ):
        if value := row.get(name):
            cleaned[name] = clean(value, strip_query=strip_query)
    if row.get("reason") == INTERNAL_ERROR:  # whose detail is the message of any package
        cleaned["detail"] = LOCAL_FOLDERS.sub("", cleaned.get("detail") or "") or None
    if row.get("captions"):
        cleaned["captions"] = [caption | {"text": _without_user(caption["text"])} for caption in row["captions"]]
    return cleaned | _original_caption(row)


def _without_user(text: str) -> str:
    """Remove user names and passwords from the URLs in a text; a cleaned caption has none."""
    return USER_INFO_IN_PROSE.sub(lambda found: found["start"] or found["escaped"], text) if AT.search(text) else text


def _original_caption(row: Row) -> dict[str, Any]:
    """Return the original caption and the given boxes, whose spans move with its characters."""
    text = row.get("caption_original") or ""
    cuts = [
        (found.start() + len(found["start"] or found["escaped"]), found.end())
        for found in (USER_INFO_IN_PROSE.finditer(text) if AT.search(text) else ())
    ]
    if not cuts:
        return {}
    boxes = {name: row.get(name) for name in ("given_noun_chunks", "given_ref_exps")}
    moved = {name: [_move(box, cuts) for box in found] for name, found in boxes.items() if found}
    starts, ends = [0, *(end for _, end in cuts)], [*(start for start, _ in cuts), len(text)]
    return moved | {"caption_original": "".join(text[a:b] for a, b in zip(starts, ends, strict=True))}


def _move(box: dict[str, Any], cuts: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Move the span of a box to a caption without these ranges of characters."""
    return box | {
        name: box[name] - sum(max(0, min(box[name], end) - start) for start, end in cuts) for name in ("start", "end")
    }
