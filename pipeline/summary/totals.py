"""Count the rows of arrow/ batch by batch, in a form that can be merged."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hypergrit_common.text import is_whole
from pipeline.stages.parse.labels import label_of
from pipeline.stages.parse.types import Token
from pipeline.summary.histogram import Distinct, Frequent, Histogram, make_histograms
from schemas.manifest import Counts, Manifest
from schemas.scores import CROP_SCORES, ROW_COLUMNS, SCORES, SHARE
from schemas.stats import DuplicateCounts, Places
from schemas.status import KEPT, ROW_DROPPED, STAGES, lost_boxes

Array = NDArray[Any]

COLUMNS: Final = (
    "url", "status", "stage", "reason", "detail", "original_width", "original_height", "sha256",
    "caption", "tokens", "noun_chunks", "ref_exps", "boxes", "has_expression", "box_scores", *ROW_COLUMNS,
    "caption_original", "given_noun_chunks", "given_chunks",
)  # fmt: skip
OPTIONAL: Final = {score.histogram for score in SCORES} - {"grounding_score", "clip_cosine", "clip_similarity"}
"""Histograms that are left out without values."""
NO_FAILURES: Final = ("taken_down", "duplicate")
"""Reasons of the download that say nothing about a host."""
HOST: Final = r"^[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^/?#]*@)?\[?(?P<host>[^/?#:\]]*|[^/?#\]]*)(?:[\]:/?#]|$)"
"""Host name of a URL, in the syntax of RE2; it need not agree with `host_of` for malformed URLs."""
HTTP_STATUS: Final = re.compile(r"\d{3}")
COUNTERS: Final = ("drops", "http_statuses", "chunks", "boxes", "given", "null_captions")
NULL_TEXTS: Final = ("nan", "NaN", "NULL", "null", "None", "\\N", "<NA>", "N/A")
"""Texts that programs write for a missing value; a caption that is one of them describes no picture."""
LIST_TEXT: Final = r"""^\s*[\[{]\s*(["']).*["']\s*[\]}]\s*$"""
"""What CSVs of pandas have in place of a list of captions, or of an object."""
SKETCHES: Final = ("phrases", "heads", "kept_heads", "hosts", "host_rows")


class Totals:
    """Running totals over the batches passed to `add`, the manifests passed to `add_manifest`, and other totals."""

    def __init__(self) -> None:
        self.histograms = make_histograms()
        self.drops: Counter[tuple[str, str]] = Counter()
        self.kept = 0
        self.phrases = Frequent()
        self.heads = Frequent()
        self.kept_heads = Frequent()  # of all chunks that were not removed
        self.removed: dict[str, Frequent] = {}  # removal reason -> texts of chunks
        self.hosts = Frequent()  # `reason host` of the rows that download dropped
        self.host_rows = Frequent()  # of all rows with a URL
        self.http_statuses: Counter[str] = Counter()
        self.null_captions: Counter[str] = Counter()
        self.chunks: Counter[str | None] = Counter()  # by removal reason; None: not removed
        self.boxes: Counter[str | None] = Counter()  # by removal reason; None: kept
        self.given: Counter[str] = Counter()  # boxes, rows, split (schemas.stats.BoxCounts)
        self.n_grounded = 0
        self.n_unconfirmed = 0  # kept boxes without an expression
        self.images = Distinct()

    def add(self, batch: pa.RecordBatch, has_grounder: bool = True) -> None:
        """Count one batch, which has COLUMNS. `has_grounder`: it looked for the phrases of rows without given boxes."""
        self._count_rows(batch)
        self._count_images(batch)
        captions = batch["caption_original"]
        self.null_captions.update(captions.filter(pc.is_in(captions, pa.array(NULL_TEXTS))).to_pylist())
        if n_lists := pc.sum(pc.match_substring_regex(captions, LIST_TEXT)).as_py():
            self.null_captions["['...']"] += n_lists
        captions = pc.utf8_length(batch["caption"].filter(pc.is_valid(batch["caption"])))
        self.histograms["caption_length"].add("captions", captions.to_numpy(zero_copy_only=False))
        for name, score in ROW_COLUMNS.items():
            self.histograms[score.histogram].add("images", floats(batch[name].drop_null()))
        self.chunks.update(tally(pc.list_flatten(batch["noun_chunks"]).field("removed")))
        self._count_chunks(batch)
        self._count_given(batch.filter(pc.greater(pc.list_value_length(batch["given_noun_chunks"]), 0)))
        self._count_boxes(batch.filter(pc.is_valid(batch["box_scores"])), has_grounder)

    def add_manifest(self, manifest: Manifest) -> None:
        """Count the phrases and boxes of a shard without arrow/."""
        self.chunks[None] += manifest["asked"]
        self.chunks.update(manifest["removed"]["phrases"])
        self.boxes[None] += manifest["boxes"]
        self.boxes.update(manifest["removed"]["boxes"])
        self.n_grounded += manifest["phrases"]
        self.n_unconfirmed += manifest.get("unconfirmed", 0)

    def merge(self, other: "Totals") -> None:
        """Add other totals."""
        for name, histogram in self.histograms.items():
            histogram.merge(other.histograms[name])
        self.kept += other.kept
        self.n_grounded += other.n_grounded
        self.n_unconfirmed += other.n_unconfirmed
        self.images.merge(other.images)
        for name in COUNTERS:
            getattr(self, name).update(getattr(other, name))
        for name in SKETCHES:
            getattr(self, name).merge(getattr(other, name))
        for reason, texts in other.removed.items():
            self.removed.setdefault(reason, Frequent()).merge(texts)

    @property
    def used_histograms(self) -> dict[str, Histogram]:
        """The histograms by name, those of OPTIONAL only with values."""
        return {
            name: histogram
            for name, histogram in self.histograms.items()
            if name not in OPTIONAL or any(series.n for series in histogram.series.values())
        }

    def shrink(self) -> None:
        """Keep no more texts than are stored."""
        for sketch in (*(getattr(self, name) for name in SKETCHES), *self.removed.values()):
            sketch.shrink()

    def to_json(self) -> dict[str, Any]:
        """Return the totals after `shrink`; `kept` and `drops` are in the counts of the manifests."""
        self.shrink()
        return {
            "histograms": {name: histogram.to_json() for name, histogram in self.used_histograms.items()},
            **{name: getattr(self, name).to_json() for name in SKETCHES},
            "removed": {reason: self.removed[reason].to_json() for reason in sorted(self.removed)},
            "http_statuses": sorted_counts(self.http_statuses),
            **({"null_captions": sorted_counts(self.null_captions)} if self.null_captions else {}),
            "chunks": sorted_counts(self.chunks),
            "boxes": sorted_counts(self.boxes),
            "given": sorted_counts(self.given),
            "grounded": self.n_grounded,
            **({"unconfirmed": self.n_unconfirmed} if self.n_unconfirmed else {}),
            "images": self.images.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Totals":
        """Return the totals that `to_json` describes."""
        totals = cls()
        for name, histogram in totals.histograms.items():
            if name not in OPTIONAL or name in value["histograms"]:
                histogram.load(value["histograms"][name])
        for name in SKETCHES:
            setattr(totals, name, Frequent.from_json(value[name]))
        totals.removed = {reason: Frequent.from_json(texts) for reason, texts in value["removed"].items()}
        totals.http_statuses = Counter(value["http_statuses"])
        totals.null_captions = Counter(value.get("null_captions", {}))
        totals.chunks = Counter({reason or None: n for reason, n in value["chunks"].items()})
        totals.boxes = Counter({reason or None: n for reason, n in value["boxes"].items()})
        totals.given = Counter(value["given"])
        totals.n_grounded = int(value["grounded"])
        totals.n_unconfirmed = int(value.get("unconfirmed", 0))
        totals.images = Distinct.from_json(value["images"])
        return totals

    def _count_rows(self, batch: pa.RecordBatch) -> None:
        dropped = batch.filter(pc.not_equal(batch["status"], KEPT))
        self.kept += batch.num_rows - dropped.num_rows
        self.drops.update(zip(dropped["stage"].to_pylist(), dropped["reason"].to_pylist(), strict=True))
        hosts = pc.extract_regex(batch["url"].drop_null(), HOST)
        if len(hosts):
            self.host_rows.update(tally(pc.utf8_lower(hosts.field("host"))))
        has_host = pc.and_(pc.equal(dropped["stage"], "download"), pc.is_valid(dropped["url"]))
        failed = dropped.filter(pc.and_(has_host, pc.invert(pc.is_in(dropped["reason"], pa.array(NO_FAILURES)))))
        self.hosts.update(
            f"{reason} {host_of(url)}"
            for url, reason in zip(failed["url"].to_pylist(), failed["reason"].to_pylist(), strict=True)
        )
        details = failed.filter(pc.equal(failed["reason"], "http_error"))["detail"].drop_null()
        self.http_statuses.update(text for text in details.to_pylist() if HTTP_STATUS.fullmatch(text))

    def _count_images(self, batch: pa.RecordBatch) -> None:
        sides = batch["original_width"], batch["original_height"]
        shorter, longer = (side(*sides, skip_nulls=False) for side in (pc.min_element_wise, pc.max_element_wise))
        self.histograms["image_side"].add("shorter", floats(shorter.drop_null()))
        self.histograms["image_side"].add("longer", floats(longer.drop_null()))
        digits = "".join(value[:16] for value in batch["sha256"].drop_null().to_pylist())
        self.images.add(np.frombuffer(bytes.fromhex(digits), ">u8").astype(np.uint64))

    def _count_chunks(self, batch: pa.RecordBatch) -> None:
        """Count the head nouns of the chunks that were kept, and the texts of those that were removed, by reason."""
        chunks = pc.list_flatten(batch["noun_chunks"])
        rows = pc.list_parent_indices(batch["noun_chunks"]).to_numpy()
        is_kept = chunks.field("removed").is_null().to_numpy(zero_copy_only=False)
        roots = chunks.field("root").to_numpy()
        captions = batch["caption"].to_pylist()
        self.kept_heads.update(filter(None, labels(captions, batch["tokens"], rows[is_kept], roots[is_kept])))
        removed = chunks.filter(pa.array(~is_kept))
        spans = zip(*(removed.field(name).to_pylist() for name in ("removed", "start", "end")), strict=True)
        for row, (reason, start, end) in zip(rows[~is_kept].tolist(), spans, strict=True):
            self.removed.setdefault(reason, Frequent()).update([captions[row][start:end].lower()])

    def _count_given(self, batch: pa.RecordBatch) -> None:
        """Count the given boxes that are lost before the filters, and the rows whose spans are no whole words."""
        names = ("caption_original", "given_noun_chunks", "given_chunks", "box_scores")
        for row in batch.select(names).to_pylist():
            text, given = row["caption_original"] or "", row["given_noun_chunks"]
            self.boxes.update(lost_boxes(row))
            spans = ((box["start"], box["end"]) for box in given)
            is_split = any(0 <= start < end <= len(text) and not is_whole(text, start, end) for start, end in spans)
            self.given.update(boxes=len(given), rows=1, split=is_split)

    def _count_boxes(self, batch: pa.RecordBatch, has_grounder: bool) -> None:
        boxes, scores = pc.list_flatten(batch["boxes"]), pc.list_flatten(batch["box_scores"])
        row_of_box = pc.list_parent_indices(batch["boxes"])
        in_dropped = pc.not_equal(batch["status"], KEPT).take(row_of_box)
        removed = scores.field("removed").cast(pa.string())
        row, phrase = (values.filter(removed.is_null()).to_numpy() for values in (row_of_box, boxes.field("phrase")))
        n_most = phrase.max(initial=0) + 1
        found = np.unique(row.astype(np.int64) * n_most + phrase) // n_most
        n_found, n_asked = np.bincount(found, minlength=len(batch)), asked_phrases(batch, has_grounder)
        self.histograms[SHARE.histogram].add("images", (n_found / np.maximum(n_asked, 1))[n_asked > 0])
        removed = pc.if_else(pc.and_(removed.is_null(), in_dropped), ROW_DROPPED, removed)
        self.boxes.update(tally(removed))
        is_kept = removed.is_null().to_numpy(zero_copy_only=False)
        x_min, y_min, x_max, y_max = (floats(boxes.field(name)) for name in ("x_min", "y_min", "x_max", "y_max"))
        for name, values in (
            ("box_area_ratio", (x_max - x_min) * (y_max - y_min)),
            ("grounding_score", floats(boxes.field("score"))),
            *((score.histogram, floats(scores.field(score.column))) for score in CROP_SCORES),
        ):
            self.histograms[name].add("kept", values[is_kept])
            self.histograms[name].add("removed", values[~is_kept])
        rows = row_of_box.to_numpy()[is_kept]
        per_row = np.bincount(rows)
        self.histograms["boxes_per_image"].add("images", per_row[per_row > 0].astype(float))
        phrases = boxes.field("phrase").to_numpy()[is_kept]
        self._count_phrases(batch, rows, phrases)
        expressions = pc.list_flatten(batch["ref_exps"]).field("chunk").to_numpy()
        row_of_expression = pc.list_parent_indices(batch["ref_exps"]).to_numpy()
        of_chunk = np.isin(rows * (1 << 32) + phrases, row_of_expression * (1 << 32) + expressions)
        has_expression = np.ones(len(boxes), bool)
        is_checked = pc.is_valid(batch["has_expression"]).take(row_of_box).to_numpy(zero_copy_only=False)
        has_expression[is_checked] = pc.list_flatten(batch["has_expression"]).to_numpy(zero_copy_only=False)
        self.n_unconfirmed += int((~(of_chunk & has_expression[is_kept])).sum())

    def _count_phrases(self, batch: pa.RecordBatch, rows: Array, phrases: Array) -> None:
        """Count the texts and head nouns of the phrases with a kept box in a kept row, each phrase once.

        `rows` and `phrases` hold the row and the noun chunk of each kept box.
        """
        pairs = np.unique(np.stack([rows, phrases], axis=1), axis=0) if len(rows) else np.zeros((0, 2), np.int64)
        self.n_grounded += len(pairs)
        chunks = pc.list_flatten(batch["noun_chunks"])
        grounded = chunks.take(pa.array(first_items(batch["noun_chunks"])[pairs[:, 0]] + pairs[:, 1]))
        captions = batch["caption"].to_pylist()
        spans = zip(
            pairs[:, 0].tolist(), grounded.field("start").to_pylist(), grounded.field("end").to_pylist(), strict=True
        )
        self.phrases.update(captions[row][start:end].lower() for row, start, end in spans)
        found = labels(captions, batch["tokens"], pairs[:, 0], grounded.field("root").to_numpy())
        self.heads.update(filter(None, found))

    def duplicates(self) -> DuplicateCounts:
        """Count all, distinct and repeated images by the first 8 bytes of their SHA-256."""
        n, distinct = self.images.n, self.images.count()
        counts: DuplicateCounts = {"images": n, "distinct": distinct, "repeated": n - distinct}
        if error := self.images.standard_error():
            counts["error"] = round(error, 4)
        return counts


def sorted_counts(counter: Counter[Any]) -> dict[str, int]:
    """Return the counts other than 0 by name; that of None has the name ""."""
    return {name: counter[name or None] for name in sorted(name or "" for name, n in counter.items() if n)}


def tally(values: pa.Array) -> dict[Any, int]:
    """Return the number of each value, in the order of their first places."""
    counts = values.value_counts()
    return dict(zip(*(counts.field(i).to_pylist() for i in range(2)), strict=True))


def floats(values: pa.Array) -> Array:
    """Convert to float64; null becomes NaN."""
    return values.cast(pa.float64()).to_numpy(zero_copy_only=False)


def asked_phrases(batch: pa.RecordBatch, has_grounder: bool) -> Array:
    """Return the number of phrases of each row that were sent to the grounder, or had a box in the input."""
    is_asked = pc.is_null(pc.list_flatten(batch["noun_chunks"]).field("removed"))
    rows = pc.list_parent_indices(batch["noun_chunks"]).filter(is_asked).to_numpy()
    n_given = pc.fill_null(pc.list_value_length(batch["given_chunks"]), 0).to_numpy()
    return np.where(has_grounder | (n_given > 0), np.bincount(rows, minlength=len(batch)), 0)


def first_items(lists: pa.ListArray) -> Array:
    """Return, for each row, the index of its first item in the flattened lists."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    return np.concatenate([[0], np.cumsum(lengths)])[:-1].astype(np.int64)


def labels(captions: Sequence[str | None], tokens: pa.ListArray, rows: Array, roots: Array) -> list[str | None]:
    """Return the label of token `root` of each row of `tokens` and `captions`; None for -1 and without a parse."""
    has_none = (roots < 0) | (pc.fill_null(pc.list_value_length(tokens), 0).to_numpy()[rows] <= roots)
    places = pa.array(first_items(tokens)[rows] + roots, pa.int64(), mask=has_none)
    found = zip(rows.tolist(), pc.list_flatten(tokens).take(places).to_pylist(), strict=True)
    return [label_of(captions[row] or "", Token(**token)) if token else None for row, token in found]


def host_of(url: str | None) -> str:
    """Return the host name of a URL, or "(no host)"."""
    try:
        return urlsplit(url or "").hostname or "(no host)"
    except ValueError:
        return "(no host)"


# Shards in which the report looks for its pictures and for examples of dropped rows: a bounded choice.

MAX_KEPT: Final = 8
"""Maximum number of shards to take pictures from, since a tar has to be read up to the chosen image."""
MAX_DROPPED: Final = 16
"""Maximum number of shards to take the examples of a drop reason from."""

Cause = tuple[str, str]
"""Stage and drop reason."""


class Chosen:
    """The shards with kept rows whose indices have the lowest hashes, and the first with each drop reason.

    Merging is exact: the result does not depend on the order.
    """

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.dropped: dict[Cause, list[int]] = {}

    def add_kept(self, indices: Iterable[int]) -> None:
        """Offer shards with kept rows."""
        self.kept = sorted({*self.kept, *indices}, key=hash_of)[:MAX_KEPT]

    def add_dropped(self, cause: Cause, indices: Iterable[int]) -> None:
        """Offer shards in which rows were dropped."""
        self.dropped[cause] = sorted({*self.dropped.get(cause, ()), *indices})[:MAX_DROPPED]

    def merge(self, other: "Chosen") -> None:
        """Offer the shards that another output, or another part of this one, has chosen."""
        self.add_kept(other.kept)
        for cause, indices in other.dropped.items():
            self.add_dropped(cause, indices)

    def to_json(self) -> Places:
        """Return the shards by index, and those of drop reasons by stage."""
        dropped: dict[str, dict[str, list[int]]] = {}
        for (stage, reason), indices in sorted(self.dropped.items()):
            dropped.setdefault(stage, {})[reason] = indices
        return {"kept": sorted(self.kept), "dropped": dropped}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Chosen":
        """Return the shards that `to_json` describes."""
        chosen = cls()
        chosen.add_kept(value["kept"])
        for stage, reasons in value["dropped"].items():
            for reason, indices in reasons.items():
                chosen.add_dropped((stage, reason), indices)
        return chosen


def hash_of(index: int) -> bytes:
    """Return a hash that orders shards at random, and in every run in the same way."""
    return hashlib.sha256(str(index).encode()).digest()


# The row counts of shards, which can be added up.


class RowCounts:
    """Sums of the counts of shards."""

    def __init__(self, counts: Iterable[Counts] = ()) -> None:
        self.sums: Counter[str] = Counter()
        self.dropped: Counter[tuple[str, str]] = Counter()  # by stage and reason
        for count in counts:
            self.add(count)

    def add(self, counts: Counts) -> None:
        """Add the counts of a shard."""
        self.sums.update(read=counts["read"], kept=counts["kept"])
        for stage, reasons in counts["dropped"].items():
            self.dropped.update({(stage, reason): n for reason, n in reasons.items()})

    def to_counts(self, unfinished: int = 0) -> Counts:
        """Return the sums; stages are in pipeline order, then those of the user, reasons are sorted.

        `unfinished` rows are those of failed shards.
        """
        dropped: dict[str, dict[str, int]] = {stage: {} for stage in STAGES}
        for (stage, reason), n in sorted(self.dropped.items()):
            if n:
                dropped.setdefault(stage, {})[reason] = n
        return {
            "read": self.sums["read"] + unfinished,
            "kept": self.sums["kept"],
            "dropped": {stage: reasons for stage, reasons in dropped.items() if reasons},
            "unfinished": unfinished,
        }


# The statistics of one or more finished shards, and their file.

VERSION: Final = 3
"""Version of the content: summaries of another version are computed again."""
MAX_BYTES: Final = 1 << 26
"""Largest content of a file: sketches of bounded size."""
DAMAGE: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)

Stamp = TypeVar("Stamp", str, int)


@dataclass
class Summary:
    """The statistics of finished shards. All counts but those of `Totals.phrases` and other texts are exact."""

    rows: RowCounts = field(default_factory=RowCounts)
    n_bytes: Counter[str] = field(default_factory=Counter)  # by format
    without_rows: int = 0  # shards without a file in arrow/
    totals: Totals = field(default_factory=Totals)
    chosen: Chosen = field(default_factory=Chosen)

    def merge(self, other: "Summary") -> None:
        """Add the statistics of other shards."""
        self.rows.sums.update(other.rows.sums)
        self.rows.dropped.update(other.rows.dropped)
        self.n_bytes.update(other.n_bytes)
        self.without_rows += other.without_rows
        self.totals.merge(other.totals)
        self.chosen.merge(other.chosen)

    def to_json(self) -> dict[str, Any]:
        """Return the statistics in the form of their file."""
        counts = self.rows.to_counts()
        return {
            "rows": {name: value for name, value in counts.items() if name != "unfinished"},
            "bytes": {name: self.n_bytes[name] for name in sorted(self.n_bytes)},
            "without_rows": self.without_rows,
            "totals": self.totals.to_json(),
            "places": self.chosen.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Summary":
        """Return the statistics that `to_json` describes."""
        return cls(
            rows=RowCounts([value["rows"]]),
            n_bytes=Counter(value["bytes"]),
            without_rows=int(value["without_rows"]),
            totals=Totals.from_json(value["totals"]),
            chosen=Chosen.from_json(value["places"]),
        )


@dataclass(frozen=True)
class SummaryFile(Generic[Stamp]):
    """A summary with the manifests of its shards by index: the SHA-256 of each, or, in a rollup, its bytes.

    The file is JSON with the SHA-256 of its other entries, compressed with zstd; the same shards give the same bytes.
    """

    manifests: Mapping[int, Stamp]
    summary: Summary

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        manifests = {str(index): self.manifests[index] for index in sorted(self.manifests)}
        value = {"version": VERSION, "manifests": manifests, **self.summary.to_json()}
        return compressed(encode_json({**value, "sha256": hashlib.sha256(encode_json(value)).hexdigest()}))


def parse_summary(content: bytes | None, manifests: Mapping[int, Stamp] | None) -> Summary | None:
    """Return the summary in a file; None if it is missing, damaged, of another version or of others than `manifests`."""
    if content is None:
        return None
    try:
        value = json.loads(decompressed(content))
        digest = value.pop("sha256")
        if value["version"] != VERSION:
            return None
        if manifests is not None and value["manifests"] != {str(i): stamp for i, stamp in manifests.items()}:
            return None
        if hashlib.sha256(encode_json(value)).hexdigest() != digest:  # a flipped bit can be JSON still
            return None
        return Summary.from_json(value)
    except (*DAMAGE, pa.ArrowException, OSError):
        return None


def encode_json(value: Any) -> bytes:
    """Return a value as JSON in UTF-8, without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def compressed(content: bytes) -> bytes:
    """Compress with zstd."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())


def decompressed(content: bytes) -> bytes:
    """Undo `compressed`. Raises OSError for damaged content, and for more than MAX_BYTES."""
    found = bytearray()
    with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
        while part := stream.read(1 << 20):
            found += part
            if len(found) > MAX_BYTES:
                raise OSError(f"it holds more than {MAX_BYTES} bytes")
    return bytes(found)
