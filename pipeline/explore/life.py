"""The whole life of a row: what the ledger of an output holds of it, as text for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow.compute as pc

from hypergrit_common.errors import UserError
from pipeline.output.ledger import read_batches
from pipeline.output.store import Store
from schemas.files import FILES
from schemas.manifest import Manifest
from schemas.rows import SCORED
from schemas.status import KEPT

COLUMNS: Final = [name for name in SCORED.names if name != "image"]
MOST_ROWS: Final = 20

Row = Mapping[str, Any]


def describe_rows(store: Store, manifests: Sequence[Manifest], wanted: str) -> str:
    """Return the life of the rows with this key, id or URL; at most MOST_ROWS of them. Raises UserError if there is none."""
    found = [describe_row(store, manifest, row) for manifest, row in find_rows(store, manifests, wanted)]
    if not found:
        raise UserError(
            f"{store.root} has no row with the key, id or URL {wanted!r}; keys are row numbers of 12 digits"
        )
    more = [f"{len(found) - MOST_ROWS} more rows have the URL or id {wanted}"] if len(found) > MOST_ROWS else []
    return "\n\n".join([*found[:MOST_ROWS], *more])


def find_rows(store: Store, manifests: Sequence[Manifest], wanted: str) -> Iterator[tuple[Manifest, Row]]:
    """Yield the rows with this key, id or URL, with their shards. A key may be given without its leading zeros."""
    names = [wanted, f"{int(wanted):012d}"] if wanted.isascii() and wanted.isdigit() else [wanted]
    for manifest in manifests:
        for number, batch in enumerate(read_batches(store, manifest, ("key", "id", "url"))):
            matches = [i for i, row in enumerate(batch.to_pylist()) if {row["key"], row["id"], row["url"]} & {*names}]
            if matches:
                whole = next(b for n, b in enumerate(read_batches(store, manifest, COLUMNS)) if n == number)
                for row in whole.take(pc.cast(matches, "int64")).to_pylist():
                    yield manifest, row


def describe_row(store: Store, manifest: Manifest, row: Row) -> str:
    """Return the life of a row, a line for each step of its way."""
    kinds = [name for name in ("train", "grit") if row["status"] == KEPT and name in manifest["formats"]]
    files = [store.file(FILES[name][0], manifest["shard"]) for name in ("arrow", *kinds)]
    detail = f" ({row['detail']})" if row["detail"] else ""
    lines = [
        ("row", f"{row['key']}, shard {manifest['shard']}: {', '.join(files)}"),
        ("read", f"row {row['source_row']} of {row['source']}" + (f", id {row['id']}" if row["id"] else "")),
        ("url", row["url"]),
        ("caption as read", row["caption_original"]),
        ("download", describe_image(row)),
        ("sha256", row["sha256"]),
        ("caption", row["caption"]),
        *(("phrase", text) for text in describe_phrases(row)),
        ("similarity", None if row["clip_similarity"] is None else f"{row['clip_similarity']:.3f} (image and caption)"),
        ("result", KEPT if row["status"] == KEPT else f"dropped by {row['stage']}: {row['reason']}{detail}"),
    ]
    return "\n".join(f"{name:>16}  {text}" for name, text in lines if text)


def describe_image(row: Row) -> str | None:
    """Return the sizes of the image of a row."""
    if row["width"] is None:
        return None
    size = f"{row['original_width']} x {row['original_height']} px"
    return f"{row['original_format']} of {size}, stored with {row['width']} x {row['height']} px"


def describe_phrases(row: Row) -> Iterator[str]:
    """Yield each noun chunk with its boxes, their scores, and why one was removed."""
    boxes = list(zip(row["boxes"] or [], row["box_scores"] or [], strict=False))
    for number, chunk in enumerate(row["noun_chunks"] or []):
        mine = [describe_box(box, score) for box, score in boxes if box["phrase"] == number]
        state = f"removed: {chunk['removed']}" if chunk["removed"] else f"boxes: {len(mine)}"
        yield "\n".join([f"{row['caption'][chunk['start'] : chunk['end']]!r}, {state}", *mine])


def describe_box(box: Mapping[str, Any], score: Mapping[str, Any]) -> str:
    """Return a box: corners in fractions of the image, grounding score, cosine and verdict."""
    corners = ", ".join(f"{box[name]:.3f}" for name in ("x_min", "y_min", "x_max", "y_max"))
    cosine = "" if score["clip_cosine"] is None else f", cosine {score['clip_cosine']:.3f}"
    verdict = f"removed: {score['removed']}" if score["removed"] else "kept"
    return f"{'':>18}[{corners}] score {box['score']:.3f}{cosine}, {verdict}"
