"""The hash of a model's files, with which each machine checks that it loads the model of the job."""

import hashlib
import socket
from functools import cache
from pathlib import Path

from common.errors import UserError


@cache
def folder_hash(path: str) -> str:
    """SHA-256 over the relative paths, sizes and contents of the files in a folder, or of one file.

    Cached, since weights take seconds to read. Raises OSError if a file cannot be read.
    """
    root, digest = Path(path), hashlib.sha256()
    for file in sorted(root.rglob("*")) if root.is_dir() else [root]:
        if file.is_file():
            digest.update(f"{file.relative_to(root)}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


def check_model(key: str, path: str, expected: str | None) -> None:
    """Raise UserError if the model at `path`, the value of `key`, has another `folder_hash` than `expected`.

    Without `expected`, as for a model of the hub, and if nothing is at `path`, nothing is checked.
    """
    if expected is not None and Path(path).exists() and folder_hash(path) != expected:
        raise UserError(
            f"{key}: {path} on {socket.gethostname()} has other files than where the job was started; copy the same "
            "files to all machines, or give a URL with #sha256= or a hub name with a commit"
        )
