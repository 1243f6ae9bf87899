"""Takedowns: the rows of an output that a list names, and their traces in files that no manifest counts.

The rows of a shard are found in whichever of its formats has most columns.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import pyarrow as pa

from hypergrit_common.arrow_sizes import MOST, read_parquet
from hypergrit_common.config import RESOLVED_FILE
from hypergrit_common.errors import UserError
from hypergrit_common.files import MARK
from hypergrit_common.json_file import fits
from hypergrit_common.remote import one_line as one_remote_line
from hypergrit_common.remote import store_errors
from hypergrit_common.tar import TarError, reader_of
from pipeline.output.commit import read_places
from pipeline.output.ledger import is_one_of, read_manifests, read_rows, stamp_of
from pipeline.output.manifest import parse_failed, write_failed
from pipeline.output.record import missing_shards, read_command, read_record, recorded_plans
from pipeline.output.store import LOCK_SUFFIX, TEMPORARY, Store, files_of_shards, indices, shard_sizes
from pipeline.read.takedown import TAKEN_DOWN, Kind, TakedownList
from pipeline.summary.totals import parse_summary
from schemas.files import (
    ANSWERS_FILE,
    ANSWERS_FOLDER,
    COMMAND_FILE,
    DROPPED_FILE,
    DROPS_FILE,
    FAILED_FILE,
    FILES,
    INDEX_FILE,
    JOB_FILE,
    JOURNAL_FILE,
    LEASE_FILE,
    MANIFEST_FILE,
    OUTPUT_FOLDERS,
    REPORT_FILE,
    ROLLUP_FILE,
    ROLLUP_FOLDER,
    ROLLUP_TIMINGS_FILE,
    RUN_TIMINGS_FILE,
    STATS_FILE,
    SUMMARY_FILE,
    TAKEDOWNS_FILE,
    TIMINGS_FILE,
    TIMINGS_FOLDER,
    TRAIN_ANNOTATIONS,
    ShardFile,
    rollup_of,
)
from schemas.manifest import FailedShard, Manifest
from schemas.status import KEPT

Row = Mapping[str, Any]
"""The columns FACTS of a row."""

LEDGER = ("key", "url", "sha256", "status", "stage", "reason")
CHUNKS = ("noun_chunks", "ref_exps", "given_noun_chunks", "given_chunks")
FACTS = (*LEDGER, *CHUNKS, "boxes", "box_scores", "has_expression")


FoundRows = Mapping[str, tuple[Kind, Row]]
"""Rows of a shard that a list names, by key: the kind of the entry that names each, and its columns."""


def find_rows(store: Store, manifest: Manifest, entries: TakedownList) -> FoundRows:
    """Return the rows that the list names, without those already taken down. Raises UserError for a damaged shard."""
    if not len(entries):
        return {}
    formats = manifest["formats"]
    read = rows_of_arrow if "arrow" in formats else rows_of_grit if "grit" in formats else rows_of_train
    try:
        return read(store, manifest, entries)
    except read_errors() as error:
        raise unreadable(store, manifest["shard"], error) from error


def check_obeyed(store: Store, manifests: Sequence[Manifest]) -> None:
    """Raise UserError if a shard still has rows that were taken down: their takedown did not end."""
    for manifest in manifests:
        if find_rows(store, manifest, store.takedowns):
            raise UserError(
                f"shard {manifest['shard']} of {store.root} still has rows that were taken down; run hypergrit takedown "
                "with the same list"
            )


def check_unchanged(store: Store) -> None:
    """Raise UserError if rows were taken down since the record of the output was read."""
    if store.read_takedowns() != store.takedowns:
        raise UserError(f"rows are being taken down from {store.root}; run the same command again")


def check_recorded(store: Store, entries: TakedownList, path: str | None) -> None:
    """Raise UserError for entries of a job's list at `path` that were not taken down from its output, which has shards."""
    if store.takedowns | entries != store.takedowns:
        raise UserError(
            f"read.takedown={path} names rows that finished shards of {store.root} may have; run hypergrit takedown "
            f"{store.root} list={path} first, and then the same command again"
        )


def is_obeyed(store: Store, manifest: Manifest) -> bool:
    """Return whether a shard can be read and has no row that was taken down from its output."""
    try:
        return not find_rows(store, manifest, store.takedowns)
    except UserError:
        return False


def read_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of reading a damaged file."""
    return store_errors(TarError, pa.ArrowException, ValueError, LookupError, UserError)


def unreadable(store: Store, index: int, error: Exception) -> UserError:
    """Return the error for a shard with a damaged file."""
    return UserError(
        f"shard {index} of {store.root} cannot be read ({one_remote_line(error)}); run hypergrit verify with requeue=true, "
        "and then this takedown again"
    )


def rows_of_arrow(store: Store, manifest: Manifest, entries: TakedownList) -> dict[str, tuple[Kind, Row]]:
    """Find the rows in arrow/; the columns of the others than LEDGER are read for the rows that are found only."""
    found = matching(entries, read_rows(store, [manifest], LEDGER))
    rows = read_rows(store, [manifest], FACTS, is_one_of("key", found)) if found else ()
    return {row["key"]: (found[row["key"]][0], row) for row in rows}


def matching(entries: TakedownList, rows: Iterator[Row]) -> dict[str, tuple[Kind, Row]]:
    """Return the rows that the list names, by key."""
    pairs = ((row, entries.match(row["url"], row["sha256"])) for row in rows if row["reason"] != TAKEN_DOWN)
    return {row["key"]: (kind, row) for row, kind in pairs if kind}


def rows_of_grit(store: Store, manifest: Manifest, entries: TakedownList) -> dict[str, tuple[Kind, Row]]:
    """Find the rows in the parquet of grit/, which has the kept boxes of kept rows."""
    return matching(entries, map(row_of_grit, parquet_rows(store, manifest)))


def parquet_rows(store: Store, manifest: Manifest) -> list[Row]:
    """Return the rows of the parquet of grit/, with what `row_of_grit` takes."""
    content = store.read(FILES["grit"][1].path(manifest["shard"]), MOST) or b""
    columns = ["key", "url", "sha256", "status", "error_message", "noun_chunks", "ref_exps"]
    return read_parquet(content, columns).to_pylist()


def taken_down_keys(store: Store, manifest: Manifest) -> set[str]:
    """Return the keys of the rows of a shard that were taken down; a shard in train/ alone does not have them."""
    rows: Iterator[Row] = read_rows(store, [manifest], ("key", "reason"))
    if "arrow" not in manifest["formats"]:
        rows = map(row_of_grit, parquet_rows(store, manifest) if "grit" in manifest["formats"] else ())
    return {row["key"] for row in rows if row["reason"] == TAKEN_DOWN}


def row_of_grit(row: Row) -> Row:
    """Return FACTS of a row of the parquet; each distinct span is a noun chunk."""
    boxes = row["noun_chunks"] or []
    spans = list(dict.fromkeys((box[0], box[1]) for box in boxes))
    described = [box[2:] for box in row["ref_exps"] or []]
    stage, _, rest = (row["error_message"] or "").partition(": ")
    return {
        **{name: row[name] for name in ("key", "url", "sha256")},
        **({"status": KEPT} if row["status"] == "success" else {"status": row["status"]}),
        "stage": stage or None,
        "reason": rest.partition(": ")[0] or None,
        "noun_chunks": [{"removed": None} for _ in spans],
        "ref_exps": [{"chunk": n} for n in range(len(spans))],
        "boxes": [{"phrase": spans.index((box[0], box[1]))} for box in boxes],
        "box_scores": [{"removed": None} for _ in boxes],
        "has_expression": [box[2:] in described for box in boxes],
    }


def rows_of_train(store: Store, manifest: Manifest, entries: TakedownList) -> dict[str, tuple[Kind, Row]]:
    """Find the rows in train/, which has the kept rows only."""
    name = FILES["train"][0].path(manifest["shard"])
    with store.open(name) as file:
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
        "ref_exps": sample["ref_exps"],
        "boxes": sample["boxes"],
        "box_scores": [{"removed": None} for _ in sample["boxes"]],
        "has_expression": [box.get("has_expression", True) for box in sample["boxes"]],
    }


def leftovers(store: Store, manifests: Sequence[Manifest]) -> dict[int, list[str]]:
    """Return the files with rows that belong to no finished shard, by the index in their names.

    `manifests` are those of all finished shards. Such files are left by commits that did not end, by verify with
    requeue=true, and by failed shards; the next run writes them anew.
    """
    named = {manifest["shard"]: {*manifest["files"]} for manifest in manifests}
    found: dict[int, list[str]] = {}
    for kind in (*(kind for kinds in FILES.values() for kind in kinds), INDEX_FILE, DROPPED_FILE, SUMMARY_FILE):
        for index in indices(store, kind):
            is_counted = index in named and kind in (DROPPED_FILE, SUMMARY_FILE)
            if not is_counted and kind.path(index) not in named.get(index, ()):
                found.setdefault(index, []).append(kind.path(index))
    return found


def listed_leftovers(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the files of no finished shard with a row that was taken down from the output, and what is wrong with each."""
    for index, names in leftovers(store, read_manifests(store)).items() if len(store.takedowns) else ():
        formats = [kind for kind, files in FILES.items() if files[-1].path(index) in names]
        part = cast(Manifest, {"shard": index, "formats": formats, "files": dict.fromkeys(names)})
        try:
            key = next(iter(find_rows(store, part, store.takedowns)), None)
        except UserError as error:
            yield names[0], f"may have rows that were taken down; run hypergrit takedown again ({error})"
        else:
            if key is not None:
                yield names[0], f"row {key} was taken down, but is here; run hypergrit takedown again"


REMADE: Final = re.compile(
    rf"{ROLLUP_FOLDER}/\d{{5,18}}\.json\.zst|{TIMINGS_FOLDER}/rollup-\d{{5,18}}\.json|{ANSWERS_FOLDER}/\d{{12,18}}\.json",
    re.ASCII,
)
"""Files that the report or the job makes again: sums of many shards, and answers of a captioner."""


def remade(store: Store) -> list[str]:
    """Return the files that REMADE names."""
    folders = (ROLLUP_FOLDER, TIMINGS_FOLDER, ANSWERS_FOLDER)
    names = [f"{folder}/{name}" for folder in folders for name in store.names(folder)]
    return [name for name in names if REMADE.fullmatch(name)]


def unread(store: Store) -> list[str]:
    """Return the files that no command reads: of shards that are neither finished nor planned, answers for shards that are
    finished, rows to drop of a rewrite that is finished, and sums of other shards than the finished ones.
    """
    sizes = {i: size for kind, i, size in files_of_shards(store, MANIFEST_FILE.folder) if kind == MANIFEST_FILE}
    job, command = read_record(store), read_command(store)
    known = sizes.keys() | missing_shards(command, job, sizes)
    found = [kind.path(i) for kind in (FAILED_FILE, TIMINGS_FILE) for i in indices(store, kind) if i not in known]
    if not missing_shards(command, None, sizes):
        found += map(DROPS_FILE.path, indices(store, DROPS_FILE))
    groups: dict[int, dict[int, int]] = {}
    for index, size in sizes.items():
        groups.setdefault(rollup_of(index), {})[index] = size
    read = [n for n, group in groups.items() if parse_summary(store.read_spare(ROLLUP_FILE.path(n)), group) is not None]
    awaited = recorded_plans(job).without(sizes) if job else ()
    used = {
        *map(ROLLUP_FILE.path, read),
        *map(ROLLUP_TIMINGS_FILE.format, groups),
        *(ANSWERS_FILE.format(f"{plan.first_row:012d}") for plan in awaited),
    }
    return [*found, *(name for name in remade(store) if name not in used)]


def listed_unread(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the first of the files that no command reads, if rows were taken down, and what is to be done about each."""
    try:
        found = unread(store) if len(store.takedowns) else []
    except UserError:
        return  # the damaged record of the job or command is a problem by itself
    for name in found[:SHOWN]:
        yield (
            name,
            f"no command reads it ({len(found)} such files), {MAY_HAVE}; run hypergrit takedown again, which removes it",
        )


def drafts(store: Store) -> list[str]:
    """Return the files that were being written, of any process; nobody but the holder of the lease publishes one."""
    folders = [(folder, shard_sizes(store, folder)) for folder in OUTPUT_FOLDERS]
    folders += [(folder, store.sizes(folder)) for folder in (ROLLUP_FOLDER, ANSWERS_FOLDER)]
    names = [f"{folder}/{name}" for folder, found in folders for name in found] + store.names("")
    return [name for name in names if TEMPORARY.fullmatch(os.path.basename(name)) and not name.endswith(LOCK_SUFFIX)]


KINDS: Final = {
    *(kind for kinds in FILES.values() for kind in kinds), INDEX_FILE, MANIFEST_FILE, DROPPED_FILE, SUMMARY_FILE,
    FAILED_FILE, TIMINGS_FILE, JOURNAL_FILE, DROPS_FILE, ShardFile(MANIFEST_FILE.folder, f"{MANIFEST_FILE.suffix}{LOCK_SUFFIX}"),
}  # fmt: skip
OTHERS: Final = {
    JOB_FILE, COMMAND_FILE, LEASE_FILE, f"{LEASE_FILE}.lock", TAKEDOWNS_FILE, RESOLVED_FILE, STATS_FILE,
    REPORT_FILE, RUN_TIMINGS_FILE, *(f"{kind}/{MARK}" for kind in FILES),
}  # fmt: skip
SHOWN: Final = 5
MAY_HAVE: Final = "may have rows that were taken down"


def strangers(store: Store) -> list[str]:
    """Return the files below an output that are none of its own: drafts, links, and what others have put there."""

    def is_own(name: str) -> bool:
        kind, _ = ShardFile.parse(name) or (None, 0)
        return kind in KINDS or name in OTHERS or bool(REMADE.fullmatch(name))

    return sorted(name for name in store.walk() if not is_own(name))


def listed_strangers(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the first strangers of an output from which rows were taken down, and what is to be done about each."""
    found = strangers(store) if len(store.takedowns) else []
    removed = drafts(store) if found else []
    for name in found[:SHOWN]:
        fix = "run hypergrit takedown again, which removes it" if name in removed else "remove it"
        what = "no file of the output"
        if store.links([name]):
            what, fix = "it is a link, which is not followed,", "remove the link"
            if name in FILES:
                fix += ", or run hypergrit takedown again, which tells how to keep it"
        yield name, f"{what} ({len(found)} such files), {MAY_HAVE}; {fix}"


def old_report(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the report if rows were taken down from the output, and it is not that of stats.json."""
    report = store.read(REPORT_FILE) if len(store.takedowns) else None
    if report is not None and stamp_of(store.read(STATS_FILE) or b"").encode() not in report:
        yield (
            REPORT_FILE,
            "older than stats.json, may show rows that were taken down; write it again with "
            f"`hypergrit explore {store.url('').rstrip('/')} report=true`",
        )


def remove_leftovers(store: Store, manifests: Sequence[Manifest]) -> None:
    """Remove what may hold rows outside of the files of finished shards. Needs the lease."""
    left = leftovers(store, manifests)
    finished = {manifest["shard"] for manifest in manifests}
    damaged = [MANIFEST_FILE.path(index) for index in indices(store, MANIFEST_FILE) if index not in finished]
    # The shard of a takedown that was killed may have been made again since, without its rows; not so its thumbnails.
    # A shard in train/ alone does not tell whose thumbnails it has: its dropped rows are nowhere.
    shown = [manifest for manifest in manifests if has_taken_down(manifest) or set(manifest["formats"]) <= {"train"}]
    thumbnails = [DROPPED_FILE.path(manifest["shard"]) for manifest in shown]
    files = [name for names in left.values() for name in names]
    unused = [*unread(store), *map(DROPS_FILE.path, indices(store, DROPS_FILE))]  # of an unfinished rewrite, too
    for index in indices(store, FAILED_FILE):  # a message may quote a row
        failed = parse_failed(store.read(FAILED_FILE.path(index)) or b"")
        if failed is None or not fits(failed, FailedShard) or failed["shard"] != index:
            unused.append(FAILED_FILE.path(index))
            continue
        own = cast(FailedShard, {name: failed[name] for name in FailedShard.__required_keys__})  # type: ignore[literal-required]
        write_failed(store, {**own, "error": "removed by a takedown; run the job again", "traceback": ""})
    store.remove_many({*damaged, *thumbnails, *files, *unused, *remade(store), *drafts(store)})


def has_taken_down(manifest: Manifest) -> bool:
    """Return True if rows of a shard were taken down."""
    return any(TAKEN_DOWN in reasons for reasons in manifest["counts"]["dropped"].values())
