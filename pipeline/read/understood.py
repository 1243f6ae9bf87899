"""How the input was understood: found when the job is planned, and printed before its first row is read."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from hypergrit_common.errors import UserError
from hypergrit_common.remote import store_errors
from hypergrit_common.text import counted, one_line, printable, shortened
from hypergrit_common.urls import text_without_secrets
from pipeline.read.config import ReadConfig
from pipeline.read.listing import input_format
from pipeline.read.nested import path_columns, root_of
from pipeline.read.roots import Roots
from pipeline.read.rows import (
    ABSENT,
    GRIT_COLUMNS,
    LOCATION,
    Context,
    find_columns,
    picture_column,
    picture_rank,
    utf8,
    with_named,
)
from pipeline.read.samples import BESIDE, Folder, Tar, names_picture
from pipeline.read.source import RowFault, convert, isolated, roots_for
from pipeline.read.streams import input_errors
from pipeline.read.types import IMAGE, LACK, BadRecord, ColumnNames, Load, Piece, Record
from schemas.job import InputReading, JobRecord, UnderstoodInput
from schemas.status import DROPPED

MAX_READINGS: Final = 8
"""Formats and sets of columns that are told; further files are counted."""
MAX_NAMES: Final = 100
MAX_TEXT: Final = 200
SHOWN: Final = 20
"""Columns and kinds of files that a line names."""
FIRST_ROW: Final = ("dropped", "url", "caption", "id", "image", "extra")
ROLES: Final = ("url", "caption", "id", "image", "image_path")


class Readings:
    """Collects how the files of an input are read, an entry per format and set of columns; `found` begins the list."""

    def __init__(self, config: ReadConfig, found: Iterable[InputReading] = ()) -> None:
        self.config, self.found, self.roots = config, list(found), Roots(config.image_roots)
        self.known: list[tuple[dict[str, Any], int]] = []  # readings by names and types, before a row was read

    def add(self, path: str, names: ColumnNames | None, unread: Sequence[str], load: Load, below: str) -> int | None:
        """Return the index of the reading of a file; None for more than MAX_READINGS.

        `names` are its columns, None if they are those of its first row, which `load` reads if the reading is new; `below`
        is its path below the input.
        """
        kind = input_format(path)
        same: dict[str, Any] = {"format": kind.name}
        if kind.is_text or isinstance(kind, Tar | Folder):
            same["encoding"] = self.config.encoding
        if names is not None:
            same |= self.columns(path, below, names, unread)
        if (known := self.index(same)) is not None:
            return known
        if len(self.found) == MAX_READINGS:
            return None
        first, key = attempt(load), same
        record = {} if isinstance(first, BadRecord) else first
        values = {name: value for name, value in record.items() if name not in (IMAGE, LACK)}
        own = names if isinstance(names, Mapping) else dict.fromkeys(names or (), "")
        shown = {name: value for name, value in values.items() if name not in own or picture_rank(value) != ABSENT}
        same = key | self.columns(path, below, {**own, **shown}, unread, IMAGE in record)
        known = self.index(same)
        self.known.append((key, len(self.found) if known is None else known))
        if known is not None:
            return known
        first_row = self.first_row(
            first, Context(self.config, roots_for(path, self.config, self.roots), path, kind, below)
        )
        self.found.append(cast(InputReading, {**same, "file": path, "first_row": first_row}))
        return len(self.found) - 1

    def index(self, facts: Mapping[str, Any]) -> int | None:
        """Return the index of a reading with these facts."""
        among: list[tuple[Mapping[str, Any], int]] = [
            *self.known,
            *zip(self.found, range(len(self.found)), strict=True),
        ]
        return next((i for known, i in among if all(known.get(name) == fact for name, fact in facts.items())), None)

    def columns(
        self, path: str, below: str, names: ColumnNames, unread: Sequence[str], has_picture: bool = False
    ) -> dict[str, Any]:
        """Return the use of each column, and where the pictures are."""
        kind, own = input_format(path), names if isinstance(names, Mapping) else dict.fromkeys(names, "")
        named = with_named(own, self.config, below)
        found = find_columns(named, self.config, kind.has_images, path)
        uses = dict(zip(ROLES, (found.url, found.captions, found.id, found.image, found.path), strict=True))
        columns = {use: list(name) if isinstance(name, tuple) else [name] for use, name in uses.items() if name}
        roots = [root_of(name, own) for name in columns.get("image", ())]
        used = {*GRIT_COLUMNS, *roots, *(name for some in columns.values() for name in some)}
        columns |= {"extra": [name for name in {**path_columns(below), **own} if name not in used], "unread": [*unread]}
        if has_picture or isinstance(kind, Tar | Folder):
            pictures = "in the input"
        elif name := found.image or found.path:
            pictures = f"in the column {name!r}" if found.image else f"files that the column {name!r} names"
            pictures += ", and to fetch by the URL where it has none" if found.url else ""
        else:
            pictures = "to fetch by the URL, or to read from read.image_roots" if self.roots else "to fetch by the URL"
            other = picture_column(named, ABSENT)  # without a value in the first row; each row is judged by itself
            if other and picture_rank(named[other]) == ABSENT:
                pictures += f", where the column {other!r} has none"
        return {
            "pictures": cut(pictures),
            "columns": {use: [cut(name) for name in some[:MAX_NAMES]] for use, some in columns.items() if some},
        }

    def first_row(self, record: Record | BadRecord, context: Context) -> dict[str, str]:
        """Return the first row as the job reads it: the columns that are not null, and why it is dropped."""
        row = isolated(partial(convert, lambda: record, context))
        if isinstance(row, RowFault | BadRecord):
            return {"dropped": cut(row.detail if isinstance(row, RowFault) else f"bad_row: {row.message}")}
        image = row.get("image") or row.get(LOCATION)
        shown = {"url": row["url"], "caption": row["caption_original"], "id": row["id"], "extra": row["extra"]}
        shown["image"] = f"{len(image):,} bytes" if isinstance(image, bytes) else image and str(image)
        if row.get("status") == DROPPED:
            shown["dropped"] = f"{row['reason']}: {row['detail'] or ''}"
        return {name: cut(value) for name, value in shown.items() if value is not None}


def attempt(load: Callable[[], Record | BadRecord]) -> Record | BadRecord:
    """Return the first row of a file; a failure, which the job will meet again, becomes a BadRecord."""
    try:
        found = isolated(load)
    except store_errors(UserError) as error:
        return BadRecord(one_line(error))
    return BadRecord(found.detail) if isinstance(found, RowFault) else found


def first_of(path: str, size: int, offset: int, config: ReadConfig) -> Record | BadRecord:
    """Read the first row of a file as the job does; it starts at byte `offset`."""
    with input_errors(path):
        for _, load in input_format(path).loads(Piece(path, 0, 1, size, offset), config, lambda _: True):
            if load is not None:
                return load()
    return BadRecord("it has no row")


def cut(text: str) -> str:
    """Return a value for the record: without secrets, in UTF-8 and cut."""
    text = utf8(text[: 10 * MAX_TEXT])
    bare = text_without_secrets(text, strip_query=True)
    bare += "?…" if "?" in text and "?" not in bare else ""
    return bare if len(bare) <= MAX_TEXT else f"{bare[:MAX_TEXT]}…"


def without_rows(found: UnderstoodInput) -> UnderstoodInput:
    """Return a copy of `found` without first rows, for outputs that take down or redact rows: a first row may be one."""
    return {**found, "readings": [{**reading, "first_row": {}} for reading in found["readings"]]}


def understood_input(record: JobRecord | Mapping[str, Any]) -> UnderstoodInput | None:
    """Return the entry "input" of a job's record, with the numbers of files and rows of each reading; None without one."""
    if (found := record.get("input")) is None:
        return None
    readings: list[InputReading] = [{**reading, "files": 0, "rows": 0} for reading in found["readings"]]
    tallies = [Counter[str]() for _ in readings]
    for file in (file for batch in record["batches"] for file in batch["files"] if "reading" in file):
        reading = readings[file["reading"]]
        reading["files"] += 1
        reading["rows"] += file["cuts"][-1][0]
        tallies[file["reading"]].update(file.get("tally", {}))
    for reading, tally in zip(readings, tallies, strict=True):
        if tally:
            reading["tally"] = dict(sorted(tally.items()))
    return {"readings": [reading for reading in readings if reading["files"]], "not_read": found["not_read"]}


def input_lines(found: UnderstoodInput, n_files: int = 0) -> Iterator[tuple[str, str]]:
    """Yield lines (label, text) that tell how the input is read, for the terminal and the report. Texts are printable.

    `n_files`: number of files of the input; a last line counts those that no reading covers.
    """
    for reading in found["readings"]:
        columns, tally = reading["columns"], reading.get("tally", {})
        files = counted(reading.get("files", 0), f"{reading['format']} file")
        yield "input", printable(f"{files} with {counted(reading.get('rows', 0), 'row')}, the first: {reading['file']}")
        for use, missing in (("url", "none"), ("caption", "none; read.caption_column=NAME sets one"), ("id", "none")):
            yield use, printable(", ".join(columns.get(use, ())) or missing)
        in_tar = (
            f"; {tally.get('pictures', 0):,} samples have one, {tally.get('without', 0):,} have none" if tally else ""
        )
        yield "pictures", printable(reading["pictures"] + in_tar)
        if "encoding" in reading:
            yield "encoding", printable(reading["encoding"])
        yield "extra", printable(shortened(columns.get("extra", []), SHOWN, ", ") or "no other columns")
        first = reading["first_row"]
        row = "; ".join(f"{name}: {first[name]}" for name in FIRST_ROW if name in first)
        yield "first row", printable(row) or "not shown: rows are taken down, or captions redacted"
        if unread := [*unread_parts(columns.get("unread", []), tally)]:
            yield "not read", printable("; ".join(unread))
    left = n_files - sum(reading.get("files", 0) for reading in found["readings"])
    if found["readings"] and left > 0:
        yield "input", f"{counted(left, 'further file')} with other columns, or without rows"
    if found["not_read"]:
        counts = sorted(found["not_read"].items(), key=lambda item: (-item[1], item[0]))
        kinds = [f"{n:,} {suffix}" for suffix, n in counts]
        text = f"files beside these: {shortened(kinds, SHOWN, ', ')}; an input= that matches only those of a known format reads them"
        yield "not read", printable(text)


def unread_parts(columns: Sequence[str], tally: Mapping[str, int]) -> Iterator[str]:
    """Yield what is not read of the files that are read, with the setting that would read it."""
    if columns:
        yield f"columns with bytes: {shortened([*map(repr, columns)], SHOWN, ', ')}; read.image_column=NAME reads one"
    for name, n in tally.items():
        if name.startswith("."):
            setting = "image_member" if names_picture(name[1:]) else "caption_member" if name.endswith(BESIDE) else ""
            yield f"{counted(n, 'member')} {name}" + (f"; read.{setting}={name[1:]} reads them" if setting else "")
    if hidden := tally.get("hidden"):
        yield f"{counted(hidden, 'hidden file')}, such as those of macOS; rename them to read them"
    if links := tally.get("links"):
        yield f"{counted(links, 'link')}; tar --hard-dereference --dereference stores files in their place"
