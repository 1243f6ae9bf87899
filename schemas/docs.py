"""Write docs/schemas.md from the schemas: `python -m schemas.docs`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pyarrow as pa

from schemas import rows
from schemas.files import (
    COMMAND_FILE,
    DROPPED_FILE,
    FAILED_FILE,
    FILES,
    GRIT_MEMBERS,
    INDEX,
    INDEX_FILE,
    INDEX_MEMBER,
    JOB_FILE,
    JOURNAL_FILE,
    LEASE_FILE,
    MANIFEST_FILE,
    ROLLUP_FILE,
    ROLLUP_TIMINGS_FILE,
    RUN_TIMINGS_FILE,
    SHARDS_PER_ROLLUP,
    STATS_FILE,
    SUMMARY_FILE,
    TAKEDOWNS_FILE,
    THUMBNAIL,
    TIMINGS_FILE,
    TRAIN_MEMBERS,
    TrainAnnotations,
    grit_schema,
)
from schemas.job import CommandRecord, JobRecord, LeaseRecord, Takedowns
from schemas.manifest import FailedShard, Journal, Manifest, StageTiming
from schemas.rows import BOX, BOX_SCORE, CAPTION, CHUNK, GIVEN_BOX, REF_EXP, TOKEN, VERSION
from schemas.stats import Statistics
from schemas.status import BOX_REMOVALS, GIVEN_REMOVALS, PHRASE_REMOVALS, REASONS, given_code

TARGET: Final = Path(__file__).resolve().parent.parent / "docs" / "schemas.md"
STRUCTS: Final = {
    "TOKEN": TOKEN,
    "CHUNK": CHUNK,
    "REF_EXP": REF_EXP,
    "BOX": BOX,
    "BOX_SCORE": BOX_SCORE,
    "GIVEN_BOX": GIVEN_BOX,
    "CAPTION": CAPTION,
    "INDEX_MEMBER": INDEX_MEMBER,
}
JSON_FILES: Final[tuple[type, ...]] = (
    TrainAnnotations,
    Manifest,
    Journal,
    JobRecord,
    CommandRecord,
    LeaseRecord,
    Statistics,
)
"""Types of JSON files with a table of their own; the types that they refer to follow at the end of the document."""
JSON_NAMES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", NoneType: "null", Any: "any"}
INTRO: Final = f"""\
# Schemas

Version {VERSION}. Generated from `schemas/` by `python -m schemas.docs`; edit the descriptions there.

A row passes through the stages as one row of an Arrow table. Each stage adds columns; no stage
removes a row. If a stage drops a row, it sets `status` to `dropped`, fills `stage`, `reason` and
`detail`, and removes the image; the columns of later stages are null. Character offsets count
Unicode code points in `caption`, half-open [start, end). Boxes are xyxy, as fractions of the stored
image in [0, 1].
"""
FILES_NOTE: Final = """\
Paths are relative to the output folder; 00000 is the index of the shard.
"""
TRAIN_NOTE: Final = """\
One sample for each kept row, in the layout of HyCoCLIP. Members, each named `<key>.<member>`, in
this order:
"""
GRIT_NOTE: Final = """\
The parquet file has one row for each input row. The similarity column is called
`clip_similarity_vitb32` or `clip_similarity_vitl14` for OpenAI's models, and
`clip_similarity_<scorer>` for others.
"""
ARROW_NOTE: Final = """\
An Arrow IPC file, compressed with zstd, with every input row and the columns of the `score` stage.
`image` is null unless `write.image_bytes=true` or, in dropped rows, `score.keep_all=true`. The metadata of the schema
has the keys `hypergrit_schema` (the version) and `hypergrit_provenance` (as in the manifest, but
without the folders of models).
"""
INDEX_NOTE: Final = """\
An Arrow IPC file, compressed with zstd, with the place of every sample in the tars of the shard.
Its metadata has `subreddits: true` if a kept row has a subreddit. The JSON of the sample of such a row in
`train/` names the subreddit.
"""
DROPPED_NOTE: Final = """\
An Arrow IPC file with thumbnails for the report. It has up to 3 rows for each stage after the download and each drop
reason: the first ones dropped there. It is written after the manifest, which does not name it.
"""
SUMMARY_NOTE: Final = f"""\
Statistics for the report, as JSON compressed with zstd. A summary is of one shard, a rollup is the sum over
{SHARDS_PER_ROLLUP:,} shards. `manifests` maps the index of each shard that was counted to a stamp of its
manifest: its SHA-256 in a summary, its size in bytes in a rollup. `version` is the version of this format,
and `sha256` the hash of the JSON without this entry. The rest mirrors
`stats.json`: counts, histograms with bins for percentiles, sketches of texts with an `error`, and hashes
of images. Summaries that are missing or do not fit are computed again from `arrow/`; none of these files
is needed. The time of the stages of {SHARDS_PER_ROLLUP:,} shards is in
`{ROLLUP_TIMINGS_FILE.format(0)}`.
"""
TIMINGS_NOTE: Final = """\
The time of each stage of a shard, as {stage: [StageTiming](#stagetiming)}, and of the last run, as
[RunTimings](#runtimings). Timings differ from run to run; the other files of a shard do not.
"""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table."""
    lines = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def type_name(type_: pa.DataType) -> str:
    """Return the short name of an Arrow type: `list of BOX`, `int32`."""
    for name, struct in STRUCTS.items():
        if type_ == struct:
            return link(name)
    if pa.types.is_list(type_):
        return f"list of {type_name(type_.value_type)}"
    return str(type_)


def link(name: str) -> str:
    """Return a link to the section with this title; that of the manifest also names its file."""
    return f"[{name}](#{'manifest-_manifests00000json' if name == 'Manifest' else name.lower()})"


def field_table(fields: Iterable[pa.Field]) -> str:
    """Format a table with name, type, nullability and description of each Arrow field."""
    return table(
        ("field", "type", "null", "description"),
        (
            (
                f"`{item.name}`",
                type_name(item.type),
                "yes" if item.nullable else "",
                (item.metadata or {})[b"doc"].decode(),
            )
            for item in fields
        ),
    )


def mapping_table(header: Sequence[str], rows: Mapping[str, str]) -> str:
    """Format a table of names and their descriptions."""
    return table(header, ((f"`{name}`", doc) for name, doc in rows.items()))


def json_fields(kind: type) -> Iterator[tuple[str, Any, str]]:
    """Yield (name, type, description) of each field of a TypedDict."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        hint = get_args(hint)[0] if get_origin(hint) is NotRequired else hint
        assert get_origin(hint) is Annotated, f"{kind.__name__}.{name} has no description"
        inner, doc = get_args(hint)
        yield name, inner, doc


def json_type_name(hint: Any) -> str:
    """Return the short name of a JSON type: `list of Parent`, `{string: integer}`, `string or null`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if is_typeddict(hint):
        return link(hint.__name__)
    if origin is Literal:
        return " or ".join(f'"{value}"' for value in arguments)
    if origin is dict and arguments[1] is Any:
        return "object"
    names = [json_type_name(argument) for argument in arguments]
    if origin is list:
        return f"list of {names[0]}"
    if origin is tuple:
        return f"[{', '.join(names)}]"
    if origin is dict:
        return f"{{{names[0]}: {names[1]}}}"
    if origin is UnionType:
        return " or ".join(names)
    return JSON_NAMES[hint]


def json_table(kind: type) -> str:
    """Format a table with name, type and description of each field of a TypedDict."""
    return table(
        ("field", "type", "description"),
        ((f"`{name}`", json_type_name(hint), doc) for name, hint, doc in json_fields(kind)),
    )


def nested_types(hint: Any) -> Iterator[type]:
    """Yield the TypedDicts in a type, directly or nested in each other."""
    if is_typeddict(hint):
        yield hint
        for _, inner, _ in json_fields(hint):
            yield from nested_types(inner)
    for argument in get_args(hint):
        yield from nested_types(argument)


SCHEMAS: Final = {
    "read": rows.READ, "download": rows.DOWNLOADED, "captions": rows.CAPTIONED, "parse": rows.PARSED,
    "ground": rows.GROUNDED, "score": rows.SCORED,
}  # fmt: skip
"""Stage -> schema of the table after it, of those that add columns."""


def render() -> str:
    """Return the complete document."""
    parts = [INTRO, "## A row after each stage\n"]
    before: set[str] = set()
    for stage, schema in SCHEMAS.items():
        parts += [f"### {stage}\n", field_table(item for item in schema if item.name not in before)]
        before = set(schema.names)
    parts.append("## Nested types\n")
    for name, struct in STRUCTS.items():
        parts += [f"### {name}\n", field_table(struct.field(i) for i in range(struct.num_fields))]
    parts += ["## Reasons to drop a row\n", "A closed list; numbers and messages are in `detail`.\n"]
    parts.append(
        table(
            ("stage", "reason", "meaning"),
            ((stage, f"`{name}`", doc) for stage, reasons in REASONS.items() for name, doc in reasons.items()),
        )
    )
    parts += ["## Reasons to remove a phrase\n", mapping_table(("`removed`", "meaning"), PHRASE_REMOVALS)]
    given = ((f"`{reason}`", str(given_code(reason)), meaning) for reason, meaning in GIVEN_REMOVALS.items())
    parts += ["## Reasons why a box of the input is lost\n", table(("reason", "`given_chunks`", "meaning"), given)]
    parts += ["## Reasons to remove a box\n", mapping_table(("`removed`", "meaning"), BOX_REMOVALS)]
    parts += ["## Files\n", FILES_NOTE, *files()]
    parts.append("## Types of JSON fields\n")
    for kind in dict.fromkeys(kind for file in (StageTiming, *JSON_FILES) for kind in nested_types(file)):
        if kind not in JSON_FILES:
            parts += [f"### {kind.__name__}\n", f"{kind.__doc__}\n", json_table(kind)]
    return "\n".join(parts)


def files() -> list[str]:
    """Return one section for each kind of output file."""
    names = {name: " and ".join(f"`{file.path(0)}`" for file in files) for name, files in FILES.items()}
    return [
        f"### train: {names['train']}\n",
        TRAIN_NOTE,
        mapping_table(("member", "content"), TRAIN_MEMBERS),
        f"{TrainAnnotations.__doc__}\n",
        json_table(TrainAnnotations),
        f"### grit: {names['grit']}\n",
        "The tar has one sample for each kept row. Members, each named `<key>.<member>`:\n",
        mapping_table(("member", "content"), GRIT_MEMBERS),
        GRIT_NOTE,
        field_table(grit_schema("clip_similarity_<scorer>")),
        f"### arrow: {names['arrow']}\n",
        ARROW_NOTE,
        f"### index: `{INDEX_FILE.path(0)}`\n",
        INDEX_NOTE,
        field_table(INDEX),
        f"### manifest: `{MANIFEST_FILE.path(0)}`\n",
        "Written last: it commits the shard. Readers ignore the files of a shard without a manifest.\n",
        json_table(Manifest),
        f"### failed shards: `{FAILED_FILE.path(0)}`\n",
        f"{FailedShard.__doc__}\n",
        json_table(FailedShard),
        f"### thumbnails: `{DROPPED_FILE.path(0)}`\n",
        DROPPED_NOTE,
        field_table(THUMBNAIL),
        f"### summaries: `{SUMMARY_FILE.path(0)}` and `{ROLLUP_FILE.path(0)}`\n",
        SUMMARY_NOTE,
        f"### timings: `{TIMINGS_FILE.path(0)}` and `{RUN_TIMINGS_FILE}`\n",
        TIMINGS_NOTE,
        f"### job: `{JOB_FILE}`\n",
        "The job that wrote the shards. A later run compares its settings, versions, models and input with it.\n",
        json_table(JobRecord),
        f"### outputs of commands: `{COMMAND_FILE}`\n",
        f"{CommandRecord.__doc__}\n",
        json_table(CommandRecord),
        f"### replaced shards: `{JOURNAL_FILE.path(0)}`\n",
        f"{Journal.__doc__}\n",
        json_table(Journal),
        f"### takedowns: `{TAKEDOWNS_FILE}`\n",
        f"{Takedowns.__doc__}\n",
        json_table(Takedowns),
        f"### lease: `{LEASE_FILE}`\n",
        "Exists while a job writes to the output.\n",
        json_table(LeaseRecord),
        f"### statistics: `{STATS_FILE}`\n",
        json_table(Statistics),
    ]


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(render(), encoding="utf-8")
