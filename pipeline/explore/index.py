"""The index of an output: the files that the page reads, built once and kept in a cache.

    meta.json           shards, parts, thresholds (Meta)
    words.json          the words that columns refer to by number
    rows-NNNNN.arrow    columns of the rows of a part
    boxes-NNNNN.arrow   columns of their boxes
    captions-NNNNN.txt  their captions, one per line

Arrow files are not compressed, so that the page can use their buffers as they are.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, TypedDict

import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from hypergrit_common.disk import locked
from hypergrit_common.errors import UserError
from hypergrit_common.text import one_line
from pipeline.explore.columns import REMOVALS, SOURCE_COLUMNS, IndexRows, Words, index_rows
from pipeline.output.ledger import check_finished, check_provenance, read_batches, read_manifests
from pipeline.output.manifest import manifest_hash
from pipeline.output.source import read_config
from pipeline.output.store import Store
from pipeline.output.takedowns import check_obeyed
from pipeline.report.cards import read_dropped
from pipeline.summary.totals import encode_json
from schemas.manifest import Manifest, ThresholdValues
from schemas.scores import SCORES
from schemas.status import KEPT

VERSION: Final = " ".join(["7", *(score.column for score in SCORES)])
"""Changes with the files, so that old indexes are built again: raise the number unless only the scores change."""
STORED, THUMBNAIL_ONLY = 1, 2
"""Values of the column `has_image`: 0 without a picture."""
DRAFT: Final = "draft-"
PART_ROWS: Final = 1 << 16
META, WORD_LISTS = "meta.json", "words.json"


class ShardMeta(TypedDict):
    """A shard in the index."""

    shard: int  # its index in the output
    first: int  # number of rows before it
    thresholds: ThresholdValues


class Meta(TypedDict):
    """meta.json."""

    rows: int
    boxes: int
    keep_all: bool  # score.keep_all of the job: thresholds can be lowered
    keeps_pairs: bool  # rows without a box are kept
    removals: list[str | None]  # meaning of the column `removed`
    shards: list[ShardMeta]
    parts: list[dict[str, int]]  # rows and boxes of each part


def open_output(output: str) -> tuple[Store, list[Manifest]]:
    """Return an output and the manifests of its finished shards.

    Raises UserError if it has none, if one has no arrow/ file, and if a takedown did not end.
    """
    store = Store(output)
    manifests = read_manifests(store)
    check_finished(store, manifests)
    check_provenance(store, manifests)
    lacking = next((manifest["shard"] for manifest in manifests if "arrow" not in manifest["formats"]), None)
    if lacking is not None:
        raise UserError(
            f"shard {lacking} of {output} has no arrow/ file, which holds all rows; run the job with "
            "write.formats=[arrow,grit]"
        )
    check_obeyed(store, manifests)
    return store, manifests


class RowIndex(NamedTuple):
    """An index in use: its folder, and an open file with a shared lock, by which other processes know that it is."""

    folder: Path
    lock: IO[bytes]


def cached_index(store: Store, manifests: Sequence[Manifest], cache: str | None) -> RowIndex:
    """Return the index of an output, which is built unless its shards are those of an earlier call.

    Of several processes, one builds it and the others wait. Indexes of other shards of the same output that no process
    uses are removed. Raises UserError if a shard is damaged or the cache cannot be written.
    """
    place = place_of(store, cache)
    folder = place / digest(VERSION, *(manifest_hash(manifest) for manifest in manifests))
    try:
        if index := use_index(folder):
            return index
        place.mkdir(parents=True, exist_ok=True)
        with locked(f"{place}.lock"):
            index = use_index(folder)
            if index is None:
                remove_unused(place)
                draft = Path(tempfile.mkdtemp(dir=place, prefix=DRAFT))
                try:
                    build_index(store, manifests, draft)
                    os.rename(draft, folder)
                finally:
                    shutil.rmtree(draft, ignore_errors=True)
                index = RowIndex(folder, lock_meta(folder))
            return index
    except OSError as error:
        raise UserError(f"{place} cannot be written: {one_line(error)}; give another folder with cache=") from error


def place_of(store: Store, cache: str | None = None) -> Path:
    """Return the folder with the indexes of an output, which is the same behind symbolic links."""
    output = os.path.join(os.path.realpath(store.root), "") if store.is_local else store.url("")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")  # as in the XDG specification
    return (Path(cache) if cache else home / "hypergrit" / "explore") / digest(output)


def remove_cached(store: Store) -> None:
    """Remove the indexes of an output from the cache of this user, also those in use. Raises UserError."""
    place = place_of(store)
    try:
        if place.exists():
            with locked(f"{place}.lock"):
                shutil.rmtree(place)
    except OSError as error:
        raise UserError(
            f"{place}, which has rows of the output, cannot be removed: {one_line(error)}; remove it"
        ) from error


def use_index(folder: Path) -> RowIndex | None:
    """Return the index if it is finished, else None. Waits while another process removes it."""
    with suppress(FileNotFoundError):
        lock = lock_meta(folder)
        try:
            if os.path.samestat(os.fstat(lock.fileno()), os.stat(folder / META)):
                return RowIndex(folder, lock)
        except FileNotFoundError:
            lock.close()
    return None


def lock_meta(folder: Path) -> IO[bytes]:
    """Open meta.json with a shared lock, which ends when the file is closed."""
    file = (folder / META).open("rb")
    fcntl.flock(file, fcntl.LOCK_SH)
    return file


def remove_unused(place: Path) -> None:
    """Remove the drafts of killed processes, and the indexes that no process uses. The caller has locked the place."""
    for folder in place.iterdir():
        try:
            with (folder / META).open("rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except FileNotFoundError:
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use, or of another user


def digest(*texts: str) -> str:
    """Return a short name for texts."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:20]


def build_index(store: Store, manifests: Sequence[Manifest], folder: Path) -> None:
    """Write the index of an output into an empty folder; meta.json is written last."""
    config, words = read_config(store), Words()
    parts, n_rows, shards = list[dict[str, int]](), 0, list[ShardMeta]()
    pending = list[IndexRows]()
    with tqdm(total=sum(m["counts"]["read"] for m in manifests), desc="index", unit=" rows", disable=None) as bar:
        for manifest in manifests:
            provenance = manifest["provenance"]
            shards.append({"shard": manifest["shard"], "first": n_rows, "thresholds": provenance["thresholds"]})
            for batch, has_image in batches_with_images(store, manifest, config.score.keep_all):
                pending.append(index_rows(batch, n_rows, words, provenance, has_image))
                n_rows += batch.num_rows
                bar.update(batch.num_rows)
            if sum(len(part.captions) for part in pending) >= PART_ROWS:
                parts.append(write_part(folder, len(parts), pending))
                pending = []
    if pending:
        parts.append(write_part(folder, len(parts), pending))
    write_json(folder / WORD_LISTS, words.lists())
    meta: Meta = {
        "rows": n_rows,
        "boxes": sum(part["boxes"] for part in parts),
        "keep_all": config.score.keep_all,
        "keeps_pairs": config.ground.keeps_pairs,
        "removals": list(REMOVALS),
        "shards": shards,
        "parts": parts,
    }
    write_json(folder / META, meta)


def batches_with_images(store: Store, manifest: Manifest, keep_all: bool) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """Yield the batches of a shard, each with the `has_image` of its rows.

    Images in arrow/ are not read unless it may hold some that grit/ does not.
    """
    in_grit = "grit" in manifest["formats"]
    columns = SOURCE_COLUMNS if in_grit and not keep_all else (*SOURCE_COLUMNS, "image")
    thumbnails = pa.array(read_dropped(store, manifest["shard"]), pa.string())
    for batch in read_batches(store, manifest, columns):
        has_image = pc.equal(batch["status"], KEPT if in_grit else "")
        has_image = pc.or_(has_image, pc.is_valid(batch["image"])) if "image" in columns else has_image
        shown = pc.if_else(pc.is_in(batch["key"], thumbnails), THUMBNAIL_ONLY, 0)
        yield batch, pc.if_else(has_image, STORED, shown)


def write_part(folder: Path, number: int, parts: Sequence[IndexRows]) -> dict[str, int]:
    """Write the files of a part; return the numbers of its rows and boxes."""
    for name, columns in (("rows", [part.rows for part in parts]), ("boxes", [part.boxes for part in parts])):
        table = pa.concat_tables([pa.table(item) for item in columns]).combine_chunks()
        with pa.ipc.new_file(folder / f"{name}-{number:05d}.arrow", table.schema) as writer:
            writer.write_table(table)
    captions = [caption for part in parts for caption in part.captions]
    text = "".join(f"{caption}\n" for caption in captions)
    (folder / f"captions-{number:05d}.txt").write_text(text, encoding="utf-8", newline="")
    return {"rows": len(captions), "boxes": sum(len(part.boxes["row"]) for part in parts)}


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file without spaces."""
    path.write_bytes(encode_json(value))


def read_meta(folder: Path) -> Meta:
    """Return meta.json of an index."""
    meta: Meta = json.loads((folder / META).read_text(encoding="utf-8"))
    return meta


def read_words(folder: Path) -> dict[str, list[str]]:
    """Return words.json of an index."""
    words: dict[str, list[str]] = json.loads((folder / WORD_LISTS).read_text(encoding="utf-8"))
    return words


def read_parts(folder: Path) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield the columns of the rows and of the boxes of each part of an index."""
    for number in range(len(read_meta(folder)["parts"])):
        rows, boxes = (pa.memory_map(str(folder / f"{name}-{number:05d}.arrow")) for name in ("rows", "boxes"))
        yield pa.ipc.open_file(rows).read_all(), pa.ipc.open_file(boxes).read_all()
