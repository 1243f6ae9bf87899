"""What the writers share: the kept boxes of a row, their phrases, and JSON that is always the same bytes."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Row = Mapping[str, Any]
"""One row of a SCORED table, as `Table.to_pylist` gives it."""


@dataclass(frozen=True)
class Phrase:
    """A span of the caption and the box that shows it."""

    kind: Literal["noun_chunk", "ref_exp"]
    start: int
    end: int
    box: int  # index in `boxes`


def kept_boxes(row: Row) -> list[int]:
    """Indices in `boxes` of the boxes every filter let through, best first."""
    scores = row["box_scores"]
    if scores is None or row["boxes"] is None or len(scores) != len(row["boxes"]):
        raise ValueError(f"row {row['key']} is kept but its boxes have no verdicts")
    return [i for i, score in enumerate(scores) if score["removed"] is None]


def grounded_phrases(row: Row, ref_exps: str) -> Iterator[Phrase]:
    """Noun chunks of the kept boxes, then their referring expressions ('all' or only the 'maximal' ones)."""
    kept = kept_boxes(row)
    for i in kept:
        chunk = row["noun_chunks"][row["boxes"][i]["phrase"]]
        yield Phrase("noun_chunk", chunk["start"], chunk["end"], i)
    spans: dict[int, dict[tuple[int, int], None]] = {}
    for expression in row["ref_exps"] or ():
        if ref_exps == "all" or expression["is_maximal"]:
            spans.setdefault(expression["chunk"], {})[expression["start"], expression["end"]] = None
    for i in kept:
        for start, end in spans.get(row["boxes"][i]["phrase"], ()):
            yield Phrase("ref_exp", start, end, i)


def shortest(value: float | None) -> float | None:
    """The double whose digits are the fewest that name the same float32: 0.65, not 0.6499999761581421."""
    return None if value is None else float(str(np.float32(value)))


def shorten(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` with every float in its shortest float32 form."""
    return {name: shortest(value) if isinstance(value, float) else value for name, value in fields.items()}


def to_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys. Raises ValueError for NaN and infinity, which JSON lacks."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
