"""The JSON files of a job: the record of its inputs and settings, what was taken down, and the lease.

The second argument of each `Annotated` is the description of the field in docs/schemas.md.
"""

from typing import Annotated, Any, NotRequired, TypedDict

from schemas.manifest import Provenance


class InputFile(TypedDict):
    """An input file, as it was when its rows were divided into shards."""

    path: Annotated[str, "path or URL in full, which no file of a shard has"]
    size: Annotated[int, "size in bytes"]
    hash: Annotated[
        str,
        "`sha256:` and the hash of the content; for local files above 1 GB `blocks:` and the hash of 64 blocks of 1 MiB "
        "at equal distances, the first and the last included; for local tars above 16 MiB `samples:` and the hash "
        "of 16 such blocks of 64 KiB; for objects `etag:` and the ETag, or another version that the store "
        "gives; for links to files that do not exist `link:` and the target; for folders of images `listing:` "
        "and one hash of the name, size and version of each file (version: modification time or ETag)",
    ]
    footer: NotRequired[Annotated[str, "SHA-256 of the footer of a parquet file that is not hashed completely"]]
    mtime_ns: NotRequired[Annotated[int, "time of modification of a local file; while it, `size`, `ctime_ns` and "
                                         "`inode` are equal, the file is not hashed again"]]  # fmt: skip
    ctime_ns: NotRequired[
        Annotated[int, "time, which cannot be set, of the last change of a local file or its attributes"]
    ]
    inode: NotRequired[Annotated[int, "inode number of a local file"]]
    damage: NotRequired[Annotated[str, "the error at which the rows of a damaged file end"]]
    reading: NotRequired[Annotated[int, "index in `input.readings` of the job: how the file was understood"]]
    tally: NotRequired[
        Annotated[
            dict[str, int],
            "counts of a tar: `pictures`, samples with a picture; `without`, those without; `hidden` members; `links`; and "
            "members that are not read, by the rest of their names",
        ]
    ]
    cuts: Annotated[
        list[list[int]],
        "[row, byte, line] of the first row, of each row at which a shard starts (for parquet files these are left "
        "out), and of the end of the file",
    ]


class InputBatch(TypedDict):
    """Input files that were planned together; each batch begins a new shard."""

    first_shard: Annotated[int, "index of the first shard"]
    first_row: Annotated[int, "index of the first row in the input"]
    shards: Annotated[int, "number of shards"]
    rows: Annotated[int, "number of rows"]
    files: Annotated[list[InputFile], "the files, in the order of their rows"]


class InputReading(TypedDict):
    """How input files of one format with the same columns are read."""

    format: Annotated[str, "name of the format"]
    pictures: Annotated[str, "where the pictures are"]
    encoding: NotRequired[Annotated[str, "encoding of the text"]]
    columns: Annotated[
        dict[str, list[str]],
        "use -> columns: `url`, `caption`, `id`, `image`, `image_path`; `extra`: kept beside them; `unread`: not read",
    ]
    file: Annotated[str, "the first of these files"]
    first_row: Annotated[
        dict[str, str], "its first row as it was read: column of the rows -> text, cut, without the query of a URL"
    ]
    files: NotRequired[Annotated[int, "number of these files; in `stats.json` only"]]
    rows: NotRequired[Annotated[int, "number of their rows; in `stats.json` only"]]
    tally: NotRequired[Annotated[dict[str, int], "sums of the counts of their tars; in `stats.json` only"]]


class UnderstoodInput(TypedDict):
    """How the input of a job was understood, before its first row was read."""

    readings: Annotated[list[InputReading], "the files of each format with their columns, up to 8"]
    not_read: Annotated[dict[str, int], "files beside the input files that are not read: suffix -> number"]


class JobRecord(TypedDict):
    """`_job.json`: the job that wrote the shards. A later run compares itself with it."""

    schema: Annotated[str, "version of the schemas"]
    settings: Annotated[dict[str, Any], "the settings that decide the content, by key"]
    provenance: Annotated[Provenance, "versions, models, thresholds and configuration"]
    secrets: NotRequired[
        Annotated[
            list[str],
            "settings of the downloads that are secret, by name: `proxy`, and each origin with `download.headers`; their "
            "values are not stored, and a later run needs them again",
        ]
    ]
    input: NotRequired[Annotated[UnderstoodInput, "how the input was understood"]]
    folders: NotRequired[
        Annotated[list[str], "local folders of the input; names of files in shards begin with their indices, from 0"]
    ]
    batches: Annotated[list[InputBatch], "the input; the batches after the first are the history of appended files"]


class LeftOut(TypedDict):
    """Shards of a source that were not finished, so that their rows are not in the output."""

    output: Annotated[str, "path or URL of the source"]
    shards: Annotated[list[int], "their indices"]
    rows: Annotated[int | None, "number of their rows; null if it is not known"]


class CommandRecord(TypedDict):
    """`_command.json`: the command that made the shards from finished shards. It tells whether all are there."""

    schema: Annotated[str, "version of the schemas"]
    command: Annotated[str, "name of the command, such as rewrite"]
    shards: Annotated[list[int], "indices of all its shards, finished or not"]
    sources: NotRequired[Annotated[list[str], "outputs that it read; a merge puts their indices before names of files"]]
    left_out: NotRequired[
        Annotated[
            list[LeftOut],
            "unfinished shards of the sources, and shards that are missing in a source because it was itself made "
            "with `incomplete=true`; absent if there are none",
        ]
    ]


class Takedowns(TypedDict):
    """`_takedowns.json`: what was taken down from the output and its sources. Nothing that it names is written again.

    Each field is the base64 of SHA-256 digests, 32 bytes each, in order.
    """

    urls: Annotated[str, "of each URL, in its normal form (hypergrit_common.near_duplicates)"]
    without_queries: Annotated[str, "of each of these URLs without its query, unless `urls` has it"]
    hosts: Annotated[str, "of each host name, which stands for its subdomains too"]
    images: Annotated[str, "of the hash of each image; the hash is a text of 64 hex digits"]
    rows: Annotated[str, "of each key or id that a list named; `urls` and `images` have those of its rows"]


class LeaseRecord(TypedDict):
    """`_lease.json`: the job that writes to the output at present."""

    host: Annotated[str, "host name"]
    process: Annotated[str, "machine, process number and start time, by which a dead holder is recognised"]
    pid: Annotated[int, "process number"]
    started: Annotated[str, "start of the job, ISO 8601"]
    token: Annotated[str, "random text of this lease"]
    heartbeat: Annotated[float, "time of the last sign of life, in seconds since 1970"]
