"""A fast, reproducible tar writer for many small members.

It is faster than `tarfile`, which creates an object, three dictionaries and several copies per member. Here, only the
name, size and checksum of a header vary; times and owners are zero. A name that does not fit into the 100 ASCII bytes
of the ustar format gets a pax header, which all common readers support.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, Final, NamedTuple, Protocol

import pyarrow as pa

from hypergrit_common.paths import public_name
from pipeline.output.write.samples import to_json
from schemas.files import INDEX, INDEX_MEMBER
from schemas.manifest import Provenance
from schemas.rows import VERSION

BLOCK: Final = 512
BUFFER_BYTES: Final = 1 << 20  # one write call for about twenty samples
MAX_MEMBER_BYTES: Final = 8**11 - 1  # eleven octal digits, 8 GiB

_MODE_UID_GID: Final = b"0000644\0" + b"0000000\0" * 2
_END_SIZE_MTIME: Final = b"\0" + b"00000000000\0"
_LINK_MAGIC_OWNER: Final = bytes(100) + b"ustar\x0000" + bytes(64 + 16 + 155 + 12)
# The checksum field itself is summed up as eight spaces.
_FIXED_SUM: Final = sum(_MODE_UID_GID + _END_SIZE_MTIME + _LINK_MAGIC_OWNER) + 8 * ord(" ")
_PADDING: Final = tuple(bytes(-n % BLOCK) for n in range(BLOCK))


class Place(NamedTuple):
    """A member of a tar: its name without the key, the offset of its content, and its size."""

    name: str
    offset: int
    size: int


class SamplePlace(NamedTuple):
    """A sample of a tar: its bytes [start, end), headers included, and its members."""

    key: str
    start: int
    end: int
    members: list[Place]


class Sink(Protocol):
    """A file that TarWriter can write to."""

    def write(self, data: bytes, /) -> int: ...


def header(name: bytes, size: int, kind: bytes = b"0") -> bytes:
    """Return the 512-byte header of a member (POSIX ustar; times and owners are zero)."""
    digits = b"%011o" % size
    checksum = sum(name) + sum(digits) + ord(kind) + _FIXED_SUM
    return b"".join(
        (name.ljust(100, b"\0"), _MODE_UID_GID, digits, _END_SIZE_MTIME, b"%06o\0 " % checksum, kind, _LINK_MAGIC_OWNER)
    )


def pax_path(name: bytes) -> bytes:
    """Return a pax extended header with one record: the full name of the next member."""
    length = len(name) + len(b" path=\n")
    digits = len(str(length))
    digits += len(str(length + digits)) > digits  # the length of the record includes its digits
    record = b"%d path=%s\n" % (length + digits, name)
    return header(b"PaxHeader", len(record), b"x") + record + _PADDING[len(record) % BLOCK]


class TarWriter:
    """Write a tar archive to an open file. `close`, or the end of the `with` block, does not close the file.

    `samples` holds the places of the samples that were added.
    """

    def __init__(self, file: Sink) -> None:
        self.samples: list[SamplePlace] = []
        self._file = file
        self._end = 0  # offset of the next header
        self._parts: list[bytes] = []
        self._pending_bytes = 0

    def add(self, name: str, data: bytes) -> int:
        """Add a member and return the offset of its content. Raises ValueError if it has 8 GiB or more."""
        size = len(data)
        if size > MAX_MEMBER_BYTES:
            raise ValueError(f"tar member {name!r} has {size} bytes; the maximum of the format is {MAX_MEMBER_BYTES}")
        raw = name.encode()
        if len(raw) > 100 or not raw.isascii():
            self._parts.append(extension := pax_path(raw))
            self._end += len(extension)
            raw = raw.decode("ascii", "replace").replace("\ufffd", "_").encode()[:100]
        self._parts += (header(raw, size), data, _PADDING[size % BLOCK])
        offset = self._end + BLOCK
        self._end = offset + size + -size % BLOCK
        self._pending_bytes += size + 2 * BLOCK
        if self._pending_bytes >= BUFFER_BYTES:
            self._flush()
        return offset

    def add_sample(self, key: str, members: Iterable[tuple[str, bytes]]) -> None:
        """Add the members (name, content) of a WebDataset sample, each named `<key>.<name>`."""
        start = self._end
        places = [Place(name, self.add(f"{key}.{name}", data), len(data)) for name, data in members]
        self.samples.append(SamplePlace(key, start, self._end, places))

    def close(self) -> None:
        """End the archive with two empty blocks."""
        self._parts.append(bytes(2 * BLOCK))
        self._flush()

    def _flush(self) -> None:
        self._file.write(b"".join(self._parts))
        self._parts.clear()
        self._pending_bytes = 0

    def __enter__(self) -> "TarWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()


# Write `_index/`: the place of every sample and member in the tars of a shard, for readers with random access.


def write_index(file: IO[bytes], places: Mapping[str, Sequence[SamplePlace]], metadata: dict[str, str]) -> None:
    """Write the places of the samples of each format's tar as one record batch of the schema INDEX."""
    samples = [sample for found in places.values() for sample in found]
    members = [member for sample in samples for member in sample.members]
    bounds = [0]
    for sample in samples:
        bounds.append(bounds[-1] + len(sample.members))
    columns = [
        pa.array([name for name, found in places.items() for _ in found], INDEX.field("format").type),
        pa.array([sample.key for sample in samples], pa.string()),
        pa.array([sample.start for sample in samples], pa.int64()),
        pa.array([sample.end - sample.start for sample in samples], pa.int64()),
        pa.ListArray.from_arrays(
            pa.array(bounds, pa.int32()),
            pa.StructArray.from_arrays(
                [
                    pa.array([member.name for member in members], INDEX_MEMBER.field("name").type),
                    pa.array([member.offset for member in members], pa.int64()),
                    pa.array([member.size for member in members], pa.int64()),
                ],
                fields=list(INDEX_MEMBER),
            ),
            type=INDEX.field("members").type,
        ),
    ]
    schema = INDEX.with_metadata(metadata)
    with pa.ipc.new_file(file, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def file_metadata(provenance: Provenance) -> dict[str, str]:
    """Return the metadata of parquet and Arrow files, in which models have no folders."""
    given: Mapping[str, Any] = provenance["models"]
    models = {role: {**model, "name": public_name(model["name"])} for role, model in given.items()}
    return {"hypergrit_schema": VERSION, "hypergrit_provenance": to_json({**provenance, "models": models}).decode()}
