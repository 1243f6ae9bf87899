"""Notice that an input file changed between planning and reading."""

import os

from fsspec.implementations.local import LocalFileSystem

from common.errors import UserError
from common.remote import one_line, open_store, store_errors
from pipeline.read.folders import list_folder
from pipeline.read.formats import format_of
from pipeline.read.types import Piece
from pipeline.read.versions import object_version


def check_unchanged(piece: Piece) -> None:
    """Raise UserError if the file of a piece is no longer the planned one; called after reading its rows.

    A file is judged by its time of modification and size, an object by its ETag and size, a folder by its listing.
    """
    if not piece.version:
        return
    try:
        fs, name = open_store(piece.path)
        if format_of(piece.path) == "folder":
            listing = list_folder(piece.path)
            found = listing.size, listing.version
        elif isinstance(fs, LocalFileSystem):
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
