"""A small SCORED table with four rows, three of them kept, for tests of the write stage and of readers."""

import io
from pathlib import Path
from typing import Any

import PIL.Image
import pyarrow as pa

from pipeline.read.types import Piece, ShardPlan
from schemas.rows import SCORED

PROVENANCE: dict[str, Any] = {
    "config_hash": "c0ffee",
    "models": {"scorer": {"name": "miniature"}, "grounder": {"name": "miniature"}},
}
CAPTION = "a café 🐈 dog on a small dog, a café"


def jpeg(width: int, height: int, color: tuple[int, int, int] = (200, 30, 30)) -> bytes:
    out = io.BytesIO()
    PIL.Image.new("RGB", (width, height), color).save(out, "JPEG")
    return out.getvalue()


def span(text: str, occurrence: int = 0) -> dict[str, int]:
    """Span of an occurrence of `text` in CAPTION."""
    start = -1
    for _ in range(occurrence + 1):
        start = CAPTION.index(text, start + 1)
    return {"start": start, "end": start + len(text)}


def box(phrase: int, x_min: float, score: float) -> dict[str, Any]:
    return {"phrase": phrase, "x_min": x_min, "y_min": 0.25, "x_max": 0.9, "y_max": 0.75, "score": score}


def box_score(removed: str | None = None) -> dict[str, Any]:
    return {"area_px": 5000.0, "clip_cosine": None if removed else 0.3, "removed": removed}


def kept_row(number: int) -> dict[str, Any]:
    """A kept row with the chunks 'a café' (twice), 'a small dog' and '🐈 dog'.

    Boxes 1, 3 and 4 belong to phrases with the same text. Box 1 is removed.
    """
    return {
        "key": f"{number:012d}",
        "source": "in.jsonl",
        "source_row": number,
        "id": None,
        "url": f"http://example.org/{number}.jpg",
        "caption_original": f" {CAPTION} ",
        "extra": '{"licence": "none", "url": "not this"}',
        "image": jpeg(300, 200),
        "captions": None,
        "given_noun_chunks": None,
        "given_ref_exps": None,
        "status": "kept",
        "stage": None,
        "reason": None,
        "detail": None,
        "width": 300,
        "height": 200,
        "original_width": 600,
        "original_height": 400,
        "original_format": "jpeg",
        "sha256": "ab" * 32,
        "caption": CAPTION,
        "tokens": [{**span("dog"), "head": 0, "dep": "ROOT", "pos": "NOUN", "tag": "NN", "lemma": "dog"}],
        "noun_chunks": [
            {**span("a café"), "root": 0, "removed": None},
            {**span("🐈 dog"), "root": 0, "removed": None},
            {**span("a small dog"), "root": 0, "removed": None},
            {**span("a café", 1), "root": 0, "removed": None},
        ],
        "ref_exps": [
            {"chunk": 1, **span("🐈 dog on a small dog"), "is_maximal": True},
            {"chunk": 2, **span("a small dog"), "is_maximal": False},
        ],
        "given_chunks": None,
        "boxes": [box(2, 0.1, 0.9), box(0, 0.2, 0.8), box(1, 0.3, 0.7), box(0, 0.4, 0.65), box(3, 0.5, 0.6)],
        "has_expression": None,
        "box_scores": [box_score(), box_score("low_clip_score"), box_score(), box_score(), box_score()],
        "clip_similarity": 0.31,
    }


def dropped_row(number: int) -> dict[str, Any]:
    """A row dropped by `download`."""
    nulls = dict.fromkeys(SCORED.names)
    light = ("key", "source", "source_row", "url", "caption_original")
    status = {"status": "dropped", "stage": "download", "reason": "http_error", "detail": "404"}
    return nulls | {name: value for name, value in kept_row(number).items() if name in light} | status


def rows() -> list[dict[str, Any]]:
    return [kept_row(10), dropped_row(11), kept_row(12), kept_row(13)]


def table(values: list[dict[str, Any]] | None = None) -> pa.Table:
    """A SCORED table of the rows `values`; default: `rows()`."""
    return pa.Table.from_pylist(rows() if values is None else values, schema=SCORED)


def tree(folder: Path | str) -> dict[str, bytes]:
    """Content of every file below a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def plan(index: int = 1, n_rows: int = 4) -> ShardPlan:
    piece = Piece(path="in.jsonl", first_row=10, n_rows=n_rows, size=1000)
    return ShardPlan(index=index, first_row=10, n_rows=n_rows, pieces=(piece,))
