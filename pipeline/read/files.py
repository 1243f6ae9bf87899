"""Images of rows that are files or objects: read concurrently, in bounded memory, in the order of the rows."""

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from common.errors import UserError, is_machine_error
from common.remote import THREADS, one_line, store_errors
from pipeline.faults.fault import Fault
from pipeline.read.config import ReadConfig
from pipeline.read.convert import LOCATION, dropped
from pipeline.read.isolate import RowFault, isolated
from pipeline.read.roots import Location, RefusedError, file_size, read_file
from schemas.status import INTERNAL_ERROR

GROUP_BYTES: Final = 64_000_000
"""Bytes of images that are read at the same time, if there are several."""
MISSING: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
NAME_ERRORS: Final = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO)

Row = dict[str, Any]


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
        return dropped("image_refused", f"{place}: {error}")
    except MISSING as error:
        reason = "permission denied" if isinstance(error, PermissionError) else "no such file"
        return dropped("image_not_found", f"{place}: {reason}")
    except store_errors(ValueError) as error:
        if isinstance(error, OSError) and error.errno in NAME_ERRORS:
            return dropped("image_not_found", f"{place}: {error.strerror}")
        if is_machine_error(error):
            raise
        raise UserError(f"cannot read the image {place}: {one_line(error)}; check the store and credentials") from error


def _size(place: Location, *, config: ReadConfig) -> int | dict[str, Any]:
    size = file_size(place)
    if size > config.max_image_bytes:
        message = f"the image {place} has {size} bytes, more than read.max_image_bytes={config.max_image_bytes}"
        return dropped("bad_row", message)
    return size


def _content(place: Location, size: Any, *, config: ReadConfig) -> Any:
    """Return the image as a column of a row; what `_size` returned instead of a size is returned unchanged."""
    return {"image": read_file(place, size)} if isinstance(size, int) else size
