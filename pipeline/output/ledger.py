"""Read finished shards: manifests, and rows with selected columns and their images. All verbs read rows here."""

import hashlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from hypergrit_common.arrow_sizes import count_buffers, open_arrow_file, read_arrow_file
from hypergrit_common.errors import UserError
from hypergrit_common.remote import map_concurrently, one_line, store_errors
from hypergrit_common.tar import TarError, iter_members, reader_of
from pipeline.output.manifest import CountsError, checked_counts, manifest_hash, parse_manifest
from pipeline.output.store import Store, indices
from pipeline.output.write.arrow import BATCH_ROWS
from pipeline.output.write.samples import Row
from pipeline.summary.totals import COLUMNS, Chosen, RowCounts, Summary, SummaryFile
from schemas.files import FILES, GRIT_IMAGE, INDEX, INDEX_FILE, MANIFEST_FILE, SUMMARY_FILE
from schemas.manifest import Manifest, Models, has_grounder
from schemas.rows import SCORED, VERSION
from schemas.table import check_rows

logger = logging.getLogger("hypergrit")


def check_finished(store: Store, shards: Collection[object]) -> None:
    """Raise UserError if an output does not exist or has no finished shard."""
    if not shards:
        if store.is_local and not os.path.lexists(store.root):
            raise UserError(f"{store.root} does not exist; check the path, or run the job with this output first")
        raise UserError(f"no finished shard in {store.root}; check the path, or run the job with this output first")


def check_provenance(store: Store, manifests: Iterable[Manifest]) -> None:
    """Raise UserError for a manifest, such as one of strangers, that does not tell how its shard was made."""
    for manifest in manifests:
        known: Mapping[str, Any] = manifest["provenance"]
        models = known.get("models", {})
        is_known = known.keys() >= {"hypergrit", "thresholds"} and models.keys() >= Models.__required_keys__
        if not is_known or not all("name" in model for model in models.values()):
            name = store.url(MANIFEST_FILE.path(manifest["shard"]))
            raise UserError(f"{name} lacks the version, models or thresholds of its shard; see hypergrit verify")


def read_manifests(store: Store) -> list[Manifest]:
    """Return the manifests of the finished shards in order. Raises UserError if one has another schema version."""
    return read_manifests_of(store, indices(store, MANIFEST_FILE))


def read_manifests_of(store: Store, indices: Collection[int]) -> list[Manifest]:
    """Return the manifests of these shards, in order, of those that still exist; the output is not listed."""
    files = [MANIFEST_FILE.path(index) for index in indices]
    contents = zip(files, map_concurrently(store.read, files), strict=True)
    return parse_manifests(store, {file: content for file, content in contents if content is not None})


def parse_manifests(store: Store, contents: Mapping[str, bytes]) -> list[Manifest]:
    """Return the manifests in these files, in the order of their shards.

    Damaged ones are left out. Raises UserError if one has another schema version.
    """
    manifests: list[Manifest] = []
    for file, content in contents.items():
        manifest = parse_manifest(content)
        if manifest is not None:
            manifests.append(manifest)
        else:
            logger.warning("%s is no manifest, and its shard is left out; the next run of the job computes it again",
                           store.url(file))  # fmt: skip
    if old := next((manifest for manifest in manifests if manifest["schema"] != VERSION), None):
        raise UserError(
            f"shard {old['shard']} of {store.root} has schema {old['schema']}, but this version of HyperGRIT reads "
            f"{VERSION}; run the job again to replace the shard"
        )
    return sorted(manifests, key=lambda manifest: manifest["shard"])


def read_batches(store: Store, manifest: Manifest, columns: Sequence[str], first: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a shard in batches, with only these columns; nothing if the shard has no arrow/ file.

    Batches before the `first` are not read. Raises UserError if the file is damaged, or a row is not as `check_rows` asks.
    """
    name = FILES["arrow"][0].path(manifest["shard"])
    if name not in manifest["files"]:
        return
    try:
        with store.open_arrow(name) as source:
            reader = open_arrow_columns(source, columns)
            for i in range(first, reader.num_record_batches):
                batch = reader.get_batch(i)
                batch.validate(full=True)
                check_rows(batch, f" of batch {i}")
                yield batch
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise damaged_error(store, manifest, name, error) from error


def damaged_error(store: Store, manifest: Manifest, name: str, error: Exception) -> UserError:
    """Return the error for a damaged file of a finished shard."""
    return UserError(
        f"{store.url(name)} is damaged ({one_line(error)}); delete the manifest "
        f"{store.url(MANIFEST_FILE.path(manifest['shard']))}, and run the job again to replace the shard"
    )


def read_batch(store: Store, manifest: Manifest, columns: Sequence[str], number: int) -> pa.RecordBatch:
    """Return one batch of arrow/ with these columns, without reading those before it. Raises like `read_batches`."""
    return next(read_batches(store, manifest, columns, number))


def open_arrow_columns(source: pa.NativeFile, columns: Sequence[str]) -> pa.ipc.RecordBatchFileReader:
    """Open a file of arrow/ with only these columns.

    Raises ValueError for a file that lacks one or has another type, since other types than those of SCORED may
    repeat values without end, and like `open_arrow_file`.
    """
    schema = pa.ipc.open_file(source).schema
    fields = sorted(schema.get_field_index(name) for name in columns)
    if -1 in fields:
        raise ValueError(f"it has not all of the columns {', '.join(columns)}")
    if odd := [name for name in columns if schema.field(name).type != SCORED.field(name).type]:
        raise ValueError(f"the column {odd[0]} has the type {str(schema.field(odd[0]).type)[:80]}")
    is_known = all(name in SCORED.names and schema.field(name).type == SCORED.field(name).type for name in schema.names)
    ends = list(accumulate((count_buffers(kind) for kind in schema.types), initial=0)) if is_known else []
    buffers = {number for i in fields for number in range(ends[i], ends[i + 1])} if is_known else None
    return open_arrow_file(source, has_rows=True, buffers=buffers, included_fields=fields)


def read_rows(
    store: Store, manifests: Iterable[Manifest], columns: Sequence[str], where: pc.Expression | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of shards one by one, with only these columns; those for which `where`, if given, is true.

    Raises like `read_batches`.
    """
    for manifest in manifests:
        for batch in read_batches(store, manifest, columns):
            yield from (batch if where is None else batch.filter(where)).to_pylist()


def is_one_of(column: str, texts: Iterable[str]) -> pc.Expression:
    """Return the condition of `read_rows` that a column has one of these texts."""
    return pc.field(column).isin(pa.array(list(texts), pa.string()))


# The stored images of some rows: from arrow/, or from grit/ by their places in `_index/`, or its whole tar if that is cheaper.

WHOLE: Final = 0.5
"""Share of the kept rows of a shard from which on its tar is read as a whole."""


def read_images(store: Store, manifest: Manifest, keys: Collection[str]) -> dict[str, bytes]:
    """Return the stored images of the rows with these keys; rows without one are skipped.

    Raises UserError if a file is lost or damaged.
    """
    is_wanted = is_one_of("key", keys) & pc.field("image").is_valid()
    images = {row["key"]: row["image"] for row in read_rows(store, [manifest], ("key", "image"), is_wanted)}
    return images | images_of_grit(store, manifest, set(keys) - images.keys())


def images_of_grit(store: Store, manifest: Manifest, keys: set[str]) -> dict[str, bytes]:
    """Return the images of the rows with these keys in grit/. Raises like `read_images`."""
    name, found = FILES["grit"][0].path(manifest["shard"]), dict[str, bytes]()
    if not keys or name not in manifest["files"]:
        return found
    try:
        if len(keys) < WHOLE * manifest["counts"]["kept"]:
            places = image_places(store, manifest, keys)
            parts = map_concurrently(lambda place: store.read_part(name, *place), places.values())
            found = dict(zip(places, parts, strict=True))
        if missing := keys - found.keys():
            images = ((key, read_at(*place)) for key, place, read_at in tar_images(store, name) if key in missing)
            found |= islice(images, len(missing))
    except store_errors(TarError, ValueError) as error:
        raise damaged_error(store, manifest, name, error) from error
    return found


def tar_images(store: Store, name: str) -> Iterator[tuple[str, tuple[int, int], Callable[[int, int], bytes]]]:
    """Yield the key of each image in a tar of grit/, its offset and size, and what reads it there."""
    with store.open(name) as file:
        read_at = reader_of(file)
        for member in iter_members(read_at, 0, file.seek(0, os.SEEK_END)):
            key, _, extension = member.name.partition(".")
            if extension == GRIT_IMAGE:
                yield key, (member.data_offset, member.size), read_at


def image_places(store: Store, manifest: Manifest, keys: Collection[str] | None = None) -> dict[str, tuple[int, int]]:
    """Return offset and size of the images of these rows, or of all, in grit/; {} for a shard without an index."""
    name, tar = INDEX_FILE.path(manifest["shard"]), FILES["grit"][0].path(manifest["shard"])
    if (keys is not None and not keys) or not {name, tar} <= manifest["files"].keys():
        return {}
    content = store.read_spare(name)
    if content is None or stamp_of(content) != manifest["files"][name]["sha256"]:
        return {}
    try:
        index = read_arrow_file(content, INDEX)
        index = index.filter(pc.equal(index["format"].cast(pa.string()), "grit"))
        if keys is not None:
            index = index.filter(pc.is_in(index["key"], pa.array(sorted(keys))))
        members = zip(index["key"].to_pylist(), index["members"].to_pylist(), strict=True)
        return {
            key: (member["offset"], member["size"]) for key, found in members for member in found
            if member["name"] == GRIT_IMAGE
        }  # fmt: skip
    except (pa.ArrowException, KeyError, ValueError):
        return {}  # a damaged index: the tar is read instead


# The summary of a shard, computed from arrow/ where the worker that wrote the shard has left none.


def count_shard(store: Store, manifest: Manifest) -> Summary:
    """Count the rows of a shard. Raises UserError if a file is damaged, and ValueError if rows and manifest disagree."""
    return summarize(manifest, read_batches(store, manifest, COLUMNS))


def write_summary(store: Store, manifest: Manifest) -> Summary:
    """Count a shard, and write its summary. Raises like `count_shard`."""
    summary, index = count_shard(store, manifest), manifest["shard"]
    content = SummaryFile({index: manifest_hash(manifest)}, summary).to_bytes()
    store.write_bytes(SUMMARY_FILE.path(index), content)
    return summary


def stamp_of(content: bytes) -> str:
    """Return the hash of the file of a manifest by which its summary knows it."""
    return hashlib.sha256(content).hexdigest()


def summarize(manifest: Manifest, batches: Iterable[pa.RecordBatch]) -> Summary:
    """Return the summary of a shard with these rows.

    A shard without arrow/ has no batches, and contributes only the counts of its manifest. Raises ValueError if the
    rows and the manifest disagree.
    """
    summary = Summary(rows=RowCounts([checked_counts(manifest)]), chosen=choose(manifest))
    for name, facts in manifest["files"].items():
        if (kind := name.partition("/")[0]) in FILES:
            summary.n_bytes[kind] += facts["bytes"]
    if "arrow" not in manifest["formats"]:
        summary.without_rows = 1
        summary.totals.add_manifest(manifest)
        return summary
    totals, has_rows = summary.totals, False
    for batch in batches:
        totals.add(batch, has_grounder(manifest["provenance"]))
        has_rows = True
    found, recorded = (totals.kept, dict(totals.drops)), (summary.rows.sums["kept"], +summary.rows.dropped)
    if has_rows and found != recorded:
        raise CountsError(manifest, f"the counts of its rows and of its manifest disagree: {found}, {recorded}")
    return summary


def choose(manifest: Manifest) -> Chosen:
    """Return a shard as a place for pictures and examples."""
    chosen = Chosen()
    chosen.add_kept([manifest["shard"]] if manifest["counts"]["kept"] else [])
    for stage, reasons in manifest["counts"]["dropped"].items():
        for reason, n in reasons.items():
            if n:
                chosen.add_dropped((stage, reason), [manifest["shard"]])
    return chosen


def batches_of(rows: Sequence[Row]) -> Iterable[pa.RecordBatch]:
    """Yield rows of a SCORED table as batches with the columns that are counted."""
    schema = pa.schema([SCORED.field(name) for name in COLUMNS])
    for first in range(0, len(rows), BATCH_ROWS):
        yield pa.RecordBatch.from_pylist(list(rows[first : first + BATCH_ROWS]), schema=schema)
