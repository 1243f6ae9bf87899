"""Reading finished shards: their manifests, the wanted columns of arrow/, and images."""

import json
import tarfile
from collections.abc import Collection, Iterator, Sequence
from typing import Any, BinaryIO, cast

import pyarrow as pa

from common.errors import UserError
from common.remote import map_concurrently
from pipeline.write.store import Store
from schemas.files import FILES, MANIFEST_FILE
from schemas.rows import VERSION

Manifest = dict[str, Any]


def read_manifests(store: Store, only: Collection[int] | None = None) -> list[Manifest]:
    """Manifests of the finished shards (schemas.files.MANIFEST) in order; `only` these numbers, where given.

    Raises UserError if there is none, or one of another version of the schemas.
    """
    folder = MANIFEST_FILE.rsplit("/", 1)[0]
    files = [f"{folder}/{name}" for name in store.names(folder) if name.endswith(".json")]
    if only is not None:
        wanted = {MANIFEST_FILE.format(index) for index in only}
        files = [file for file in files if file in wanted]
    contents = map_concurrently(store.read, files)
    manifests = [json.loads(content) for content in contents if content is not None]
    if not manifests:
        raise UserError(f"no finished shard in {store.root}: run the job with this output first")
    old = next((manifest for manifest in manifests if manifest["schema"] != VERSION), None)
    if old:
        raise UserError(
            f"shard {old['shard']} of {store.root} has schema {old['schema']}, this is {VERSION}: run the job again, which makes it anew"
        )
    return sorted(manifests, key=lambda manifest: manifest["shard"])


def read_batches(store: Store, manifest: Manifest, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The shard's rows with these columns alone, batch by batch; nothing if the run wrote no arrow/."""
    name = FILES["arrow"][0].format(manifest["shard"])
    if name not in manifest["files"]:
        return
    path = store.path(name)
    with pa.memory_map(path) if store.is_local else pa.PythonFile(store.fs.open(path, "rb"), "r") as source:
        schema = pa.ipc.open_file(source).schema
        options = pa.ipc.IpcReadOptions(included_fields=sorted(schema.get_field_index(column) for column in columns))
        reader = pa.ipc.open_file(source, options=options)
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)


def read_images(store: Store, manifest: Manifest, keys: Collection[str]) -> dict[str, bytes]:
    """Stored images of these rows, as far as the run kept them: from arrow/, else from grit/."""
    images: dict[str, bytes] = {}
    for batch in read_batches(store, manifest, ("key", "image")):
        for key, image in zip(batch["key"].to_pylist(), batch["image"], strict=True):
            if key in keys and image.is_valid:
                images[key] = image.as_py()
    name, missing = FILES["grit"][0].format(manifest["shard"]), set(keys) - set(images)
    if missing and name in manifest["files"]:
        with (
            store.fs.open(store.path(name), "rb") as file,
            tarfile.open(fileobj=cast(BinaryIO, file), mode="r|") as tar,
        ):
            for member in tar:
                key = member.name.removesuffix(".jpg")
                if key in missing and member.name.endswith(".jpg") and (content := tar.extractfile(member)):
                    images[key] = content.read()
                    missing.remove(key)
                if not missing:
                    break
    return images
