"""URLs of the rows without secrets: user names, passwords and, on request, queries are not written."""

from collections.abc import Sequence
from typing import Any

from common.text import AT, USER_INFO_IN_PROSE
from common.urls import id_without_secrets, json_without_secrets, text_without_secrets, without_secrets
from pipeline.write.samples import Row


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
    return cleaned | _original_caption(row)


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
