"""Cached features as training data: memory-mapped shards that `hypergrit features` wrote, in the order of all data.

A batch holds the same pairs as one of the training shards, with features in place of pixels and of token ids. Each choice
(view, box) depends only on the seed and on the position of the sample. Rows are copied from the files when their batch
is built; the files stay on the disk.

Shapes: b pairs, m boxes, v views, p patches, f and g widths of the image and the text tower, l tokens.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypergrit_common.arrow_sizes import open_arrow_file
from hypergrit_common.errors import UserError
from hypergrit_common.locations import Locations, split_locations
from hypergrit_common.shards import list_shards
from schemas.features import FOLDER, FeatureRecord, feature_schema
from trainer.batch import Batch, Stream
from trainer.data.batch_builder import BatchReport
from trainer.data.config import DataConfig
from trainer.data.feature_record import read_records
from trainer.data.listing import ShardVersion, list_facts, version_of
from trainer.data.order import Draw, Order, mix
from trainer.data.text_streams import Texts, TextStream, needed_streams
from trainer.text.base import TextTokenizer, pad
from trainer.text.relations import RELATIONS
from trainer.text.syntax import NONE, WordTree, collate_trees

Halves = NDArray[np.float16]
Numbers = NDArray[np.int64]

IMAGE_VIEW: Final = 1
BOX: Final = 2
BOX_VIEW: Final = 3
"""Numbers that tell the choices of a position from each other."""
MAX_BOXES: Final = 1 << 16
"""More than the boxes of a sample, so that each box of a position has a number."""
SAMPLED: Final = 8192
"""Samples from which the mean and the standard deviation of the features are computed."""
VIEWED: Final = frozenset({"image", "patches", "box_image"})
"""Columns with all views of an image."""
PARALLEL: Final = (
    ("box_image", "phrase", "box_text", "equal"),
    ("label", "depth", "label_text"),
    ("initial", "contextual", "word_of_token"),
    ("head", "relation"),
    ("query", "query_text"),
)
"""Lists of a sample whose items belong together."""
MAX_LEVELS: Final = 1 << 10
"""More than the levels of any taxonomy."""
ITEMS: Final = {"boxes": ("box_image", "a box"), "levels": ("label_text", "labels of a taxonomy")}
"""Lists of which a sample has an item if the model needs it. Features of old versions have no labels."""


class Shard(NamedTuple):
    """A shard in memory-mapped arrays, by column."""

    table: pa.RecordBatch
    # Features [n v f] of images, [n 1 g] of texts, `equal` [n 1 1]; of lists, those of all items.
    arrays: dict[str, Halves]
    starts: dict[str, NDArray[np.int32]]  # [n+1] first item of each sample, of such lists


def open_shard(url: str, record: Mapping[str, Any]) -> Shard:
    """Map a shard of features with this record into memory. Raises UserError if it is damaged or has other columns."""
    try:
        views, found = record["settings"]["views"], Shard(open_arrow_file(pa.memory_map(url)).get_batch(0), {}, {})
        found.table.validate(full=True)
        check_columns(found.table, record)
        for name, column in zip(found.table.schema.names, found.table.columns, strict=True):
            if pa.types.is_list(column.type):
                found.starts[name] = column.offsets.to_numpy() if len(column) else np.zeros(1, np.int32)
                column = column.flatten()
                if column.null_count:
                    raise ValueError(f"its column {name} lacks items")
            if pa.types.is_fixed_size_list(column.type):
                found.arrays[name] = matrix(column, views if name in VIEWED else 1)
            if pa.types.is_boolean(column.type):
                found.arrays[name] = column.to_numpy(zero_copy_only=False)[:, None, None]
        check_lists(found)
        return found
    except (OSError, ValueError, LookupError, AttributeError, OverflowError, pa.ArrowException) as error:
        raise UserError(f"{url} cannot be read: {error}; remove its manifest, and write the features again") from error


def check_columns(table: pa.RecordBatch, record: Mapping[str, Any]) -> None:
    """Raise ValueError, KeyError or OverflowError if a shard of features lacks a column or has another type."""
    settings = record["settings"]
    image, text = (record["training"]["model"][name]["kwargs"] for name in ("image", "text"))
    n_patches = image["patches"] if settings.get("patches") else 0
    width = settings["views"] * image["width"]
    for field_ in feature_schema(width, text["width"], bool(settings["tokens"]), n_patches):
        is_needed = field_.name in table.schema.names or field_.name not in ("label", "depth", "label_text")
        if is_needed and (table[field_.name].type != field_.type or table[field_.name].null_count):
            raise ValueError(f"its column {field_.name} is not of type {field_.type}")


def check_lists(shard: Shard) -> None:
    """Raise ValueError for items that belong together, but whose lists differ, and for numbers out of range."""
    for names in PARALLEL:
        first, *others = (shard.starts.get(name, np.full(1, -1)) for name in names)
        if not all(np.array_equal(first, starts) for starts in others) or first[0] > 0:
            raise ValueError(f"its lists {', '.join(names)} do not have the same lengths")
        if np.diff(first).max(initial=0) >= MAX_BOXES:
            raise ValueError(f"a sample has {MAX_BOXES:,} or more items of {names[0]}")
    words = np.diff(shard.starts.get("head", np.zeros(1)))
    limits: dict[str, tuple[int, Any]] = {
        "depth": (0, MAX_LEVELS),
        "relation": (0, len(RELATIONS)),
        "head": (0, words),
        "word_of_token": (NONE, words),
    }
    for name in limits.keys() & shard.starts.keys():
        least, end = limits[name]
        numbers = shard.table.column(name).flatten().to_numpy()
        if end is words:  # those of the sample of each number
            end = np.repeat(words, np.diff(shard.starts[name]))
        if not ((least <= numbers) & (numbers < end)).all():
            raise ValueError(f"its column {name} has a number out of range")


def matrix(column: pa.FixedSizeListArray, views: int = 1) -> Halves:
    """The rows [n v f] of a column, without a copy."""
    width = column.type.list_size
    return cast(Halves, column.flatten().to_numpy(zero_copy_only=True).reshape(len(column), views, width // views))


def usable_rows(shard: Shard, needs: frozenset[str]) -> NDArray[np.intp] | None:
    """Rows of a shard that a model can use, such as those with a box. None: all."""
    none = np.zeros(shard.table.num_rows + 1, np.int32)
    items = (needs - {"boxes"} if "pairs" in needs else needs) & ITEMS.keys()
    found = [np.diff(shard.starts.get(ITEMS[need][0], none)) > 0 for need in items]
    return np.flatnonzero(np.logical_and.reduce(found)) if found else None


class FeatureStore:
    """The samples of feature shards, numbered in their order, as `trainer.data.index.SampleIndex` numbers those of tars."""

    damaged: Sequence[Any] = ()

    def __init__(self, features: Locations, needs: frozenset[str]) -> None:
        """List the shards. Raises UserError for features that are incomplete, or that lack what the model `needs`."""
        if "captions" in needs:
            raise UserError("features hold one caption of each sample; set data.captions=first, or train on shards")
        folders = split_locations(features)
        records = read_records(features)
        settings = records[0]["settings"]
        self.views, self.tokens = int(settings["views"]), settings["tokens"]
        if "parse" in needs and self.tokens is None:
            raise UserError(f"{folders[0]} has no states of tokens, which the model needs; write it with tokens=true")
        if "queries" in needs and not settings.get("patches"):
            raise UserError(f"{folders[0]} has no states of patches, which the model needs; write it with patches=true")
        self.urls: list[str] = []
        self.versions: list[ShardVersion] = []
        self.sets: list[int] = []  # shards of each folder
        for folder, record in zip(folders, records, strict=True):
            self._add_folder(folder, record)
        self.shards = [open_shard(url, records[0]) for url in self.urls]
        self.usable = [usable_rows(shard, needs) for shard in self.shards]
        self.counts = [s.table.num_rows if u is None else len(u) for s, u in zip(self.shards, self.usable, strict=True)]
        self.ends = np.cumsum(self.counts, dtype=np.int64)
        self.n_samples = int(self.ends[-1])
        n_boxes = sum(int(shard.starts["box_image"][-1]) for shard in self.shards)
        if not self.n_samples or ("boxes" in needs and not n_boxes):
            wanted = " and ".join(ITEMS[need][1] for need in sorted(needs & ITEMS.keys())) or "features"
            raise UserError(
                f"{features} has no sample with {wanted}, which the model needs; write it from other shards"
            )
        self.mean_bytes = sum(version.size for version in self.versions) / self.n_samples

    def _add_folder(self, folder: str, record: FeatureRecord) -> None:
        wanted = math.ceil(record["n_samples"] / record["settings"]["rows_per_shard"])
        found = [facts for facts in list_facts(list_shards(folder, FOLDER, ".arrow")) if facts.recorded]
        if len(found) != wanted:
            raise UserError(
                f"{folder} has {len(found)} of {wanted} files of features; repeat the command that writes it"
            )
        for facts in found:
            if facts.recorded and facts.recorded["bytes"] != facts.size:
                raise UserError(f"{facts.url} differs from its manifest; repeat the command that writes it")
        self.versions += map(version_of, found)
        self.urls += [facts.url for facts in found]
        self.sets.append(len(found))

    @property
    def fingerprint(self) -> str:
        """A hash of the features and of the samples that the model uses. Moving the files does not change it."""
        facts = [(version.name, version.sha256, n) for version, n in zip(self.versions, self.counts, strict=True)]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def locate(self, samples: Numbers) -> "Rows":
        """The places of samples."""
        shard = self.ends.searchsorted(samples, side="right")
        row = samples - (self.ends[shard] - np.asarray(self.counts)[shard])
        for number in np.unique(shard):
            if (usable := self.usable[number]) is not None:
                row[shard == number] = usable[row[shard == number]]
        return Rows(self, shard, row)

    def sample(self) -> tuple[Tensor, Tensor]:
        """Features [n f] and [n g] of images and captions, evenly from all samples, for their mean and deviation."""
        rows = self.locate(np.linspace(0, self.n_samples - 1, min(self.n_samples, SAMPLED)).astype(np.int64))
        return rows.take("image", np.zeros(len(rows.row), np.int64)), rows.take("text")


@dataclass(frozen=True)
class Rows(Sequence[str]):
    """Places of samples, or of boxes. As a sequence, the keys of the samples, which are read only when they are shown."""

    store: FeatureStore
    shard: Numbers  # [b]
    row: Numbers  # [b] of the samples or of the boxes of its shard

    @cached_property
    def parts(self) -> list[tuple[Shard, NDArray[np.intp]]]:
        """The shards with the indices of their rows."""
        return [(self.store.shards[number], np.flatnonzero(self.shard == number)) for number in np.unique(self.shard)]

    def take(self, name: str, views: Numbers | None = None) -> Tensor:
        """Copy the rows [b f] of an array of `Shard`."""
        out: Halves | None = None
        for shard, places in self.parts:
            array = shard.arrays[name]
            rows = self.row[places]
            if views is not None:
                rows = rows * array.shape[1] + views[places]
            found = array.reshape(-1, array.shape[-1]).take(rows, axis=0)
            if len(places) == len(self.row):
                return torch.from_numpy(found)
            out = np.empty((len(self.row), found.shape[1]), found.dtype) if out is None else out
            out[places] = found
        array = self.store.shards[0].arrays[name]
        return torch.from_numpy(np.empty((0, array.shape[-1]), array.dtype) if out is None else out)

    def values(self, column: str, of_items: bool = False) -> list[Any]:
        """The values of a column of the samples, or of the items in a column of lists."""
        found: list[Any] = [None] * len(self.row)
        for shard, places in self.parts:
            array = shard.table.column(column)
            array = (array.flatten() if of_items else array).take(pa.array(self.row[places]))
            for place, value in zip(places, array.to_pylist(), strict=True):
                found[place] = value
        return found

    def items(self, column: str = "box_image") -> tuple[Numbers, Numbers]:
        """First item of each sample in a column of lists, by default its boxes, and the number of its items."""
        first, n = np.empty_like(self.row), np.empty_like(self.row)
        for shard, places in self.parts:
            starts = shard.starts[column]
            first[places] = starts[self.row[places]]
            n[places] = starts[self.row[places] + 1] - first[places]
        return first, n

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, index: Any) -> Any:
        return self.values("key")[index]


Boxes = tuple[Numbers, Numbers, Rows]
"""The sample of each box of a batch, its place there, and the boxes."""


@dataclass(kw_only=True)
class FeatureBuilder:
    """Builds the batch at a given position, as `trainer.data.batch_builder.BatchBuilder` does from tars."""

    config: DataConfig
    index: FeatureStore
    order: Order
    tokenizer: TextTokenizer
    needs: frozenset[str]

    def plan_reads(self, batch: int, world_size: int, workers: int) -> None:
        """Nothing is read ahead: the system keeps the pages of the files."""

    def build(self, position: int, draw: Draw) -> tuple[Batch, BatchReport]:
        """Return the batch of the samples of `draw`, and a report."""
        rows = self.index.locate(draw.samples)
        at = position + np.arange(len(rows), dtype=np.int64)
        report = BatchReport(counts=Counter(samples=len(rows)))
        trees = self.trees(rows) if "parse" in self.needs else None
        if self.config.texts == "tokens":
            text = self.token_ids(rows.values("caption"), trees)
        else:
            text = rows.take("text") if trees is None else self.states(rows)
        length = text.shape[1] if self.config.texts == "tokens" else 0
        streams = {"text": Stream(text, "text", syntax=None if trees is None else collate_trees(trees, length))}
        chosen = self.choose(rows, at) if "boxes" in self.needs else None
        kinds = needed_streams(self.needs)
        texts = self.texts(rows, chosen) if kinds else []
        streams |= {name: self.stream(kind, rows, texts) for name, kind in kinds.items()}
        views = self.draw(at, IMAGE_VIEW, self.index.views)
        images = rows.take("image", views)
        if "queries" in self.needs:  # packed states [b 1+p f] (trainer.encoders.cached)
            images = torch.cat([images, rows.take("patches", views)], dim=1).unflatten(1, (-1, images.shape[1]))
        streams["image"] = Stream(images, "image")
        if chosen:
            streams |= self.boxes(chosen, at, report.counts)
        return Batch(streams=streams, keys=rows), report

    def token_ids(self, texts: Sequence[str], trees: Sequence[WordTree] | None = None) -> Tensor:
        """Token ids [b l] of texts, truncated to the context. Raises UserError if they are not those of their trees."""
        ids = [self.tokenizer.truncate(self.tokenizer.encode(text)) for text in texts]
        if trees is not None and [*map(len, ids)] != [len(tree.word_of_token) for tree in trees]:
            raise UserError(
                f"the parses of {self.config.features} belong to the tokens of its frozen text tower: give the tokenizer and "
                "the model.text.context_length of that, set data.texts=features, or train on shards"
            )
        return pad(ids, self.tokenizer.pad_id, self.config.text_multiple or 1, self.tokenizer.context_length)

    def draw(self, at: Numbers, choice: int, n: Numbers | int) -> Numbers:
        """A number below n for each position."""
        if isinstance(n, int) and n == 1:
            return np.zeros_like(at)
        seed = mix(np.array([self.config.seed], np.uint64))
        found = mix(at.astype(np.uint64) * np.uint64(4) + np.uint64(choice) + seed)
        return (found % np.asarray(n).astype(np.uint64)).astype(np.int64)

    def choose(self, rows: Rows, at: Numbers) -> Boxes:
        """The boxes of a batch: one of each sample that has some, drawn by its position, or all."""
        (first, n), is_one = rows.items(), self.config.boxes == "random"
        limit = 1 if is_one else self.config.max_boxes
        counts = n if limit is None else np.minimum(n, limit)
        owner = np.repeat(np.arange(len(counts)), counts)
        chosen = place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        if is_one or self.config.box_order == "random":  # from a random one on
            chosen = (place + self.draw(at, BOX, np.maximum(n, 1))[owner]) % n[owner]
        chosen = first[owner] + chosen
        return owner, place, Rows(self.index, rows.shard[owner], chosen)

    def boxes(self, chosen: Boxes, at: Numbers, counts: Counter[str]) -> dict[str, Stream]:
        """The streams of the boxes of a batch and of their phrases, which are counted."""
        owner, place, boxes = chosen
        views = self.draw(MAX_BOXES * at[owner] + place, BOX_VIEW, self.index.views)
        if self.config.texts == "features":
            text = boxes.take("box_text")
        else:
            text = self.token_ids(boxes.values("phrase", of_items=True))
        equal = boxes.take("equal")[:, 0]
        counts.update(boxes=len(equal), equal_phrases=int(equal.sum()))
        owners = torch.from_numpy(owner) if self.config.boxes == "all" or "pairs" in self.needs else None
        return {
            "box_image": Stream(boxes.take("box_image", views), "image", owners),
            "box_text": Stream(text, "text", owners, equal=equal),
        }

    def texts(self, rows: Rows, chosen: Boxes | None) -> list[Texts]:
        """The texts of the samples of a batch."""
        phrases = [list[str]() for _ in range(len(rows))]
        levels = [dict[int, str]()] * len(rows)
        if chosen:
            for number, phrase in zip(chosen[0], chosen[2].values("phrase", of_items=True), strict=True):
                phrases[number].append(phrase)
        if "levels" in self.needs:
            levels = [
                dict(zip(*found, strict=True)) for found in zip(rows.values("depth"), rows.values("label"), strict=True)
            ]
        known = ([found.get(depth) for depth in range(max(found, default=-1) + 1)] for found in levels)
        return [*map(Texts, rows.values("caption"), phrases, known)]

    def stream(self, kind: TextStream, rows: Rows, texts: Sequence[Texts]) -> Stream:
        """A stream of further texts of a batch."""

        def encode(found: Sequence[tuple[int, str]]) -> Tensor:
            if self.config.texts == "tokens":
                return self.token_ids([text for _, text in found])
            if not kind.column:
                raise UserError("features do not hold the texts of a stream of a model's own; set data.texts=tokens")
            column = f"{kind.column}_text"
            first, _ = rows.items(column)
            stored, owner = rows.values(kind.column), np.array([number for number, _ in found], np.int64)
            if lacking := [number for number, text in found if text not in stored[number]]:
                url = self.index.urls[rows.shard[lacking[0]]]
                raise UserError(f"{url} lacks a {kind.column} of {rows[lacking[0]]}; write the features again")
            items = first[owner] + np.array([stored[number].index(text) for number, text in found], np.int64)
            return Rows(self.index, rows.shard[owner], items).take(column)

        return kind.stream(texts, encode)

    def states(self, rows: Rows) -> Tensor:
        """Packed states [b 1+2l g] of captions (trainer.encoders.cached)."""
        text = rows.take("text")
        initial, contextual = (self.padded(rows, name, text.shape[1]) for name in ("initial", "contextual"))
        return torch.cat([text[:, None], initial, contextual], dim=1)

    def padded(self, rows: Rows, name: str, width: int) -> Tensor:
        """States of tokens [b l g], padded with zeros."""
        found: list[Halves] = [np.empty((0, width), np.float16)] * len(rows)
        for shard, places in rows.parts:
            starts, states = shard.starts[name], shard.arrays[name][:, 0]
            for place, row in zip(places, rows.row[places], strict=True):
                found[place] = states[starts[row] : starts[row + 1]]
        out = np.zeros((len(rows), max(map(len, found)), width), np.float16)
        for place, states in enumerate(found):
            out[place, : len(states)] = states
        return torch.from_numpy(out)

    def trees(self, rows: Rows) -> list[WordTree]:
        """The trees of captions."""
        parts = zip(*(rows.values(name) for name in ("word_of_token", "head", "relation")), strict=True)
        return [WordTree(word_of_token=tuple(w), head=tuple(h), relation=tuple(r)) for w, h, r in parts]
