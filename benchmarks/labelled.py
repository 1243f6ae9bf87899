"""Read captions whose phrases a person marked: JSONL, for `python -m benchmarks.phrases`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import check_file
from common.text import one_line

KINDS = ("photo", "alt", "title", "product", "credit")
FORM = '{"caption": "a red dog", "phrases": [{"start": 0, "end": 9, "head": [6, 9]}]}'


def read_labelled(path: Path, split: str) -> list[dict[str, Any]]:
    """Return the labelled captions of a split; "all" for all of them. A caption without a split is in each of them.

    A caption without `kind` is a photo caption, a phrase without `expression` has none. Raises UserError with file,
    line and fix.
    """
    try:
        check_file(path)
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}; give a JSONL file of labelled captions") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(labelled(json.loads(line)))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: {problem(error)}; a line has the form {FORM}") from error
    chosen = [row for row in rows if split == "all" or row["split"] in (split, None)]
    if not chosen:
        raise UserError(f"{path} has no caption of the split {split!r}; label some, one per line: {FORM}")
    return chosen


def labelled(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a labelled caption with all its fields. Raises ValueError, KeyError or TypeError if it is malformed."""
    caption, kind = row["caption"], row.get("kind", "photo")
    if not isinstance(caption, str) or kind not in KINDS:
        raise ValueError(f"the caption is no text, or its kind is not one of {', '.join(KINDS)}")
    phrases = []
    for phrase in row["phrases"]:
        start, end = span((phrase["start"], phrase["end"]), caption)
        head = span(phrase["head"], caption)
        expression = phrase.get("expression")
        if expression:
            expression = list(span(expression, caption))
        phrases.append({"start": start, "end": end, "head": list(head), "expression": expression or None})
    return {"caption": caption, "kind": kind, "split": row.get("split"), "phrases": phrases}


def span(bounds: Any, caption: str) -> tuple[int, int]:
    """Return a span [start, end) of characters. Raises ValueError or TypeError if it is not in the caption."""
    start, end = bounds
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= len(caption):
        raise ValueError(f"the span from {start!r} to {end!r} is not in the caption")
    return start, end


def problem(error: Exception) -> str:
    """Return what is wrong with a line."""
    return f"{one_line(error)} is missing" if isinstance(error, KeyError) else one_line(error)
