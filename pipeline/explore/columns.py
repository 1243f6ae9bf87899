"""The columns of the index: what the page filters by, computed from the batches of arrow/ without a loop over rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.summary.totals import asked_phrases, first_items, host_of, labels
from schemas.manifest import Provenance, ThresholdValues, has_grounder
from schemas.scores import BOX_SCORES, ROW_COLUMNS, ScoreEntry
from schemas.status import BOX_REMOVALS

SOURCE_COLUMNS: Final = (
    *("key", "source", "url", "caption", "caption_original", "status", "stage", "reason"),
    *("width", "height", "original_width", "original_height", "tokens", "noun_chunks"),
    *("boxes", "box_scores", *ROW_COLUMNS, "given_chunks"),
    *(score.column for score in BOX_SCORES if score.of == "phrase"),
)
"""Columns of arrow/ that the index is made of, besides `image`."""
WORDS: Final = ("reason", "host", "source", "phrase", "label")
"""Columns of the index that hold the number of a word."""
URL_START: Final = "[^/?#]*//[^/?#]*"
REMOVALS: Final = (None, *BOX_REMOVALS)
NO_CROP: Final = -1
"""The side of a box whose crop has no pixels: it is removed with every threshold."""
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


@dataclass
class Words:
    """The distinct values of each column of WORDS; a value is stored as its number, null as -1."""

    numbers: dict[str, dict[str, int]] = field(default_factory=lambda: {name: {} for name in WORDS})

    def encode(self, name: str, values: pa.Array) -> Ints:
        """Return the numbers of string values; new values get the next ones."""
        found, encoded = self.numbers[name], values.dictionary_encode()
        known = [found.setdefault(word, len(found)) for word in encoded.dictionary.to_pylist()]
        return np.array([*known, -1], np.int32)[encoded.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)]

    def lists(self) -> dict[str, list[str]]:
        """Return the values of each column in the order of their numbers."""
        return {name: list(found) for name, found in self.numbers.items()}


@dataclass
class IndexRows:
    """Consecutive rows of the index with their boxes: columns of `rows` and `boxes`, and one caption a row."""

    rows: dict[str, pa.Array]
    boxes: dict[str, pa.Array]
    captions: list[str]


def index_rows(
    batch: pa.RecordBatch, first_row: int, words: Words, provenance: Provenance, has_image: pa.Array
) -> IndexRows:
    """Return the columns of a batch of SOURCE_COLUMNS, whose first row is the `first_row`-th of the output."""
    captions = pc.fill_null(pc.coalesce(batch["caption"], batch["caption_original"]), "")
    reasons = pc.binary_join_element_wise(batch["stage"], batch["reason"], ":")
    rows = {
        "key": batch["key"],
        "reason": words.encode("reason", pc.fill_null(reasons, "kept")),
        "host": words.encode("host", hosts(batch["url"])),
        "source": words.encode("source", batch["source"]),
        **{name: pc.fill_null(batch[name], 0) for name in ("width", "height", "original_width", "original_height")},
        **{name: batch[name] for name in ROW_COLUMNS},
        "asked": asked_phrases(batch, has_grounder(provenance)).astype(np.int32),
        "has_image": pc.cast(has_image, pa.uint8()),
    }
    texts = captions.to_pylist()
    boxes = box_columns(batch, first_row, words, provenance["thresholds"], texts)
    return IndexRows(
        {name: as_array(values) for name, values in rows.items()}, boxes, [one_line(text) for text in texts]
    )


def hosts(urls: pa.StringArray) -> pa.Array:
    """Return the host name of each URL as `host_of` does, which is called once for each distinct start of a URL."""
    starts = pc.struct_field(pc.extract_regex(urls, f"^(?P<start>{URL_START})"), "start").dictionary_encode()
    names = pa.array([*map(host_of, starts.dictionary.to_pylist()), host_of(None)], pa.string())
    return names.take(starts.indices.fill_null(len(names) - 1))


def one_line(text: str) -> str:
    """Replace line feeds, which separate captions in the index."""
    return text.replace("\n", " ")


def box_columns(
    batch: pa.RecordBatch, first_row: int, words: Words, thresholds: ThresholdValues, captions: list[str]
) -> dict[str, pa.Array]:
    """Return the columns of the measured boxes of a batch, in the order of their rows."""
    is_scored = pc.and_(pc.is_valid(batch["boxes"]), pc.is_valid(batch["box_scores"]))
    numbers, batch = np.flatnonzero(is_scored.to_numpy(zero_copy_only=False)), batch.filter(is_scored)
    place = pc.list_parent_indices(batch["boxes"]).to_numpy(zero_copy_only=False)
    row, box, measured = numbers[place], fields(batch["boxes"].flatten()), fields(batch["box_scores"].flatten())
    chunks = first_items(batch["noun_chunks"])[place] + box["phrase"].to_numpy()
    chunk = {name: values.take(pa.array(chunks)) for name, values in fields(batch["noun_chunks"].flatten()).items()}
    spans = zip(row.tolist(), chunk["start"].to_pylist(), chunk["end"].to_pylist(), strict=True)
    phrases = pa.array([captions[i][start:end] for i, start, end in spans], pa.string())
    nouns = labels([captions[i] for i in numbers.tolist()], batch["tokens"], place, chunk["root"].to_numpy())
    width, height = (pc.fill_null(batch[name], 0).to_numpy()[place] for name in ("width", "height"))
    corners = {name: box[name] for name in ("x_min", "y_min", "x_max", "y_max")}
    edges = {name: values.to_numpy().astype(np.float64) for name, values in corners.items()}
    columns = {
        "row": (row + first_row).astype(np.int32),
        "phrase": words.encode("phrase", phrases),
        "label": words.encode("label", pa.array(nouns, pa.string())),
        "chunk": box["phrase"],
        **corners,
        **{score.column: box_score(score, batch, place, box, measured) for score in BOX_SCORES},
        "side": box_sides(edges, width, height, thresholds["size_rule"]),
        "removed": removals(measured["removed"]),
    }
    return {name: as_array(values) for name, values in columns.items()}


def box_score(
    score: ScoreEntry, batch: pa.RecordBatch, place: Ints, box: Mapping[str, pa.Array], measured: Mapping[str, pa.Array]
) -> pa.Array:
    """Return a score of each of m boxes, null for one without it. `place` [m]: the row of each box in the batch."""
    if score.of != "phrase":
        return (box if score.of == "box" else measured)[score.column]
    phrase, lists = box["phrase"].to_numpy(), batch[score.column]
    has_none = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()[place] <= phrase
    return pc.list_flatten(lists).take(pa.array(first_items(lists)[place] + phrase, mask=has_none))


def box_sides(corners: Mapping[str, Floats], width: npt.NDArray[np.int32], height: npt.NDArray[np.int32], rule: str
              ) -> npt.NDArray[np.int32]:  # fmt: skip
    """Return the largest `score.min_side_px` with which each box passes the filter by size, as `measure_box` applies it.

    `corners` are fractions of `width` and `height`, those of the stored image in pixels; `rule` is `score.size_rule`.
    """
    x = [corners[name] * width for name in ("x_min", "x_max")]
    y = [corners[name] * height for name in ("y_min", "y_max")]
    columns, rows = np.trunc(x[1]) - np.trunc(x[0]), np.trunc(y[1]) - np.trunc(y[0])
    box_width = (corners["x_max"] - corners["x_min"]) * width
    box_height = (corners["y_max"] - corners["y_min"]) * height
    match rule:
        case "area":  # area >= side ** 2
            side = floor_root(box_width * box_height)
        case "side":
            side = np.floor(np.minimum(box_width, box_height))
        case _:  # released: columns * rows > side ** 2, both integers
            side = floor_root(columns * rows - 1)
    return np.where((columns > 0) & (rows > 0), side, NO_CROP).astype(np.int32)


def floor_root(values: Floats) -> Floats:
    """Return the largest integer whose square is at most the value, exactly; -1 for negative values."""
    root = np.floor(np.sqrt(np.maximum(values, 0.0)))
    root -= root * root > values
    root += (root + 1) * (root + 1) <= values
    return np.where(values < 0, -1.0, root)


def removals(reasons: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the position of each reason in REMOVALS; 0 for a kept box."""
    return pc.fill_null(pc.index_in(reasons, pa.array(REMOVALS, pa.string())), 0).to_numpy().astype(np.uint8)


def fields(structs: pa.StructArray) -> Mapping[str, pa.Array]:
    """Return the fields of an array of structs by name."""
    return dict(zip([item.name for item in structs.type], structs.flatten(), strict=True))


def as_array(values: pa.Array | npt.NDArray[np.generic]) -> pa.Array:
    """Return an Arrow array; missing numbers become NaN, which the page reads from the values."""
    array = values if isinstance(values, pa.Array) else pa.array(values)
    return pc.fill_null(array, float("nan")) if pa.types.is_floating(array.type) else array
