"""Notice that an input file changed between planning and reading."""

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from fsspec.implementations.local import LocalFileSystem

from common.errors import UserError
from common.remote import one_line, open_store, store_errors
from pipeline.read.types import Piece

VERSION_KEYS: Final = (
    *("etag", "md5hash", "contentmd5", "digest", "versionid"),
    *("lastmodified", "updated", "timemodified", "modified", "mtime"),
)
"""Names that stores and HTTP servers have for the version of an object, without punctuation, the best first."""


def object_version(info: Mapping[str, Any]) -> str:
    """Return the ETag of an object, or the value that its store has in place of one; "" if it has neither."""
    found = {re.sub(r"[^a-z0-9]", "", name.lower()): value for name, value in info.items()}
    return next((str(found[key]).strip('"') for key in VERSION_KEYS if found.get(key)), "")


def check_unchanged(piece: Piece) -> None:
    """Raise UserError if the file of a piece is no longer the planned one; called after reading its rows.

    A file is judged by its time of modification and size, an object by its ETag and size.
    """
    if not piece.version:
        return
    try:
        fs, name = open_store(piece.path)
        if isinstance(fs, LocalFileSystem):
            facts = os.stat(name)
            found = facts.st_size, str(facts.st_mtime_ns)
        else:
            fs.invalidate_cache(name)
            info = fs.info(name)
            found = int(info["size"] or 0), object_version(info)
    except store_errors(ValueError) as error:
        raise changed(piece.path, one_line(error)) from error
    if found != (piece.size, piece.version):
        raise changed(piece.path)


def changed(path: str, reason: str = "") -> UserError:
    """Return the error for an input file that changed."""
    return UserError(
        f"{path} has changed since the job was planned{f' ({reason})' if reason else ''}; run the same command again, "
        "and do not change the input while it runs"
    )
