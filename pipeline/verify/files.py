"""Compare the files of a shard with the sizes and hashes of its manifest; copy remote ones to a local folder."""

import os

from common.files import NotAFileError, check_file, file_hash
from common.text import one_line
from pipeline.write.store import Store
from schemas.manifest import FileFacts


def file_problem(store: Store, name: str, facts: FileFacts, folder: str) -> str:
    """Describe how a file differs from its entry in the manifest; "" if it does not.

    A file of a remote store is copied to `folder`, below which it keeps its name. Raises UserError if the store does
    not answer.
    """
    size = store.size(name)
    if size is None:
        return "missing"
    if size != facts["bytes"]:
        return f"{size} bytes, but the manifest names {facts['bytes']}"
    try:
        path = store.path(name) if store.is_local else copied(store, name, folder)
        check_file(path)  # a pipe would never end
        digest = file_hash(path)
    except FileNotFoundError:
        return "missing"
    except (NotAFileError, OSError) as error:
        return f"cannot be read: {one_line(error)}"
    return "" if digest == facts["sha256"] else "other content than the manifest names (SHA-256)"


def copied(store: Store, name: str, folder: str) -> str:
    """Copy a remote file block by block; return the path of the copy. Raises UserError and FileNotFoundError."""
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with store.convert_errors("read", name):
        store.fs.get_file(store.path(name), path)
    return path
