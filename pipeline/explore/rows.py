"""Single rows of an output: read by number for the page, or found by key and described in whole for a terminal."""

import bisect
import itertools
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from operator import or_
from typing import Any, Final

from hypergrit_common.errors import UserError
from pipeline.output.ledger import image_places, is_one_of, read_batch, read_batches, read_rows, tar_images
from pipeline.output.manifest import read_manifest
from pipeline.output.record import input_path, located
from pipeline.output.store import Store
from pipeline.report.cards import read_dropped
from pipeline.stages.score.filters import clip_score
from schemas.files import FILES
from schemas.manifest import Manifest
from schemas.rows import SCORED
from schemas.scores import CROP_SCORES, ROW_COLUMNS
from schemas.status import KEPT, shown_stage

COLUMNS: Final = [name for name in SCORED.names if name != "image"]
NAMES: Final = ("key", "id", "url")
MOST_ROWS: Final = 20
"""Rows with the same URL or id that are described."""
DETAILS: Final = (
    *("key", "id", "url", "source", "source_row", "status", "stage", "reason", "detail"),
    *("caption", "caption_original", "extra", "width", "height", "original_width", "original_height"),
    *("original_format", "sha256", "tokens", "noun_chunks", "ref_exps", "boxes", "box_scores", *ROW_COLUMNS),
)
"""Columns that the page shows of an opened row."""
CHUNK_ROWS: Final = 128
"""Rows of a file of details; those of arrow/ are read 1024 at a time."""
OPEN_SHARDS: Final = 64

Row = dict[str, Any]


def describe_rows(store: Store, manifests: Sequence[Manifest], wanted: str) -> list[str]:
    """Return the lines of the life of the rows with this key, id or URL, MOST_ROWS at most. Raises UserError without any."""
    found = rows_by_name(store, manifests, [wanted])[wanted]
    if not found:
        gone = "; rows that were taken down have only their key, no id and no URL" if len(store.takedowns) else ""
        raise UserError(
            f"{store.root} has no row with the key, id or URL {wanted!r}; keys are row numbers of 12 digits{gone}"
        )
    more = [f"{len(found) - MOST_ROWS} more rows have the URL or id {wanted}"] if len(found) > MOST_ROWS else []
    parts = [
        describe_row(manifest, {**row, "source": input_path(store, row["source"]), "detail": located(store, row)})
        for manifest, row in found[:MOST_ROWS]
    ]
    parts += [more] if more else []
    return [line for i, part in enumerate(parts) for line in [*([""] if i else []), *part]]


def rows_by_name(
    store: Store, manifests: Sequence[Manifest], names: Iterable[str]
) -> dict[str, list[tuple[Manifest, Row]]]:
    """Return the rows of each name, with their shards: those with it as key, id or URL.

    If there are none, blanks around it do not count, and a number is a key without its leading zeros: ids often count too.
    """
    texts = {name: spellings(name) for name in names}
    has_name = reduce(or_, (is_one_of(column, {*itertools.chain(*texts.values())}) for column in NAMES))
    found = defaultdict[str, list[tuple[Manifest, Row]]](list)
    for manifest in manifests:
        if any(read_rows(store, [manifest], NAMES, has_name)):
            for row in read_rows(store, [manifest], COLUMNS, has_name):
                for text in {row[column] for column in NAMES}:
                    found[text].append((manifest, row))
    return {name: next(filter(None, map(found.__getitem__, texts[name])), []) for name in texts}


def spellings(name: str) -> tuple[str, ...]:
    """Return what a name may stand for, the likeliest first: itself, itself without blanks around it, the key of a number."""
    bare = name.strip()
    return (name, bare, bare.lstrip("0").zfill(12)) if bare.isascii() and bare.isdigit() else (name, bare)


def describe_row(manifest: Manifest, row: Row) -> list[str]:
    """Return the life of a row, a line for each step of its way."""
    kinds = [name for name in ("train", "grit") if row["status"] == KEPT and name in manifest["formats"]]
    files = [FILES[name][0].path(manifest["shard"]) for name in ("arrow", *kinds)]
    detail, stage = f" ({row['detail']})" if row["detail"] else "", shown_stage(row["stage"], row["reason"])
    lines = [
        ("row", f"{row['key']}, shard {manifest['shard']}: {', '.join(files)}"),
        ("read", f"row {row['source_row']} (from 0) of {row['source']}" + (f", id {row['id']}" if row["id"] else "")),
        ("url", row["url"]),
        ("caption as read", row["caption_original"]),
        ("image", describe_image(row)),
        ("sha256", row["sha256"]),
        ("caption", row["caption"]),
        *describe_phrases(row),
        (
            "similarity",
            None if row["clip_similarity"] is None else f"{row['clip_similarity']:.3f} (cosine of image and caption)",
        ),
        ("result", KEPT if row["status"] == KEPT else f"dropped by {stage}: {row['reason']}{detail}"),
    ]
    return [f"{name:>16}  {text}" for name, text in lines if text]


def describe_image(row: Row) -> str | None:
    """Return the sizes of the image of a row."""
    if row["width"] is None:
        return None
    size = f"{row['original_width']} x {row['original_height']} px"
    return f"{row['original_format']} of {size}, stored with {row['width']} x {row['height']} px"


def describe_phrases(row: Row) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of each noun chunk and of its boxes: their scores, and why one was removed."""
    boxes = list(zip(row["boxes"] or [], row["box_scores"] or [], strict=False))
    for number, chunk in enumerate(row["noun_chunks"] or []):
        mine = [describe_box(box, score) for box, score in boxes if box["phrase"] == number]
        state = f"removed: {chunk['removed']}" if chunk["removed"] else f"boxes: {len(mine)}"
        yield "phrase", f"{row['caption'][chunk['start'] : chunk['end']]!r}, {state}"
        yield from (("", text) for text in mine)


def describe_box(box: Mapping[str, Any], score: Mapping[str, Any]) -> str:
    """Return a box: corners in fractions of the image, grounding score, scores of the crop as in thresholds, and verdict."""
    corners = ", ".join(f"{box[name]:.3f}" for name in ("x_min", "y_min", "x_max", "y_max"))
    crops = ""
    for entry in CROP_SCORES:
        if (value := score[entry.column]) is not None:
            is_clip = entry.unit == "CLIPScore"
            crops += f", CLIPScore {clip_score(value):.3f}" if is_clip else f", {entry.column} {value:.3f}"
    verdict = f"removed: {score['removed']}" if score["removed"] else "kept"
    return f"[{corners}] score {box['score']:.3f}{crops}, {verdict}"


# Rows by number: their images, and everything that arrow/ holds about them.


@dataclass(frozen=True)
class Shard:
    """A finished shard; its keys and the places of its images are read once. Rows are numbered from 0."""

    store: Store
    manifest: Manifest

    @cached_property
    def keys(self) -> list[list[str]]:
        """The keys of the rows, by batch of arrow/."""
        return [batch["key"].to_pylist() for batch in read_batches(self.store, self.manifest, ("key",))]

    @cached_property
    def starts(self) -> list[int]:
        """The number of the first row of each batch, and the number of all rows."""
        return list(itertools.accumulate(map(len, self.keys), initial=0))

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return self.starts[-1]

    @cached_property
    def places(self) -> Mapping[str, tuple[int, int]]:
        """Key -> offset and size of the image in grit/: from `_index/`, or from the headers of the tar without it."""
        found, name = image_places(self.store, self.manifest), FILES["grit"][0].path(self.manifest["shard"])
        if found or name not in self.manifest["files"]:
            return found
        return {key: place for key, place, _ in tar_images(self.store, name)}

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise UserError at the end if the shard was written again since the start, or is being written.

        Its manifest is removed before its files are replaced, so that what was read before is that of the manifest.
        """
        try:
            yield
        finally:
            if read_manifest(self.store, self.manifest["shard"]) != self.manifest:
                raise UserError(f"shard {self.manifest['shard']} of {self.store.root} has changed")

    def image(self, number: int) -> bytes | None:
        """Return the stored image of a row, or the thumbnail of a dropped one, or None without either.

        Raises UserError if the shard has changed.
        """
        with self.unchanged():
            batch, place = self._place(number)
            if at := self.places.get(self.keys[batch][place]):
                return self.store.read_part(FILES["grit"][0].path(self.manifest["shard"]), *at)
            image: bytes | None = read_batch(self.store, self.manifest, ("image",), batch)["image"][place].as_py()
            if image is None:
                thumbnails = read_dropped(self.store, self.manifest["shard"], {self.keys[batch][place]})
                image = next((thumbnail.jpeg for thumbnail in thumbnails.values()), None)
            return image

    def details(self, chunk: int) -> list[Row]:
        """Return the rows of a chunk, CHUNK_ROWS consecutive ones, with DETAILS. Raises UserError like `image`."""
        first, end = chunk * CHUNK_ROWS, min((chunk + 1) * CHUNK_ROWS, self.n_rows)
        rows = list[Row]()
        with self.unchanged():
            while first < end:
                number, place = self._place(first)
                batch = read_batch(self.store, self.manifest, DETAILS, number).slice(place, end - first)
                rows += batch.to_pylist()
                first += batch.num_rows
        return rows

    def row(self, number: int) -> Row:
        """Return a row with DETAILS. Raises IndexError if the shard has none with this number, UserError like `image`."""
        self._place(number)
        chunk, place = divmod(number, CHUNK_ROWS)
        return self.details(chunk)[place]

    def _place(self, number: int) -> tuple[int, int]:
        """Return the batch of a row, and its place there. Raises IndexError if the shard has no such row."""
        if not 0 <= number < self.n_rows:
            raise IndexError(f"shard {self.manifest['shard']} has no row {number}")
        batch = bisect.bisect_right(self.starts, number) - 1
        return batch, number - self.starts[batch]


class Shards:
    """The shards of an output by index; a few of them are kept open."""

    def __init__(self, store: Store, manifests: list[Manifest]) -> None:
        self._manifests = {manifest["shard"]: manifest for manifest in manifests}
        self._lock = threading.Lock()
        self._opened = lru_cache(OPEN_SHARDS)(lambda index: Shard(store, self._manifests[index]))

    def get(self, index: int) -> Shard:
        """Return a shard. Raises KeyError if the output has none with this index."""
        with self._lock:
            return self._opened(index)
