"""Read the rows of a shard: records of any format as rows of the READ schema, with the images that they name."""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from hypergrit_common.errors import UserError, is_machine_error
from hypergrit_common.remote import THREADS, one_line, store_errors
from pipeline.faults import Fault, describe, format_traceback, is_fault
from pipeline.read.config import ReadConfig
from pipeline.read.listing import changed, check_unchanged, input_format, use_format
from pipeline.read.roots import Location, RefusedError, Roots, file_size, is_web, read_file
from pipeline.read.rows import LOCATION, Context, LoneSurrogateError, dropped, pictures_beside, to_row
from pipeline.read.streams import input_errors
from pipeline.read.takedown import entries_of, refuse_urls
from pipeline.read.types import BadRecord, BadRowError, Load, Piece, ShardPlan
from schemas.rows import READ
from schemas.status import INTERNAL_ERROR, KEPT
from schemas.table import conform

Row = dict[str, Any]
"""A row of READ; until its image is read, with the place of that under LOCATION."""
Result = TypeVar("Result")

PART_BYTES: Final = 64_000_000
"""Bytes of images after which the rows that have been read are handed on."""


def read_shard(plan: ShardPlan, config: ReadConfig) -> pa.Table:
    r"""Read the rows of a shard; a row that cannot be read is in the table as a dropped row.

    The key of a row is its index in the input. All images of a tar are in the table; `read_parts` bounds the memory.
    Raises UserError if a file no longer exists, cannot be read, or has fewer rows than when it was planned.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from pipeline import ReadConfig, plan_shards, read_shard
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "pairs.jsonl")
    ...     _ = file.write_text('{"url": "http://example.org/1.jpg", "caption": "a dog"}\n{"caption": "a cat"}\n')
    ...     (plan,) = plan_shards(str(file), rows_per_shard=1000, limit=None, config=ReadConfig())
    ...     table = read_shard(plan, ReadConfig())
    >>> [(row["key"], row["status"], row["reason"]) for row in table.to_pylist()]
    [('000000000000', 'kept', None), ('000000000001', 'dropped', 'missing_url')]
    """
    return pa.concat_tables([table for table, _ in read_parts(plan, config)])


def planned_rows(plan: ShardPlan) -> pa.Table:
    """Return the rows of a shard before they are read: a READ table with nothing but their origin."""
    positions = ((piece, i) for piece in plan.pieces for i in range(piece.n_rows))
    return _to_table([_origin(plan, row, piece, i) for row, (piece, i) in enumerate(positions)])


def read_parts(
    plan: ShardPlan, config: ReadConfig, rows: pa.Table | None = None
) -> Iterator[tuple[pa.Table, list[Fault]]]:
    """Read the rows of a shard like `read_shard`, as tables with PART_BYTES of images, and the rows that raised.

    `rows` are the `planned_rows` to read, all by default; those that are dropped already are left as they are.
    """
    given = None if rows is None else {row["key"]: row for row in rows.to_pylist()}
    part: list[Row] = []
    faults: list[Fault] = []
    n_bytes = n_parts = 0
    for row in with_images(_read_rows(plan, config, given, faults), config, faults):
        part.append(row)
        n_bytes += len(row.get("image") or b"")
        if n_bytes >= PART_BYTES:
            found = refuse_urls(_to_table(part), entries_of(config.takedown)), faults.copy()
            part.clear()
            faults.clear()
            n_bytes, n_parts = 0, n_parts + 1
            yield found
    if part or not n_parts:
        yield refuse_urls(_to_table(part), entries_of(config.takedown)), faults


def _to_table(rows: list[Row]) -> pa.Table:
    return conform(pa.Table.from_pylist(rows, schema=READ), READ)


def _origin(plan: ShardPlan, row: int, piece: Piece, i: int) -> Row:
    key = f"{plan.first_row + row:012d}"
    return {"key": key, "source": piece.name or piece.path, "source_row": piece.first_row + i, "status": KEPT}


def _read_rows(
    plan: ShardPlan, config: ReadConfig, given: Mapping[str, Row] | None, faults: list[Fault]
) -> Iterator[Row]:
    """Yield the rows of a shard, all or those with a key in `given`; add the rows that raised to `faults`."""
    use_format(config.format)
    n_before, all_roots = 0, Roots(config.image_roots)
    for piece in plan.pieces:
        first_key = plan.first_row + n_before - piece.first_row  # key of row 0 of the file, which may be negative

        def is_wanted(row: int, first_key: int = first_key) -> bool:
            return given is None or given.get(f"{first_key + row:012d}", {}).get("status") == KEPT

        n = 0
        roots, below = roots_for(piece.path, config, all_roots), piece.path if piece.below is None else piece.below
        context = Context(config, roots, piece.path, input_format(piece.path), below)
        try:
            for line, found in read_rows(piece, context, is_wanted):
                origin = _origin(plan, n_before + n, piece, n)
                n += 1
                if isinstance(found, dict):
                    yield origin | found
                elif isinstance(found, BadRecord):
                    location = f"line {line}" if line else f"row {origin['source_row']} (from 0)"
                    yield origin | dropped("bad_row", f"{origin['source']}, {location}: {found.message}")
                elif found is not None:
                    faults.append(Fault(origin["key"], "read", found.detail, found.traceback))
                    yield origin | dropped(INTERNAL_ERROR, found.detail)
                elif given and origin["key"] in given:
                    yield given[origin["key"]]
        except UserError:
            check_unchanged(piece)  # a change of the file explains the error
            raise
        if n != piece.n_rows:
            raise changed(piece.path)
        check_unchanged(piece)
        n_before += n


def roots_for(path: str, config: ReadConfig, roots: Roots) -> Roots:
    """Return the folders from which the rows of an input file may read images: `roots`, and perhaps its own."""
    folder = pictures_beside(path)
    return roots if folder is None else Roots((*config.image_roots, folder))


def read_rows(
    piece: Piece, context: Context, is_wanted: Callable[[int], bool]
) -> Iterator[tuple[int, "Row | BadRecord | RowFault | None"]]:
    """Read the rows of a piece as (line, converted record); line is 0 for formats without lines.

    A row whose parser or conversion raises becomes a RowFault; a row whose index in the file is not wanted is neither
    parsed nor converted, and becomes None. Raises UserError if the file cannot be read.
    """
    rows = f"rows {piece.first_row} to {piece.first_row + piece.n_rows - 1} of "
    with input_errors(piece.path, rows):
        for i, (line, load) in enumerate(context.kind.loads(piece, context.config, is_wanted), piece.first_row):
            yield line, isolated(partial(convert, load, context)) if load and is_wanted(i) else None


def convert(load: Load, context: Context) -> Row | BadRecord:
    """Return a row of READ, without its origin, or a BadRecord."""
    try:
        return to_row(load(), context)
    except LoneSurrogateError as error:
        return BadRecord(error.explained(context.kind, context.config.encoding))
    except BadRowError as error:
        return BadRecord(str(error))
    except RecursionError:
        return BadRecord("values are nested too deeply")


# Process one row such that an exception costs this row alone.


class RowFault(NamedTuple):
    """The exception of a row."""

    detail: str
    traceback: str


def isolated(process: Callable[[], Result]) -> Result | RowFault:
    """Return the result of `process`, or a RowFault if it raises twice: one failure alone may be transient.

    Errors of a file or store are raised, since they are not the fault of a row.
    """
    first = attempt(process)
    return attempt(process) if isinstance(first, RowFault) else first


def attempt(process: Callable[[], Result]) -> Result | RowFault:
    """Return the result of `process`, or a RowFault if it raises. Raises errors of a file or store."""
    try:
        return process()
    except store_errors():
        raise
    except BaseException as error:
        if not is_fault(error):
            raise
        return RowFault(describe(error), format_traceback(error))


# Images of rows that are files or objects: read concurrently, in bounded memory, in the order of the rows.

GROUP_BYTES: Final = 64_000_000
"""Bytes of images that are read at the same time, if there are several."""
MISSING: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
WITHOUT_FILE: Final = ("image_not_found", "image_refused", "missing_url")
"""Reasons for which the download stage fetches the picture of a row that has a web URL too."""
NAME_ERRORS: Final = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO)


def with_images(rows: Iterable[Row], config: ReadConfig, faults: list[Fault]) -> Iterator[Row]:
    """Yield rows with the images that their Locations name, or dropped; add the rows that raised to `faults`.

    Raises UserError if a store cannot be reached.
    """
    window: list[Row] = []
    with ThreadPoolExecutor(THREADS, thread_name_prefix="images") as pool:
        for row in rows:
            if not window and LOCATION not in row:
                yield row
                continue
            window.append(row)
            if len(window) == THREADS:
                yield from _read_window(window, config, faults, pool)
                window = []
        yield from _read_window(window, config, faults, pool)


def _read_window(
    window: Sequence[Row], config: ReadConfig, faults: list[Fault], pool: ThreadPoolExecutor
) -> Iterator[Row]:
    places = [row.pop(LOCATION, None) for row in window]
    sizes = list(pool.map(partial(_attempt, _size, config=config), places))
    start = 0
    while start < len(window):
        end = _group_end(sizes, start)
        found = pool.map(partial(_attempt, _content, config=config), places[start:end], sizes[start:end])
        for row, value in zip(window[start:end], found, strict=True):
            if isinstance(value, RowFault):
                faults.append(Fault(row["key"], "read", value.detail, value.traceback))
                value = dropped(INTERNAL_ERROR, value.detail)
            elif value and value.get("reason") in WITHOUT_FILE and is_web(row["url"] or ""):
                value = None
            yield row if value is None else row | value
        start = end


def _group_end(sizes: Sequence[Any], start: int) -> int:
    """Return the end of the group of rows that are read together: at least one, with up to GROUP_BYTES."""
    end, n_bytes = start, 0
    while end < len(sizes):
        n_bytes += sizes[end] if isinstance(sizes[end], int) else 0
        if end > start and n_bytes > GROUP_BYTES:
            break
        end += 1
    return end


def _attempt(read: Callable[..., Any], place: Location | None, *arguments: Any, config: ReadConfig) -> Any:
    """Return the result of `read`: None without a place, the columns of a dropped row, or a RowFault."""
    return None if place is None else isolated(partial(_or_drop, read, place, *arguments, config=config))


def _or_drop(read: Callable[..., Any], place: Location, *arguments: Any, config: ReadConfig) -> Any:
    try:
        return read(place, *arguments, config=config)
    except RefusedError as error:
        return dropped("image_refused", f"{place.below}: {error}")
    except MISSING as error:
        reason = "permission denied" if isinstance(error, PermissionError) else "no such file"
        return dropped("image_not_found", f"{place.below}: {reason}")
    except store_errors(ValueError) as error:
        if isinstance(error, OSError) and error.errno in NAME_ERRORS:
            return dropped("image_not_found", f"{place.below}: {error.strerror}")
        if is_machine_error(error):
            raise
        raise UserError(f"cannot read the image {place}: {one_line(error)}; check the store and credentials") from error


def _size(place: Location, *, config: ReadConfig) -> int | Row:
    size = file_size(place)
    if not size:
        return dropped("missing_url", f"{place.below} is empty")
    if size > config.max_image_bytes:
        message = f"the image {place.below} has {size} bytes, more than the limit of {config.max_image_bytes}"
        return dropped("bad_row", message)
    return size


def _content(place: Location, size: Any, *, config: ReadConfig) -> Any:
    """Return the image as a column of a row; what `_size` returned instead of a size is returned unchanged."""
    return {"image": read_file(place, size)} if isinstance(size, int) else size
