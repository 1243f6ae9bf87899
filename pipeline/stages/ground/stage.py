"""Stage `ground`: boxes for the phrases of each caption."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.images import StoredImages, corners, iou
from pipeline.stages.ground.grounder import Box, Detection, Grounded, Grounder, Span, prefetch
from pipeline.stages.ground.load import GroundConfig, grounder_path, make_grounder
from pipeline.stages.stage import Context, Stage, TableFunction
from schemas.manifest import NO_MODEL
from schemas.rows import GROUNDED
from schemas.status import REASONS
from schemas.table import Drop, add_columns, drop_rows, kept_indices, set_column

# Select the boxes of a row from the detections of a network, or read them from the input.

Boxes = list[dict[str, Any]]
"""Boxes of one row (schemas.rows.BOX), best first."""


def select(detections: Sequence[Detection], floor: float, nms_iou: float) -> list[Detection]:
    """Select boxes: a score floor, then non-maximum suppression across all phrases (Kosmos-2, section 2.1).

    A box suppresses only boxes with lower scores. Applying a higher score threshold to the result therefore gives the
    same boxes as a higher `floor`.

    Args:
        detections: boxes of one image.
        floor: smallest score, in [0, 1].
        nms_iou: intersection over union above which the box with the lower score is removed, in [0, 1].

    Returns:
        The boxes that stay, best first.
    """
    good = sorted((d for d in detections if d.score >= floor), key=lambda d: (-d.score, d.phrase, d.box))
    if not good:
        return []
    import torch
    from torchvision.ops import nms

    boxes, scores = torch.tensor([d.box for d in good]), torch.tensor([d.score for d in good])
    return [good[i] for i in sorted(nms(boxes, scores, nms_iou).tolist())]


def given_boxes(row: Mapping[str, Any]) -> Boxes:
    """Return the given boxes of a PARSED row, best first; omit those whose phrase is not in the cleaned caption."""
    pairs = zip(row["given_chunks"], row["given_noun_chunks"], strict=True)
    boxes = [box_struct(chunk, corners(given), given["score"]) for chunk, given in pairs if chunk >= 0]
    return sorted(boxes, key=lambda box: -box["score"])


def box_struct(phrase: int, box: Box, score: float) -> dict[str, Any]:
    """Return a box in the form of schemas.rows.BOX, with its corners clipped to the image."""
    named = zip(("x_min", "y_min", "x_max", "y_max"), box, strict=True)
    return {"phrase": phrase, **{name: min(max(value, 0.0), 1.0) for name, value in named}, "score": score}


COLUMNS: Final = ["caption", "noun_chunks", "ref_exps", "given_noun_chunks", "given_chunks", "width", "height"]
"""Columns that are read for all rows at once; `image` is read batch by batch."""

Row = dict[str, Any]
RemovalReasons = dict[int, str]
"""Index of a noun chunk -> reason why the network cannot ground it (schemas.status.PHRASE_REMOVALS)."""
Fields = dict[str, Any]
"""The columns of a row that this stage adds; those without a value are left out."""


class Ground(Stage):
    """Find boxes for the noun chunks of each caption. Takes a PARSED table and returns a GROUNDED table.

    Adds `boxes`, best first, and `presence`, which only some networks predict. Rows with given boxes (GRIT input) keep
    their boxes and skip the network. Sets `removed` for noun chunks that the network cannot ground. With
    `check_expressions`, `has_expression` says which boxes are also those of the expression of their noun chunk. Rows
    without a box are dropped as `no_box` or `ungroundable`, unless the settings keep pairs.

    Args:
        config: settings.
        grounder: a loaded grounder; None: that of `config`, which is loaded.
        decode: decoder with a cache, such as one that `Score` shares; None: without a cache.

    Raises:
        UserError: the grounder cannot be loaded.

    >>> import pyarrow as pa
    >>> from demo.world.scenes import TEST_SEEDS, make_scene
    >>> from pipeline import Ground, GroundConfig
    >>> from pipeline.images import encode_jpeg
    >>> from schemas.rows import PARSED
    >>> scene = make_scene(TEST_SEEDS[0], "openmoji")
    >>> row = {"key": "0", "source": "pairs.csv", "source_row": 0, "status": "kept", "caption": scene.caption}
    >>> row |= {"image": encode_jpeg(scene.image), "height": scene.image.shape[0], "width": scene.image.shape[1]}
    >>> row["noun_chunks"] = [{"start": p.start, "end": p.end, "root": -1} for p in scene.phrases]
    >>> table = Ground(GroundConfig(grounder="miniature"))(pa.Table.from_pylist([row], schema=PARSED))
    >>> best = table["boxes"][0].as_py()[0]
    >>> chunk = row["noun_chunks"][best["phrase"]]
    >>> scene.caption[chunk["start"] : chunk["end"]], best["score"] > 0.5
    ('four red zebras', True)
    """

    name, schema, reasons = "ground", GROUNDED, REASONS["ground"]
    Config = GroundConfig
    needs_model = True

    def __init__(
        self, config: GroundConfig, grounder: Grounder | None = None, decode: StoredImages | None = None
    ) -> None:
        """Load the grounder of `config` unless one is given."""
        super().__init__(config)
        self.decode = decode or StoredImages(max_bytes=0)
        self.grounder = grounder or make_grounder(config)

    @classmethod
    def has_model(cls, config: GroundConfig) -> bool:
        """Return False for a job that keeps the boxes of its input, and finds no others."""
        return config.grounder != NO_MODEL

    @classmethod
    def load(cls, context: Context) -> TableFunction:
        """Load the stage, which shares the decoded images of a shard. Raises UserError like `Context.check_model`."""
        config = context.settings[cls.name]
        if not cls.has_model(config):
            return keep_given
        context.check_model("grounder", grounder_path(config.grounder))
        return cls(config, decode=context.images)

    def __call__(self, table: pa.Table) -> pa.Table:
        rows = kept_rows(table)
        given: dict[int, Fields] = {
            i: {"boxes": given_boxes(row)} for i, row in rows.items() if row["given_noun_chunks"]
        }
        others = {i: row for i, row in rows.items() if i not in given}
        if self.config.keeps_pairs:
            given |= {i: {"boxes": []} for i, row in others.items() if not groundable(row["noun_chunks"])}
            others = {i: row for i, row in others.items() if i not in given}
        found, removed = self._ground(table["image"], others)
        return add_boxes(table, rows, found | given, removed, self.config.keeps_pairs)

    def _ground(
        self, images: pa.ChunkedArray, rows: Mapping[int, Row]
    ) -> tuple[dict[int, Fields], dict[int, RemovalReasons]]:
        """Ground rows with the network; return by row the new fields, and the reasons of removed noun chunks."""
        fields: dict[int, Fields] = {}
        removed: dict[int, RemovalReasons] = {}
        for batch, results in self._run_network(images, rows):
            for i, result in zip(batch, results, strict=True):
                boxes, reasons = self.boxes_of(rows[i], result)
                fields[i] = {"boxes": boxes}
                if reasons:
                    removed[i] = reasons
                if self.config.check_expressions:
                    fields[i]["has_expression"] = self._confirmed(rows[i], boxes, result)
                if result.presence:
                    numbers = {n: phrase for phrase, (n, _) in enumerate(groundable(rows[i]["noun_chunks"]))}
                    presence = [result.presence.get(numbers.get(n, -1)) for n in range(len(rows[i]["noun_chunks"]))]
                    fields[i]["presence"] = presence
        return fields, removed

    def _confirmed(self, row: Row, boxes: Boxes, result: Grounded) -> list[bool]:
        """Return for each box whether it overlaps the best box of the expression of its noun chunk.

        A box has an expression in any case that is not longer than the chunk.
        """
        best: dict[int, Box | None] = {}
        for phrase, expression in enumerate(self._checked(row), len(spans_of(row))):
            found = min(((-d.score, d.box) for d in result.boxes if d.phrase == phrase), default=None)
            best[expression["chunk"]] = found and found[1]
        least = np.float32(self.config.min_expression_iou)

        def is_confirmed(box: Box, found: Box | None) -> bool:
            return found is not None and bool(np.float32(iou(found, box)) >= least)

        return [box["phrase"] not in best or is_confirmed(corners(box), best[box["phrase"]]) for box in boxes]

    def _checked(self, row: Row) -> list[dict[str, Any]]:
        """Return the expressions that are grounded too: those longer than their noun chunk."""
        if not self.config.check_expressions:
            return []
        chunks = dict(groundable(row["noun_chunks"]))
        return [e for e in row["ref_exps"] or () if (c := chunks.get(e["chunk"])) and span_of(e) != span_of(c)]

    def _spans(self, row: Row) -> list[Span]:
        """Return the phrases of a row that are grounded: noun chunks, then expressions."""
        return [*spans_of(row), *map(span_of, self._checked(row))]

    def boxes_of(self, row: Row, result: Grounded) -> tuple[Boxes, RemovalReasons]:
        """Convert the result of a grounder to the columns of a row.

        Args:
            row: a row with `noun_chunks`.
            result: result for its image; its first phrases are the noun chunks that are not removed.

        Returns:
            Boxes that `select` keeps, with the index of their noun chunk; index of a noun chunk -> why it is removed.
        """
        chunks = [n for n, _ in groundable(row["noun_chunks"])]  # phrase -> noun chunk
        found = [d for d in result.boxes if d.phrase < len(chunks)]
        selected = select(found, self.config.floor, self.config.nms_iou)
        boxes = [box_struct(chunks[d.phrase], d.box, d.score) for d in selected]
        return boxes, {chunks[n]: reason for n, reason in result.dropped.items() if n < len(chunks)}

    def bucket(self, row: Row) -> tuple[int, int]:
        """Return the bucket of the image of a row.

        Args:
            row: a row with `height` and `width`.

        Returns:
            `Grounder.bucket` of its size.
        """
        return self.grounder.bucket(*size_of(row))

    def _run_network(
        self, images: pa.ChunkedArray, rows: Mapping[int, Row]
    ) -> Iterator[tuple[list[int], list[Grounded]]]:
        """Yield each batch of rows with the results of the network.

        While the network runs, one thread prepares the next batch and another collects the previous results.
        """
        sizes = {i: size_of(row) for i, row in rows.items()}
        buckets = {i: self.bucket(row) for i, row in rows.items()}
        order = sorted(sizes, key=lambda i: (buckets[i], sizes[i], i))

        def prepare(batch: list[int]) -> tuple[list[int], Any]:
            pixels = [self.decode(images[i].as_py()) for i in batch]
            spans = [self._spans(rows[i]) for i in batch]
            return batch, self.grounder.prepare(pixels, [rows[i]["caption"] for i in batch], spans)

        def collect(item: tuple[list[int], Any]) -> tuple[list[int], list[Grounded]]:
            batch, output = item
            return batch, self.grounder.collect(output)

        prepared = prefetch(prepare, batches(order, buckets, self.config.batch_size))
        outputs = ((batch, self.grounder.forward(inputs)) for batch, inputs in prepared)
        return prefetch(collect, outputs)


def keep_given(table: pa.Table) -> pa.Table:
    """Keep the boxes of the input alone, for jobs without a grounder; rows without any are pairs.

    Args:
        table: a PARSED table.

    Returns:
        The GROUNDED table. No row is dropped.
    """
    rows = kept_rows(table)
    found = {i: {"boxes": given_boxes(row) if row["given_noun_chunks"] else []} for i, row in rows.items()}
    return add_boxes(table, rows, found, {}, keeps_pairs=True)


def kept_rows(table: pa.Table) -> dict[int, Row]:
    """Read the COLUMNS of the rows that are not dropped.

    Args:
        table: a PARSED table.

    Returns:
        Position -> values of the row, without its image.
    """
    kept = kept_indices(table)
    light = table.select(COLUMNS).take(pa.array(kept, pa.int64())).to_pylist()
    return dict(zip(kept, light, strict=True))


def add_boxes(
    table: pa.Table,
    rows: Mapping[int, Row],
    found: Mapping[int, Fields],
    removed: Mapping[int, RemovalReasons],
    keeps_pairs: bool = False,
) -> pa.Table:
    """Return the GROUNDED table of a PARSED one, given the new fields of its kept `rows`."""
    lacking = [] if keeps_pairs else [i for i in rows if not found[i]["boxes"]]
    drops = {i: why_dropped(rows[i]["noun_chunks"], removed.get(i, {})) for i in lacking}
    return drop_rows(add_columns(mark_removed(table, removed), GROUNDED, found), "ground", drops)


def size_of(row: Row) -> tuple[int, int]:
    """Return height and width of the image of a row, in pixels."""
    return row["height"] or 1, row["width"] or 1


def spans_of(row: Row) -> list[Span]:
    """Return the phrases of a row that are grounded.

    Args:
        row: a row with `noun_chunks`.

    Returns:
        Spans of the chunks that are not removed, as characters of `caption`.
    """
    return [span_of(chunk) for _, chunk in groundable(row["noun_chunks"])]


def span_of(item: Mapping[str, Any]) -> Span:
    """Return the characters of a noun chunk or an expression."""
    return item["start"], item["end"]


def groundable(chunks: Sequence[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Return the noun chunks that are not removed, each with its index."""
    return [(n, chunk) for n, chunk in enumerate(chunks) if chunk["removed"] is None]


def batches(indices: Sequence[int], buckets: Mapping[int, Any], size: int) -> Iterator[list[int]]:
    """Yield batches of at most `size` consecutive `indices`; all indices of a batch are in the same bucket."""
    for _, members in groupby(indices, key=lambda i: buckets[i]):
        same = list(members)
        yield from (same[start : start + size] for start in range(0, len(same), size))


def mark_removed(table: pa.Table, removed: Mapping[int, RemovalReasons]) -> pa.Table:
    """Store the reasons `removed` (row -> noun chunk -> reason) in the noun chunks of `table`."""
    if not removed:
        return table
    chunks = table["noun_chunks"].to_pylist()
    for i, reasons in removed.items():
        for n, reason in reasons.items():
            chunks[i][n]["removed"] = reason
    return set_column(table, "noun_chunks", pa.array(chunks, table.schema.field("noun_chunks").type))


def why_dropped(chunks: Sequence[dict[str, Any]], removed: RemovalReasons) -> Drop:
    """Return the reason to drop a row without boxes, from the noun chunks that the network could not ground.

    Args:
        chunks: all noun chunks of the row.
        removed: index of a chunk -> why the network could not ground it.

    Returns:
        `no_box` if the network looked for a phrase, else `ungroundable`.
    """
    if not chunks:
        return Drop("ungroundable", "no given phrase is found in the cleaned caption")
    n_phrases = sum(n not in removed for n, _ in groundable(chunks))
    if n_phrases:
        return Drop("no_box", f"{n_phrases} phrases")
    return Drop("ungroundable", ", ".join(sorted(set(removed.values()))) or "all given phrases name absent things")
