"""Read finished shards: manifests, selected columns of arrow/, and images."""

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa

from common.errors import UserError
from common.remote import map_concurrently, one_line
from common.tar import iter_members, reader_of
from pipeline.write.attempts import with_all_before
from pipeline.write.layout import indices
from pipeline.write.manifest import parse_manifest
from pipeline.write.store import Store
from schemas.attempts import shard_of
from schemas.files import FILES, GRIT_IMAGE, MANIFEST_FILE
from schemas.manifest import Manifest
from schemas.rows import VERSION

logger = logging.getLogger("hypergrit")


def check_finished(store: Store, shards: Collection[object]) -> None:
    """Raise UserError if an output does not exist or has no finished shard."""
    if not shards:
        if store.is_local and not os.path.lexists(store.root):
            raise UserError(f"{store.root} does not exist; check the path, or run the job with this output first")
        raise UserError(f"no finished shard in {store.root}; check the path, or run the job with this output first")


def read_manifests(store: Store, only: Collection[int] | None = None) -> list[Manifest]:
    """Return the manifests of the finished shards, or of those with an index in `only`, in order.

    Later attempts at rows of a shard in `only` are read too, and attempts of which an earlier one has gone are left out.
    Shards of earlier versions with the same major schema version are read too. Raises UserError if one has another
    major schema version.
    """
    found = indices(store, MANIFEST_FILE)
    if only is not None:
        selected = set(only)
        found = [index for index in found if shard_of(index) in selected or index in selected]
    return read_manifests_of(store, found)


def read_manifests_of(store: Store, indices: Collection[int]) -> list[Manifest]:
    """Return the manifests of these shards, in order, of those that still exist; the output is not listed."""
    files = [store.file(MANIFEST_FILE, index) for index in indices]
    contents = zip(files, map_concurrently(store.read, files), strict=True)
    return parse_manifests(store, {file: content for file, content in contents if content is not None})


def parse_manifests(store: Store, contents: Mapping[str, bytes]) -> list[Manifest]:
    """Return the manifests in these files, in the order of their shards.

    Damaged ones are left out, and attempts of which an earlier one has gone. Raises UserError if one has another major
    schema version.
    """
    manifests: list[Manifest] = []
    for file, content in contents.items():
        manifest = parse_manifest(content)
        if manifest is not None:
            manifests.append(manifest)
        else:
            logger.warning("%s is no manifest, and its shard is left out; the next run of the job computes it again",
                           store.url(file))  # fmt: skip
    major = VERSION.partition(".")[0]
    old = next((manifest for manifest in manifests if manifest["schema"].partition(".")[0] != major), None)
    if old:
        raise UserError(
            f"shard {old['shard']} of {store.root} has schema {old['schema']}, but this version of HyperGRIT reads "
            f"{major}.x; run the job again to replace the shard"
        )
    return with_all_before(manifests)


def read_batches(store: Store, manifest: Manifest, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a shard in batches, with only these columns; nothing if the shard has no arrow/ file.

    Raises UserError if the file is damaged.
    """
    name = store.file(FILES["arrow"][0], manifest["shard"])
    if name not in manifest["files"]:
        return
    batches = _read_batches(store, store.path(name), columns)
    while True:
        try:
            batch = next(batches)
            batch.validate(full=True)
        except StopIteration:
            return
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise UserError(
                f"{store.url(name)} is damaged ({one_line(error)}); delete the manifest "
                f"{store.url(store.file(MANIFEST_FILE, manifest['shard']))}, and run the job again to replace the shard"
            ) from error
        yield batch


def _read_batches(store: Store, path: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(path) if store.is_local else pa.PythonFile(store.fs.open(path, "rb"), "r") as source:
        schema = pa.ipc.open_file(source).schema
        fields = sorted(schema.get_field_index(column) for column in columns)
        if fields[0] < 0:
            raise ValueError(f"it has not all of the columns {', '.join(columns)}")
        reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=fields))
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)


def read_images(store: Store, manifest: Manifest, keys: Collection[str]) -> dict[str, bytes]:
    """Return the stored images of the rows with these keys, from arrow/ or grit/; rows without one are skipped."""
    images: dict[str, bytes] = {}
    for batch in read_batches(store, manifest, ("key", "image")):
        for key, image in zip(batch["key"].to_pylist(), batch["image"], strict=True):
            if key in keys and image.is_valid:
                images[key] = image.as_py()
    name, missing = store.file(FILES["grit"][0], manifest["shard"]), set(keys) - set(images)
    if missing and name in manifest["files"]:
        with store.fs.open(store.path(name), "rb") as file:
            read_at = reader_of(file)
            for member in iter_members(read_at, 0, file.seek(0, os.SEEK_END)):
                key, _, extension = member.name.partition(".")
                if key in missing and extension == GRIT_IMAGE:
                    images[key] = read_at(member.data_offset, member.size)
                    missing.remove(key)
                if not missing:
                    break
    return images
