"""Read finished shards: manifests, selected columns of arrow/, and images."""

import hashlib
import logging
import os
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from hypergrit_common.arrow_sizes import open_arrow_file, read_arrow_file
from hypergrit_common.errors import UserError
from hypergrit_common.remote import map_concurrently, one_line, store_errors
from hypergrit_common.tar import TarError, iter_members, reader_of
from pipeline.output.counts import summarize
from pipeline.output.manifest import manifest_hash, parse_manifest
from pipeline.output.store import Store, indices
from pipeline.output.write.tar import Place, SamplePlace
from pipeline.summary.totals import COLUMNS, Summary, SummaryFile
from schemas.files import FILES, GRIT_IMAGE, INDEX, MANIFEST_FILE, SUMMARY_FILE
from schemas.manifest import Manifest, Models
from schemas.rows import SCORED, VERSION

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


def read_batches(store: Store, manifest: Manifest, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a shard in batches, with only these columns; nothing if the shard has no arrow/ file.

    Raises UserError if the file is damaged.
    """
    name = FILES["arrow"][0].path(manifest["shard"])
    if name not in manifest["files"]:
        return
    batches = _read_batches(store, name, columns)
    while True:
        try:
            batch = next(batches)
            batch.validate(full=True)
        except StopIteration:
            return
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise damaged_error(store, manifest, name, error) from error
        yield batch


def damaged_error(store: Store, manifest: Manifest, name: str, error: Exception) -> UserError:
    """Return the error for a damaged file of a finished shard."""
    return UserError(
        f"{store.url(name)} is damaged ({one_line(error)}); delete the manifest "
        f"{store.url(MANIFEST_FILE.path(manifest['shard']))}, and run the job again to replace the shard"
    )


def _read_batches(store: Store, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with store.open_arrow(name) as source:
        reader = open_arrow_columns(source, columns)
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)


def open_arrow_columns(source: pa.NativeFile, columns: Sequence[str]) -> pa.ipc.RecordBatchFileReader:
    """Open a file of arrow/ with only these columns.

    Raises ValueError for a file that lacks one or has another type, since other types than those of SCORED may
    repeat values without end, and like `open_arrow_file`.
    """
    schema = open_arrow_file(source, has_rows=True).schema
    fields = sorted(schema.get_field_index(name) for name in columns)
    if -1 in fields:
        raise ValueError(f"it has not all of the columns {', '.join(columns)}")
    if odd := [name for name in columns if schema.field(name).type != SCORED.field(name).type]:
        raise ValueError(f"the column {odd[0]} has the type {str(schema.field(odd[0]).type)[:80]}")
    return pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=fields))


def read_images(store: Store, manifest: Manifest, keys: Collection[str]) -> dict[str, bytes]:
    """Return the stored images of the rows with these keys, from arrow/ or grit/; rows without one are skipped.

    Raises UserError if a file is lost or damaged.
    """
    images: dict[str, bytes] = {}
    for batch in read_batches(store, manifest, ("key", "image")):
        for key, image in zip(batch["key"].to_pylist(), batch["image"], strict=True):
            if key in keys and image.is_valid:
                images[key] = image.as_py()
    name, missing = FILES["grit"][0].path(manifest["shard"]), set(keys) - set(images)
    if missing and name in manifest["files"]:
        try:
            images |= _images_of_tar(store, name, missing)
        except store_errors(TarError, ValueError) as error:
            raise damaged_error(store, manifest, name, error) from error
    return images


def _images_of_tar(store: Store, name: str, keys: set[str]) -> dict[str, bytes]:
    images: dict[str, bytes] = {}
    with store.open(name) as file:
        read_at = reader_of(file)
        for member in iter_members(read_at, 0, file.seek(0, os.SEEK_END)):
            key, _, extension = member.name.partition(".")
            if key in keys and extension == GRIT_IMAGE:
                images[key] = read_at(member.data_offset, member.size)
            if len(images) == len(keys):
                break
    return images


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


# Find keys that are in more than one shard: every row has a key of its own in the whole output.

CHUNK: Final = 1 << 16
"""Consecutive numbers whose bits are in one array, of 8 KiB."""


@dataclass
class ShardKeys:
    """The keys of the rows of a shard: numbers, as `read` gives them, and other texts."""

    numbers: "array[int]" = field(default_factory=lambda: array("q"))
    texts: list[str] = field(default_factory=list)

    def add(self, key: str) -> None:
        """Add the key of a row."""
        if key.isascii() and key.isdigit() and len(key) <= 18 and f"{int(key):012d}" == key:
            self.numbers.append(int(key))
        else:
            self.texts.append(key)


class AllKeys:
    """The keys of the shards seen so far: a bit for each number, and the texts. 10^9 rows take 125 MB."""

    def __init__(self) -> None:
        self._bits: dict[int, np.ndarray] = {}
        self._texts: set[str] = set()

    def add(self, keys: ShardKeys) -> list[str]:
        """Add the keys of a shard; return those that another shard has."""
        repeated = sorted(self._texts & set(keys.texts))
        self._texts.update(keys.texts)
        if not keys.numbers:
            return repeated
        numbers = np.unique(np.frombuffer(keys.numbers, np.int64))
        chunks, starts = np.unique(numbers // CHUNK, return_index=True)
        for chunk, places in zip(chunks.tolist(), np.split(numbers % CHUNK, starts[1:]), strict=True):
            flags = np.zeros(CHUNK, bool)
            flags[places] = True
            new, old = np.packbits(flags), self._bits.get(chunk)
            if old is not None:
                found = np.flatnonzero(np.unpackbits(new & old))
                repeated += [f"{chunk * CHUNK + place:012d}" for place in found.tolist()]
                new |= old
            self._bits[chunk] = new
        return repeated


# Read the samples of a tar, and the index of a shard.

Sample = tuple[str, dict[str, bytes]]
"""Key and members of a sample."""


def read_samples(store: Store, name: str, places: Iterable[SamplePlace]) -> Iterator[Sample]:
    """Yield the samples of a tar with the contents of their members. Raises ValueError if a member occurs twice."""
    with store.open(name) as file:
        read_at = reader_of(file)
        for sample in places:
            if len({member.name for member in sample.members}) != len(sample.members):
                raise ValueError(f"a member of sample {sample.key} occurs twice")
            yield sample.key, {member.name: read_at(member.offset, member.size) for member in sample.members}


def indexed_places(path: str) -> dict[str, list[SamplePlace]]:
    """Read `_index/` of a shard: format -> places.

    Raises ValueError if it has another schema, and errors of Arrow if it is damaged.
    """
    found: dict[str, list[SamplePlace]] = {}
    with pa.memory_map(path) as source:
        table = read_arrow_file(source)
        if not table.schema.equals(INDEX):
            raise ValueError(f"its columns are {', '.join(table.schema.names)}, but should be {', '.join(INDEX.names)}")
        for row in table.to_pylist():
            members = [Place(member["name"], member["offset"], member["size"]) for member in row["members"]]
            place = SamplePlace(row["key"], row["offset"], row["offset"] + row["size"], members)
            found.setdefault(row["format"], []).append(place)
    return found
