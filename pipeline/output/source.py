"""Read the shards of a finished output as tables, with their images."""

import bisect
import dataclasses
import itertools
import os
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
from omegaconf import DictConfig, OmegaConf

from hypergrit_common.config import RESOLVED_FILE, Keys, check_yaml, flatten, merge, read_layers
from hypergrit_common.errors import UserError
from hypergrit_common.paths import absolute, check_output_is_absolute
from hypergrit_common.remote import map_concurrently
from hypergrit_common.tar import iter_members, reader_of
from hypergrit_common.text import one_line
from hypergrit_common.urls import check_no_user
from pipeline.config import KEYS, PipelineConfig, make_config
from pipeline.faults import ShardError
from pipeline.output.contents import file_problem
from pipeline.output.ledger import check_finished, read_batches, read_images, read_manifests, stamp_of
from pipeline.output.manifest import manifest_hash, read_manifest
from pipeline.output.record import check_complete
from pipeline.output.store import Store, temporary_folder_prefix
from schemas.files import FILES, GRIT_IMAGE, INDEX_FILE, MANIFEST_FILE
from schemas.layout import ShardFile
from schemas.manifest import Manifest, SourceShard
from schemas.rows import SCORED
from schemas.status import KEPT
from schemas.table import conform, set_column

# The settings of a command: those of the job that wrote its source, with the changes of the command line.

Options = TypeVar("Options")

RUNNING: Final = ("log", "quiet", "ray", "report")
"""Settings that every command takes: they do not decide the content."""


def read_config(store: Store, changes: Sequence[str] = (), loads: bool = False) -> PipelineConfig:
    """Return the configuration of the job that wrote an output, with the changes of `key=value` arguments.

    `loads`: its stages will run, so that code of the user which it names is imported if `changes`
    name it too. Raises UserError naming the file or argument, the key and the fix.
    """
    name, content = store.url(RESOLVED_FILE), store.read(RESOLVED_FILE)
    if content is None:
        raise UserError(f"{name} does not exist; give the output folder of a job")
    try:
        text = content.decode()
        check_yaml(text)
        layer: Any = OmegaConf.create(text)
    except Exception as error:  # PyYAML and OmegaConf raise many types
        raise UserError(f"{name} cannot be read: {one_line(error)}") from None
    if not isinstance(layer, DictConfig):
        raise UserError(f"{name} must hold `key: value` lines")
    return make_config([(layer, name)], read_layers(changes, KEYS), loads=loads)


def given_keys(changes: Sequence[str]) -> set[str]:
    """Return the full keys that `key=value` arguments set. Raises UserError like `read_config`."""
    layers = (OmegaConf.to_container(layer) for layer, _ in read_layers(changes, KEYS))
    return {key for layer in layers if isinstance(layer, dict) for key in flatten(cast(dict[str, Any], layer))}


def check_keys(changes: Sequence[str], taken: Collection[str], command: str, same: Collection[str] = ()) -> None:
    """Raise UserError if `key=value` arguments set a key that is not among `taken`: the command would ignore it.

    The name of a group allows all settings of the group. The `same` keys have their values in the job.
    """
    for key in sorted(given_keys(changes).difference(same)):
        if not any(key == name or key.startswith(f"{name}.") for name in taken):
            raise UserError(f"{command} cannot change {key}, a setting of the job; it takes {', '.join(sorted(taken))}")


def take_paths(arguments: Sequence[str], name: str) -> tuple[list[str], list[str]]:
    """Return the absolute values of all `name=PATH`, and the other arguments.

    Raises UserError if the argument is missing or empty, and for a URL with a user name or a password.
    """
    paths = [item.partition("=")[2] for item in arguments if item.startswith(f"{name}=")]
    if not paths or not all(paths):
        raise UserError(f"{name} is not set; give {name}=...")
    for path in paths:
        check_no_user(name, path)
    return [absolute(path) for path in paths], [item for item in arguments if not item.startswith(f"{name}=")]


def take_path(arguments: Sequence[str], name: str) -> tuple[str, list[str]]:
    """Return the absolute value of `name=PATH`, and the other arguments. Raises UserError like `take_paths`.

    Also raises it if there are several, and for a relative output of a Ray job.
    """
    paths, others = take_paths(arguments, name)
    if len(paths) > 1:
        raise UserError(f"{name} is given {len(paths)} times; give one")
    if name == "output":
        given = next(item.partition("=")[2] for item in arguments if item.startswith(f"{name}="))
        check_output_is_absolute(given, "an absolute path or a URL")
    return paths[0], others


def is_option(argument: str, keys: Collection[str] = ()) -> bool:
    """Return True for key=value, and for all values of `keys`; False for paths, also such as data/date=2026."""
    name, sign, _ = argument.partition("=")
    return bool(sign) and (name in keys or ("/" not in name and not os.path.exists(argument)))


def take_output(arguments: Sequence[str], usage: str) -> tuple[str, list[str]]:
    """Return the absolute output that a command changes in place, and the `key=value` arguments.

    Raises UserError unless there is one, and for a URL with a user name or a password.
    """
    outputs = [item for item in arguments if not is_option(item)]
    if len(outputs) != 1:
        raise UserError(f"{len(outputs)} outputs are given; give one: {usage}")
    check_no_user("OUT", outputs[0])
    return absolute(outputs[0]), [item for item in arguments if is_option(item)]


def take_options(arguments: Sequence[str], cls: type[Options]) -> tuple[Options, list[str]]:
    """Return the options of a command, whose keys are the fields of `cls`, and the other arguments.

    Raises UserError for a value of the wrong type, and for an argument that is no `key=value`.
    """
    names = {item.name for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
    mine = [item for item in arguments if item.partition("=")[0] in names]
    if plain := [item for item in arguments if "=" not in item]:
        raise UserError(f"{plain[0]!r} is not key=value; see --help for the keys")
    options = merge(cls, read_layers(mine, Keys()))
    assert isinstance(options, cls)
    return options, [item for item in arguments if item not in mine]


def new_config(store: Store, changes: Sequence[str], output: str, allowed: Collection[str]) -> PipelineConfig:
    """Return the configuration of a rewritten output: that of the source with the `key=value` arguments `changes`.

    Raises UserError if a change is neither in `allowed` nor a setting without influence on the content.
    """
    old, new = read_config(store), read_config(store, changes)
    check_keys(changes, (*allowed, *RUNNING, "overwrite"), "rewrite")
    if old.write.strip_url_queries and not new.write.strip_url_queries:
        raise UserError("write.strip_url_queries=false: the source has no queries any more; leave it true")
    return dataclasses.replace(new, output=output)


class Source:
    """A finished output. Raises UserError if it has no finished shard, or one that cannot be read with all its rows, and if
    it lacks shards, unless `incomplete`.

    `read_table` reads a shard. `left_out` are the shards that it lacks, or its sources lacked.
    """

    def __init__(self, output: str, incomplete: bool = False) -> None:
        self.output, self.store = output, Store(output)
        self.manifests = {manifest["shard"]: manifest for manifest in read_manifests(self.store)}
        check_finished(self.store, self.manifests)
        self.left_out = check_complete(self.store, output, self.manifests, incomplete)
        for manifest in self.manifests.values():
            check_formats(self.store, manifest)

    @property
    def config(self) -> PipelineConfig:
        """The configuration of the job. Raises UserError if it cannot be read."""
        return read_config(self.store)

    @property
    def n_settings(self) -> int:
        """The number of different settings of the shards."""
        return len({manifest["provenance"]["config_hash"] for manifest in self.manifests.values()})

    @property
    def is_mixed(self) -> bool:
        """True if the shards were made with different settings (`rewrite mixed=true`)."""
        return self.n_settings > 1

    def shard(self, index: int) -> SourceShard:
        """Return the identity of a shard."""
        return {"output": self.output, "shard": index, "manifest": manifest_hash(self.manifests[index])}


def check_formats(store: Store, manifest: Manifest) -> None:
    """Raise UserError unless a shard has all rows, in arrow/, and the images of the kept rows."""
    formats = set(manifest["formats"])
    name = store.url(store.file(MANIFEST_FILE, manifest["shard"]))
    if "arrow" not in formats:
        raise UserError(
            f"{name}: the shard has no arrow/ file, which holds all rows; run the job with formats=[arrow,grit]"
        )
    if "grit" not in formats and manifest["counts"]["kept"] and not stores_images(store, manifest):
        raise UserError(
            f"{name}: the shard has no stored images; run the job with formats=[arrow,grit], or write.image_bytes=true"
        )


READ: Final = (FILES["arrow"][0], FILES["grit"][0])
"""The files that `read_table` reads."""


def check_hashes(store: Store, manifest: Manifest, kinds: Sequence[ShardFile] = READ) -> None:
    """Raise ShardError if one of these files is not that of the manifest, whose damage a copy would hide."""
    with tempfile.TemporaryDirectory(prefix=temporary_folder_prefix()) as folder:
        for name in (store.file(kind, manifest["shard"]) for kind in kinds):
            if name in manifest["files"] and (problem := file_problem(store, name, manifest["files"][name], folder)):
                again = f"run `hypergrit verify {store.url('').rstrip('/')} requeue=true`, then the job that wrote it"
                raise ShardError(f"shard {manifest['shard']} of {store.root} is damaged ({name}: {problem}); {again}")


def stores_images(store: Store, manifest: Manifest) -> bool:
    """Return True if arrow/ of a shard has the image of its first kept row."""
    for batch in read_batches(store, manifest, ("status", "image")):
        kept = pc.equal(batch["status"], KEPT)
        if pc.any(kept).as_py():
            return bool(batch.filter(kept)["image"][0].is_valid)
    return False


def read_table(output: str, source: SourceShard) -> pa.Table:
    """Return the SCORED table of a shard with the images of the kept rows.

    Raises UserError if the shard has changed since the command was started, or lacks an image.
    """
    store = Store(output)
    manifest = unchanged_manifest(store, source)
    batches = list(read_batches(store, manifest, SCORED.names))
    table = conform(pa.Table.from_batches(batches).select(SCORED.names), SCORED) if batches else SCORED.empty_table()
    return with_images(table, store, manifest)


def unchanged_manifest(store: Store, source: SourceShard) -> Manifest:
    """Return the manifest of a shard. Raises UserError if the shard has changed since the command was started."""
    manifest = read_manifest(store, source["shard"])
    if manifest is None or manifest_hash(manifest) != source["manifest"]:
        raise UserError(
            f"{store.url(store.file(MANIFEST_FILE, source['shard']))} has changed while it was read; run the command again "
            "when no other job writes to this output"
        )
    return manifest


def with_images(table: pa.Table, store: Store, manifest: Manifest) -> pa.Table:
    """Return the table with the images of all kept rows, from grit/ where arrow/ has none. Raises UserError."""
    missing = without_image(table)
    if len(missing) < WHOLE * manifest["counts"]["kept"]:
        table = with_indexed_images(table, store, manifest)
        missing = without_image(table)
    if not missing:
        return table
    found = read_images(store, manifest, missing)
    if lost := sorted(missing - found.keys()):
        name = store.url(store.file(FILES["grit"][0], manifest["shard"]))
        raise UserError(f"{name}: the image of row {lost[0]} is missing ({len(lost)} rows); see hypergrit verify")
    return add_images(table, found)


def without_image(table: pa.Table) -> set[str]:
    """Return the keys of the kept rows whose image is null."""
    lacks_image = pc.and_(pc.equal(table["status"], KEPT), pc.is_null(table["image"]))
    return set(table["key"].filter(lacks_image).to_pylist())


def add_images(table: pa.Table, found: Mapping[str, bytes]) -> pa.Table:
    """Return the table with the images in `found`, by key."""
    images = [
        found.get(row, image) for row, image in zip(*(table[n].to_pylist() for n in ("key", "image")), strict=True)
    ]
    return set_column(table, "image", pa.array(images, pa.binary()))


# Read images of some rows by their places in `_index/`, or the whole tar if that is cheaper.

WHOLE: Final = 0.5
"""Share of the kept rows of a shard from which on its tar is read as a whole."""


def with_indexed_images(table: pa.Table, store: Store, manifest: Manifest) -> pa.Table:
    """Return the table with the images of its kept rows that `_index/` finds in grit/."""
    places = image_places(store, manifest, without_image(table))
    tar = store.file(FILES["grit"][0], manifest["shard"])

    def read(place: tuple[int, int]) -> bytes:
        return bytes(store.fs.cat_file(store.readable(tar), start=place[0], end=sum(place)))

    with store.convert_errors("read", tar):
        found = dict(zip(places, map_concurrently(read, places.values()), strict=True))
    return add_images(table, found)


def image_places(store: Store, manifest: Manifest, keys: Collection[str] | None = None) -> dict[str, tuple[int, int]]:
    """Return offset and size of the images of these rows, or of all, in grit/; {} for a shard without an index."""
    name, tar = store.file(INDEX_FILE, manifest["shard"]), store.file(FILES["grit"][0], manifest["shard"])
    if (keys is not None and not keys) or not {name, tar} <= manifest["files"].keys():
        return {}
    content = store.read_spare(name)
    if content is None or stamp_of(content) != manifest["files"][name]["sha256"]:
        return {}
    try:
        index = pa.ipc.open_file(pa.BufferReader(content)).read_all()
        index.validate(full=True)
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


# Single rows of an output: their images, and everything that arrow/ holds about them.

DETAILS: Final = (
    *("key", "id", "url", "source", "source_row", "status", "stage", "reason", "detail"),
    *("caption", "caption_original", "extra", "width", "height", "original_width", "original_height"),
    *("original_format", "sha256", "tokens", "noun_chunks", "ref_exps", "boxes", "box_scores", "clip_similarity"),
    "head_score",
)
"""Columns that the page shows of an opened row."""
CHUNK_ROWS: Final = 128
"""Rows of a file of details; those of arrow/ are read 1024 at a time."""
OPEN_SHARDS: Final = 64
Row = dict[str, Any]


@dataclass(frozen=True)
class Shard:
    """A finished shard; its keys and the places of its images are read once. Rows are numbered from 0."""

    store: Store
    manifest: Manifest

    @cached_property
    def keys(self) -> list[list[str]]:
        """The keys of the rows, by batch of arrow/."""
        return [batch["key"].to_pylist() for batch in read_batches(self.store, self.manifest, ("key",))]

    @cached_property
    def starts(self) -> list[int]:
        """The number of the first row of each batch, and the number of all rows."""
        return list(itertools.accumulate(map(len, self.keys), initial=0))

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return self.starts[-1]

    @cached_property
    def places(self) -> Mapping[str, tuple[int, int]]:
        """Key -> offset and size of the image in grit/: from `_index/`, or from the headers of the tar without it."""
        return image_places(self.store, self.manifest) or self._places_in_tar()

    def _places_in_tar(self) -> dict[str, tuple[int, int]]:
        name = self.store.file(FILES["grit"][0], self.manifest["shard"])
        if name not in self.manifest["files"]:
            return {}
        with self.store.open(name) as file:
            members = iter_members(reader_of(file), 0, self.manifest["files"][name]["bytes"])
            parts = ((member.name.partition("."), member) for member in members)
            return {key: (m.data_offset, m.size) for (key, _, kind), m in parts if kind == GRIT_IMAGE}

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise UserError at the end if the shard was written again since the start, or is being written.

        Its manifest is removed before its files are replaced, so that what was read before is that of the manifest.
        """
        try:
            yield
        finally:
            if read_manifest(self.store, self.manifest["shard"]) != self.manifest:
                raise UserError(f"shard {self.manifest['shard']} of {self.store.root} has changed")

    def image(self, number: int) -> bytes | None:
        """Return the stored image of a row, or None without one. Raises UserError if the shard has changed."""
        with self.unchanged():
            batch, place = self._place(number)
            if at := self.places.get(self.keys[batch][place]):
                path = self.store.readable(self.store.file(FILES["grit"][0], self.manifest["shard"]))
                return bytes(self.store.fs.cat_file(path, start=at[0], end=sum(at)))
            image: bytes | None = read_batch(self.store, self.manifest, ("image",), batch)["image"][place].as_py()
            return image

    def details(self, chunk: int) -> list[Row]:
        """Return the rows of a chunk, CHUNK_ROWS consecutive ones, with DETAILS. Raises UserError like `image`."""
        first, end = chunk * CHUNK_ROWS, min((chunk + 1) * CHUNK_ROWS, self.n_rows)
        rows = list[Row]()
        with self.unchanged():
            while first < end:
                number, place = self._place(first)
                batch = read_batch(self.store, self.manifest, DETAILS, number).slice(place, end - first)
                rows += batch.to_pylist()
                first += batch.num_rows
        return rows

    def row(self, number: int) -> Row:
        """Return a row with DETAILS. Raises IndexError if the shard has none with this number, UserError like `image`."""
        self._place(number)
        chunk, place = divmod(number, CHUNK_ROWS)
        return self.details(chunk)[place]

    def _place(self, number: int) -> tuple[int, int]:
        """Return the batch of a row, and its place there. Raises IndexError if the shard has no such row."""
        if not 0 <= number < self.n_rows:
            raise IndexError(f"shard {self.manifest['shard']} has no row {number}")
        batch = bisect.bisect_right(self.starts, number) - 1
        return batch, number - self.starts[batch]


def read_batch(store: Store, manifest: Manifest, columns: Sequence[str], number: int) -> pa.RecordBatch:
    """Return one batch of arrow/ with these columns, without reading those before it."""
    with store.open_arrow(store.file(FILES["arrow"][0], manifest["shard"])) as source:
        schema = pa.ipc.open_file(source).schema
        fields = sorted(schema.get_field_index(name) for name in columns)
        batch = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=fields)).get_batch(number)
        batch.validate(full=True)
        return batch


class Shards:
    """The shards of an output by index; a few of them are kept open."""

    def __init__(self, store: Store, manifests: list[Manifest]) -> None:
        self._manifests = {manifest["shard"]: manifest for manifest in manifests}
        self._lock = threading.Lock()
        self._opened = lru_cache(OPEN_SHARDS)(lambda index: Shard(store, self._manifests[index]))

    def get(self, index: int) -> Shard:
        """Return a shard. Raises KeyError if the output has none with this index."""
        with self._lock:
            return self._opened(index)
