"""Functions shared by the formats: the kept boxes of a row, their phrases, and reproducible JSON."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

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
    """Return the indices in `boxes` of the boxes that no filter removed, best first.

    Raises ValueError if a box has no entry in `box_scores`, which is a bug.
    """
    scores = row["box_scores"]
    if scores is None or row["boxes"] is None or len(scores) != len(row["boxes"]):
        raise ValueError(f"row {row['key']} is kept, but its boxes and box_scores do not have the same length")
    return [i for i, score in enumerate(scores) if score["removed"] is None]


def grounded_phrases(row: Row, ref_exps: str) -> Iterator[GroundedPhrase]:
    """Yield the noun chunk of each kept box, then the referring expressions of those chunks.

    With `ref_exps` "all", yield all expressions; with "maximal", only those that are not part of another one; with
    "disjoint", those of `_disjoint`.
    """
    kept = kept_boxes(row)
    expressions = row["ref_exps"] or ()
    if ref_exps == "maximal":
        expressions = [expression for expression in expressions if expression["is_maximal"]]
    elif ref_exps == "disjoint":
        expressions = _disjoint(expressions, Counter(row["boxes"][i]["phrase"] for i in kept))
    for i in kept:
        chunk = row["noun_chunks"][row["boxes"][i]["phrase"]]
        yield GroundedPhrase("noun_chunk", chunk["start"], chunk["end"], i)
    spans: dict[int, dict[tuple[int, int], None]] = {}
    for expression in expressions:
        spans.setdefault(expression["chunk"], {})[expression["start"], expression["end"]] = None
    for i in kept:
        for start, end in spans.get(row["boxes"][i]["phrase"], ()):
            yield GroundedPhrase("ref_exp", start, end, i)


def _disjoint(expressions: Sequence[Row], n_boxes: Mapping[int, int]) -> list[Row]:
    """Choose grounded expressions that do not overlap: greedily the most boxes first, then the longest, then the first.

    `n_boxes` counts the kept boxes of each chunk.
    """
    chosen: list[Row] = []
    grounded = [expression for expression in expressions if n_boxes.get(expression["chunk"])]
    for e in sorted(grounded, key=lambda e: (-n_boxes[e["chunk"]], e["start"] - e["end"], e["start"], e["chunk"])):
        if all(e["end"] <= other["start"] or other["end"] <= e["start"] for other in chosen):
            chosen.append(e)
    return chosen


def shortest_float(value: float | None) -> float | None:
    """Return the float64 with the fewest digits that rounds to the same float32: 0.65 instead of 0.6499999761581421."""
    return None if value is None else float(str(np.float32(value)))


def shorten_floats(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Apply `shortest_float` to every float of `fields`."""
    return {name: shortest_float(value) if isinstance(value, float) else value for name, value in fields.items()}


def to_json(value: Any) -> bytes:
    """Encode as UTF-8 JSON with sorted keys. Raises ValueError for NaN and infinity, which JSON does not have."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
