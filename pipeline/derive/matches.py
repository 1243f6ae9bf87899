"""The rows of a finished shard that a takedown list names, from whichever of its formats has most columns."""

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq

from common.tar import reader_of
from pipeline.read.takedown import STAGE_OF, TAKEN_DOWN, Kind, TakedownList
from pipeline.report.shards import read_batches
from pipeline.write.counts import count_removed
from pipeline.write.restore import read_places
from pipeline.write.samples import kept_boxes
from pipeline.write.store import Store
from schemas.files import FILES, TRAIN_ANNOTATIONS
from schemas.manifest import Counts, Manifest
from schemas.status import KEPT

Row = Mapping[str, Any]
"""The columns FACTS of a row."""

LEDGER = ("key", "url", "sha256", "status", "stage", "reason")
FACTS = (*LEDGER, "noun_chunks", "boxes", "box_scores")


def find_rows(store: Store, manifest: Manifest, entries: TakedownList) -> dict[str, tuple[Kind, Row]]:
    """Return the rows that the list names, by key, each with the kind of its entry; without those already taken down."""
    formats = manifest["formats"]
    read = rows_of_arrow if "arrow" in formats else rows_of_grit if "grit" in formats else rows_of_train
    return read(store, manifest, entries)


def rows_of_arrow(store: Store, manifest: Manifest, entries: TakedownList) -> dict[str, tuple[Kind, Row]]:
    """Find the rows in arrow/; the columns of the others than LEDGER are read for the rows that are found only."""
    batches = read_batches(store, manifest, LEDGER)
    found = matching(entries, (row for batch in batches for row in batch.to_pylist()))
    return facts_of(store, manifest, {key: kind for key, (kind, _) in found.items()})


def facts_of(store: Store, manifest: Manifest, kinds: Mapping[str, Kind]) -> dict[str, tuple[Kind, Row]]:
    """Return FACTS of the rows with a kind, without those already taken down."""
    if not kinds:
        return {}
    rows = (row for batch in read_batches(store, manifest, FACTS) for row in batch.to_pylist())
    return {row["key"]: (kinds[row["key"]], row) for row in rows if row["key"] in kinds and row["reason"] != TAKEN_DOWN}


def matching(entries: TakedownList, rows: Iterator[Row]) -> dict[str, tuple[Kind, Row]]:
    """Return the rows that the list names, by key."""
    pairs = ((row, entries.match(row["url"], row["sha256"])) for row in rows if row["reason"] != TAKEN_DOWN)
    return {row["key"]: (kind, row) for row, kind in pairs if kind}


def rows_of_grit(store: Store, manifest: Manifest, entries: TakedownList) -> dict[str, tuple[Kind, Row]]:
    """Find the rows in the parquet of grit/, which has the kept boxes of kept rows."""
    content = store.read(store.file(FILES["grit"][1], manifest["shard"])) or b""
    columns = ["key", "url", "sha256", "status", "error_message", "noun_chunks"]
    rows = (row_of_grit(row) for row in pq.read_table(io.BytesIO(content), columns=columns).to_pylist())
    return matching(entries, rows)


def row_of_grit(row: Row) -> Row:
    """Return FACTS of a row of the parquet; each distinct span is a noun chunk."""
    boxes = row["noun_chunks"] or []
    spans = list(dict.fromkeys((box[0], box[1]) for box in boxes))
    stage, _, rest = (row["error_message"] or "").partition(": ")
    return {
        **{name: row[name] for name in ("key", "url", "sha256")},
        **({"status": KEPT} if row["status"] == "success" else {"status": row["status"]}),
        "stage": stage or None,
        "reason": rest.partition(": ")[0] or None,
        "noun_chunks": [{"removed": None} for _ in spans],
        "boxes": [{"phrase": spans.index((box[0], box[1]))} for box in boxes],
        "box_scores": [{"removed": None} for _ in boxes],
    }


def rows_of_train(store: Store, manifest: Manifest, entries: TakedownList) -> dict[str, tuple[Kind, Row]]:
    """Find the rows in train/, which has the kept rows only."""
    name = store.file(FILES["train"][0], manifest["shard"])
    with store.fs.open(store.path(name), "rb") as file:
        rows = (row_of_train(sample) for sample in annotations(store, name, reader_of(file)))
        return matching(entries, rows)


def annotations(store: Store, name: str, read_at: Callable[[int, int], bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON of the samples of a tar of train/."""
    for sample in read_places(store, name):
        for part in sample.members:
            if part.name == TRAIN_ANNOTATIONS:
                yield json.loads(read_at(part.offset, part.size))


def row_of_train(sample: Mapping[str, Any]) -> Row:
    """Return FACTS of the JSON of a sample."""
    return {
        "key": sample["key"],
        **{name: sample["provenance"][name] for name in ("url", "sha256")},
        "status": KEPT,
        "stage": None,
        "reason": None,
        "noun_chunks": sample["noun_chunks"],
        "boxes": sample["boxes"],
        "box_scores": [{"removed": None} for _ in sample["boxes"]],
    }


def without(manifest: Manifest, found: Mapping[str, tuple[Kind, Row]]) -> Manifest:
    """Return a manifest whose counts have these rows as taken down; its files are still those with the rows."""
    rows = [row for _, row in found.values()]
    kept = [row for row in rows if row["status"] == KEPT]
    removed = count_removed(rows)
    before = manifest["removed"]
    return {
        **manifest,
        "counts": counts_without(manifest["counts"], found),
        "boxes": manifest["boxes"] - sum(len(kept_boxes(row)) for row in kept),
        "phrases": manifest["phrases"] - sum(len({row["boxes"][i]["phrase"] for i in kept_boxes(row)}) for row in kept),
        "asked": manifest["asked"]
        - sum(chunk["removed"] is None for row in rows for chunk in row["noun_chunks"] or ()),
        "removed": {
            "phrases": subtract(before["phrases"], removed["phrases"]),
            "boxes": subtract(before["boxes"], removed["boxes"]),
        },
    }


def counts_without(counts: Counts, found: Mapping[str, tuple[Kind, Row]]) -> Counts:
    """Return the counts of a shard in which these rows are taken down."""
    dropped = {stage: Counter(reasons) for stage, reasons in counts["dropped"].items()}
    n_kept = counts["kept"]
    for kind, row in found.values():
        if row["status"] == KEPT:
            n_kept -= 1
        else:
            dropped[row["stage"]][row["reason"]] -= 1
        dropped.setdefault(STAGE_OF[kind], Counter())[TAKEN_DOWN] += 1
    left = {stage: subtract(reasons, {}) for stage, reasons in dropped.items()}
    return {"read": counts["read"], "kept": n_kept, "dropped": {stage: n for stage, n in left.items() if n}}


def subtract(counts: Mapping[str, int], less: Mapping[str, int]) -> dict[str, int]:
    """Return the positive differences of two counts."""
    return {name: n - less.get(name, 0) for name, n in counts.items() if n > less.get(name, 0)}
