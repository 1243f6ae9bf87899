"""The statistics of one or more finished shards, and their file."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa

from pipeline.summary.places import Chosen
from pipeline.summary.rows import RowCounts
from pipeline.summary.totals import Totals

VERSION: Final = 1
"""Version of the content: summaries of another version are computed again."""
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

    The file is JSON, compressed with zstd; the same shards give the same bytes.
    """

    manifests: Mapping[int, Stamp]
    summary: Summary

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        manifests = {str(index): self.manifests[index] for index in sorted(self.manifests)}
        value = {"version": VERSION, "manifests": manifests, **self.summary.to_json()}
        return compressed(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def parse_summary(content: bytes | None, manifests: Mapping[int, Stamp]) -> Summary | None:
    """Return the summary in a file; None if it is missing, damaged, of another version or of other manifests."""
    if content is None:
        return None
    try:
        value = json.loads(decompressed(content))
        if value["version"] != VERSION or value["manifests"] != {str(i): stamp for i, stamp in manifests.items()}:
            return None
        return Summary.from_json(value)
    except (*DAMAGE, pa.ArrowException, OSError):
        return None


def compressed(content: bytes) -> bytes:
    """Compress with zstd."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())


def decompressed(content: bytes) -> bytes:
    """Undo `compressed`. Raises OSError for damaged content."""
    with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
        return bytes(stream.read())
