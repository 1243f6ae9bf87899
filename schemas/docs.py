"""Writes docs/schemas.md from the schemas: `python -m schemas.docs`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from schemas.files import FILES, MANIFEST, MANIFEST_FILE, TIMINGS_FILE, TRAIN_JSON, TRAIN_MEMBERS, grit_schema
from schemas.rows import BOUNDARIES, BOX, BOX_SCORE, CHUNK, GIVEN_BOX, REF_EXP, TOKEN, VERSION
from schemas.status import BOX_REMOVALS, PHRASE_REMOVALS, REASONS

TARGET: Final = Path(__file__).resolve().parent.parent / "docs" / "schemas.md"
STRUCTS: Final = {
    "TOKEN": TOKEN,
    "CHUNK": CHUNK,
    "REF_EXP": REF_EXP,
    "BOX": BOX,
    "BOX_SCORE": BOX_SCORE,
    "GIVEN_BOX": GIVEN_BOX,
}
INTRO: Final = f"""\
# Schemas

Version {VERSION}. Made from `schemas/` by `python -m schemas.docs`; edit the fields' descriptions there.

A row passes through the stages as one row of an Arrow table. Each stage adds columns; no stage removes a row. A row that a stage gives
up on gets `status` = `dropped` with `stage`, `reason` and `detail`, and loses its image; its later columns are null. Character offsets
count Unicode code points, half open [start, end), in `caption`. Boxes are xyxy, fractions of the stored image in [0, 1].
"""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def type_name(type_: pa.DataType) -> str:
    """A type in short: `list<BOX>`, `int32`."""
    for name, struct in STRUCTS.items():
        if type_ == struct:
            return f"[{name}](#{name.lower()})"
    if pa.types.is_list(type_):
        return f"list of {type_name(type_.value_type)}"
    return str(type_)


def field_table(fields: Iterable[pa.Field]) -> str:
    """Name, type, nullability and description of each field."""
    return table(
        ("field", "type", "null", "what it is"),
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
    """Two columns: a name and what it means."""
    return table(header, ((f"`{name}`", doc) for name, doc in rows.items()))


def render() -> str:
    """The whole document."""
    parts = [INTRO, "## A row after each stage\n"]
    before: set[str] = set()
    for stage, schema in BOUNDARIES.items():
        parts += [f"### {stage}\n", field_table(item for item in schema if item.name not in before)]
        before = set(schema.names)
    parts.append("## Nested types\n")
    for name, struct in STRUCTS.items():
        parts += [f"### {name}\n", field_table(struct.field(i) for i in range(struct.num_fields))]
    parts += ["## Why a row is dropped\n", "A closed list; numbers and messages are in `detail`.\n"]
    parts.append(
        table(
            ("stage", "reason", "meaning"),
            ((stage, f"`{name}`", doc) for stage, reasons in REASONS.items() for name, doc in reasons.items()),
        )
    )
    parts += ["## Why a phrase is not grounded\n", mapping_table(("`removed`", "meaning"), PHRASE_REMOVALS)]
    parts += ["## Why a box is not kept\n", mapping_table(("`removed`", "meaning"), BOX_REMOVALS)]
    parts += ["## Files\n", "Below the output folder; the number is the shard's.\n", *files()]
    return "\n".join(parts)


def files() -> list[str]:
    """What each output file holds."""
    names = {name: " and ".join(f"`{file.format(0)}`" for file in files) for name, files in FILES.items()}
    grit_note = (
        "One sample a kept row: `<key>.jpg` (the stored image), `<key>.txt` (the caption) and `<key>.json` (these columns without `extra`, "
        "and the input's other columns beside them). The parquet has every input row. The similarity column is called "
        "`clip_similarity_vitb32` or `clip_similarity_vitl14` for OpenAI's models, `clip_similarity_<scorer>` for others.\n"
    )
    arrow_note = (
        "Every input row with all the columns of the last stage (`score`), as an Arrow IPC file with zstd buffers; `image` is null unless "
        "`write.image_bytes=true`. The schema's metadata holds `hypergrit_schema` and `hypergrit_provenance`.\n"
    )
    return [
        f"### train: {names['train']}\n",
        "One sample a kept row, readable by HyCoCLIP's loader. Members in this order:\n",
        mapping_table(("member", "content"), TRAIN_MEMBERS),
        mapping_table(("field of the JSON", "what it is"), TRAIN_JSON),
        f"### grit: {names['grit']}\n",
        grit_note,
        field_table(grit_schema("clip_similarity_<scorer>")),
        f"### arrow: {names['arrow']}\n",
        arrow_note,
        f"### manifest: `{MANIFEST_FILE.format(0)}`\n",
        "JSON, written last: a shard without it does not exist, and readers take only files it names.\n",
        mapping_table(("field", "what it is"), MANIFEST),
        f"### timings: `{TIMINGS_FILE.format(0)}`\n",
        "`{stage: {seconds, rows}}`: the one file of a shard that differs from run to run.\n",
    ]


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(render(), encoding="utf-8")
