"""Counting over batches of arrow/: everything adds up in fixed memory, so that thousands of shards can be counted."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.status import KEPT

Array = NDArray[Any]

COLUMNS: Final = (
    "url", "status", "stage", "reason", "original_width", "original_height", "sha256",
    "caption", "tokens", "noun_chunks", "boxes", "box_scores", "clip_similarity",
)  # fmt: skip
MAX_TEXTS: Final = 500_000
"""Distinct texts a counter holds; beyond, the rarest half goes, so that the counts of rare texts become lower bounds."""


class Histogram:
    """Counts in fixed bins, for one or several series; what lies outside is counted in the outermost bin."""

    def __init__(self, edges: Array, *series: str) -> None:
        self.edges = edges
        self.counts = {name: np.zeros(len(edges) - 1, np.int64) for name in series}
        self.sums = dict.fromkeys(series, 0.0)

    def add(self, series: str, values: Array) -> None:
        values = values[np.isfinite(values)]
        bins = np.clip(np.searchsorted(self.edges, values, side="right") - 1, 0, len(self.edges) - 2)
        self.counts[series] += np.bincount(bins, minlength=len(self.edges) - 1)
        self.sums[series] += float(values.sum())

    def to_json(self) -> dict[str, Any]:
        n = {name: int(counts.sum()) for name, counts in self.counts.items()}
        return {
            "edges": [round(float(edge), 4) for edge in self.edges],
            "counts": {name: counts.tolist() for name, counts in self.counts.items()},
            "n": n,
            "mean": {name: round(self.sums[name] / n[name], 4) if n[name] else None for name in n},
        }


def make_histograms() -> dict[str, Histogram]:
    """Name -> empty histogram of everything that stats.json describes by one."""
    sides = 2.0 ** np.arange(3, 14.25, 0.25)
    return {
        "box_area_ratio": Histogram(np.linspace(0, 1, 51), "kept", "removed"),
        "boxes_per_image": Histogram(np.arange(1, 33), "images"),
        "caption_length": Histogram(np.arange(0, 1005, 5), "captions"),
        "grounding_score": Histogram(np.linspace(0, 1, 51), "kept", "removed"),
        "clip_cosine": Histogram(np.linspace(-1, 1, 101), "kept", "removed"),
        "clip_similarity": Histogram(np.linspace(-1, 1, 101), "images"),
        "image_side": Histogram(sides, "shorter", "longer"),
    }


class Totals:
    """What has been counted so far; `add` takes the next batch."""

    def __init__(self) -> None:
        self.histograms = make_histograms()
        self.drops: Counter[tuple[str, str]] = Counter()
        self.kept = 0
        self.phrases: Counter[str] = Counter()
        self.heads: Counter[str] = Counter()
        self.hosts: Counter[tuple[str, str]] = Counter()
        self.chunks: Counter[str | None] = Counter()  # by removal; None: given to the grounder
        self.boxes: Counter[str | None] = Counter()  # by removal; None: kept
        self.n_grounded = 0
        self._hashes: list[Array] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Count one batch with COLUMNS."""
        self._count_rows(batch)
        self._count_images(batch)
        captions = pc.utf8_length(batch["caption"].filter(pc.is_valid(batch["caption"])))
        self.histograms["caption_length"].add("captions", captions.to_numpy(zero_copy_only=False))
        self.histograms["clip_similarity"].add("images", floats(batch["clip_similarity"].drop_null()))
        self.chunks.update(pc.list_flatten(batch["noun_chunks"]).field("removed").to_pylist())
        self._count_boxes(batch.filter(pc.is_valid(batch["box_scores"])))
        for counter in (self.phrases, self.heads, self.hosts):
            prune(counter)

    def add_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Count the phrases and boxes of a shard whose rows are not at hand."""
        self.chunks.update({None: manifest["asked"], **manifest["removed"]["phrases"]})
        self.boxes.update({None: manifest["boxes"], **manifest["removed"]["boxes"]})
        self.n_grounded += manifest["phrases"]

    def _count_rows(self, batch: pa.RecordBatch) -> None:
        dropped = batch.filter(pc.not_equal(batch["status"], KEPT))
        self.kept += batch.num_rows - dropped.num_rows
        self.drops.update(zip(dropped["stage"].to_pylist(), dropped["reason"].to_pylist(), strict=True))
        failed = dropped.filter(pc.equal(dropped["stage"], "download"))
        self.hosts.update(
            (host_of(url), why)
            for url, why in zip(failed["url"].to_pylist(), failed["reason"].to_pylist(), strict=True)
        )

    def _count_images(self, batch: pa.RecordBatch) -> None:
        width, height = batch["original_width"].drop_null(), batch["original_height"].drop_null()
        self.histograms["image_side"].add("shorter", floats(pc.min_element_wise(width, height)))
        self.histograms["image_side"].add("longer", floats(pc.max_element_wise(width, height)))
        digits = "".join(value[:16] for value in batch["sha256"].drop_null().to_pylist())
        self._hashes.append(np.frombuffer(bytes.fromhex(digits), ">u8"))

    def _count_boxes(self, batch: pa.RecordBatch) -> None:
        boxes, verdicts = pc.list_flatten(batch["boxes"]), pc.list_flatten(batch["box_scores"])
        if len(boxes) != len(verdicts):
            raise ValueError(f"{len(boxes)} boxes have {len(verdicts)} verdicts")
        removed = verdicts.field("removed")
        self.boxes.update(removed.to_pylist())
        is_kept = removed.is_null().to_numpy(zero_copy_only=False)
        x_min, y_min, x_max, y_max = (floats(boxes.field(name)) for name in ("x_min", "y_min", "x_max", "y_max"))
        for name, values in (
            ("box_area_ratio", (x_max - x_min) * (y_max - y_min)),
            ("grounding_score", floats(boxes.field("score"))),
            ("clip_cosine", floats(verdicts.field("clip_cosine"))),
        ):
            self.histograms[name].add("kept", values[is_kept])
            self.histograms[name].add("removed", values[~is_kept])
        rows = pc.list_parent_indices(batch["boxes"]).to_numpy()[is_kept]
        per_row = np.bincount(rows, minlength=batch.num_rows)
        self.histograms["boxes_per_image"].add("images", per_row[per_row > 0].astype(float))
        self._count_phrases(batch, rows, boxes.field("phrase").to_numpy()[is_kept])

    def _count_phrases(self, batch: pa.RecordBatch, rows: Array, phrases: Array) -> None:
        """Texts and head nouns of the phrases that have a kept box, each phrase once."""
        pairs = np.unique(np.stack([rows, phrases], axis=1), axis=0) if len(rows) else np.zeros((0, 2), np.int64)
        self.n_grounded += len(pairs)
        chunks, tokens = pc.list_flatten(batch["noun_chunks"]), pc.list_flatten(batch["tokens"])
        taken = chunks.take(pa.array(first_items(batch["noun_chunks"])[pairs[:, 0]] + pairs[:, 1]))
        captions = batch["caption"].to_pylist()
        spans = zip(pairs[:, 0].tolist(), taken.field("start").to_pylist(), taken.field("end").to_pylist(), strict=True)
        self.phrases.update(captions[row][start:end].lower() for row, start, end in spans)
        roots = taken.field("root").to_numpy()
        heads = (first_items(batch["tokens"])[pairs[:, 0]] + roots)[roots >= 0]
        self.heads.update(tokens.field("lemma").take(pa.array(heads)).to_pylist())

    def duplicates(self) -> dict[str, int]:
        """Images that arrived, how many of them are distinct by SHA-256, and how many repeat another one, in any shard."""
        hashes = np.concatenate([*self._hashes, np.zeros(0, ">u8")])
        distinct = len(np.unique(hashes))
        return {"images": len(hashes), "distinct": distinct, "repeated": len(hashes) - distinct}


def floats(values: pa.Array) -> Array:
    """As float64, null as NaN."""
    return values.cast(pa.float64()).to_numpy(zero_copy_only=False)


def first_items(lists: pa.ListArray) -> Array:
    """For each row, where its items begin in the flattened lists."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    return np.concatenate([[0], np.cumsum(lengths)])[:-1].astype(np.int64)


def host_of(url: str | None) -> str:
    """The host of an address, as far as it has one."""
    try:
        return urlsplit(url or "").hostname or "(no host)"
    except ValueError:
        return "(no host)"


def prune(counter: Counter[Any]) -> None:
    """Forget the rarest half of a counter that holds more than MAX_TEXTS."""
    if len(counter) > MAX_TEXTS:
        kept = counter.most_common(MAX_TEXTS // 2)
        counter.clear()
        counter.update(dict(kept))
