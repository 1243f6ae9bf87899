"""Models at a URL: each machine downloads them once into its cache, and checks the hash that the URL names.

    s3://bucket/models/glip_l                            a folder
    https://example.org/glip_tiny.pth#sha256=0f1e...     a file, with its SHA-256

A URL is downloaded under a lock of the kernel into a folder of its own, which is renamed when it is complete.
"""

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from common.errors import UserError
from common.files import file_hash
from common.paths import LOCAL
from common.remote import one_line, open_store, store_errors
from common.urls import without_user

CACHE: Final = "HYPERGRIT_CACHE"
"""Environment variable: folder on a disk of each machine for models of URLs; ~/.cache/hypergrit if it is not set."""
OFFLINE: Final = "HF_HUB_OFFLINE"
"""Environment variable of huggingface_hub, which holds for URLs too: with 1, only models that are on the machine."""
REMOTE: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
PINNED: Final = re.compile(r"sha256=([0-9a-f]{64})")
BLOCK: Final = 1 << 22


def local_model(name: str) -> str:
    """Return the path of a model on this machine: of a URL, that of its copy; names of other kinds unchanged.

    Raises UserError if the URL cannot be read, or has a user name, a query or another hash than its fragment, and in
    the offline mode if this machine has no copy.
    """
    if not REMOTE.match(name) or name.startswith(LOCAL):
        return name
    url, _, fragment = name.partition("#")
    check_url(url, fragment)
    folder = cache_folder() / hashlib.sha256(name.encode()).hexdigest()[:32]
    path = folder / (PurePosixPath(url.rstrip("/")).name or "model")
    if not path.exists():
        if os.environ.get(OFFLINE, "").upper() in ("1", "ON", "YES", "TRUE"):
            raise UserError(
                f"{url} is not in {folder.parent}, and {OFFLINE} is set; run `python -m pipeline.fetch` first"
            )
        with locked(folder):
            if not path.exists():  # another process may have fetched it meanwhile
                _download(url, fragment.removeprefix("sha256="), path)
    return str(path)


def check_url(url: str, fragment: str) -> None:
    """Raise UserError for a URL that must not be recorded, and for a fragment that is not a SHA-256."""
    if without_user(url) != url or "?" in url:
        raise UserError(
            f"the URL {without_user(url).partition('?')[0]} of a model has a user name or a query, which every manifest "
            "would repeat; give the credentials in the environment or in the configuration of fsspec (docs/cluster.md)"
        )
    if fragment and not PINNED.fullmatch(fragment):
        raise UserError(f"{url}#{fragment}: a fragment is #sha256= and the 64 hex digits that `sha256sum` prints")


def cache_folder() -> Path:
    """Return the folder for the models of this machine."""
    return Path(os.environ.get(CACHE) or Path.home() / ".cache" / "hypergrit") / "models"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder of the cache; processes of this machine wait for each other. Creates the folder.

    Raises UserError if it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {one_line(error)}; set {CACHE} to another folder") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _download(url: str, expected: str, path: Path) -> None:
    """Download a file or a folder to `path`, which appears when it is complete. The caller holds the lock."""
    fs, root = open_store(url)
    for abandoned in path.parent.glob("draft-*"):  # of killed processes, since this one holds the lock
        shutil.rmtree(abandoned, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=path.parent))
    try:
        is_file = url.lower().startswith("http") or fs.isfile(root)
        files = [root] if is_file else sorted(fs.find(root))
        if not files:
            raise UserError(f"{url} does not exist, or is an empty folder; check the URL")
        if expected and not is_file:
            raise UserError(f"{url} is a folder, but #sha256= is the hash of a file; remove it, or name a file")
        for file in files:
            relative = PurePosixPath("." if is_file else file[len(root) :].lstrip("/"))
            if ".." in relative.parts:
                raise UserError(f"{url}: the name {file!r} leaves the folder; rename the object")
            target = draft / path.name / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            fs.get_file(file, str(target))
        if expected and (found := file_hash(draft / path.name)) != expected:
            raise UserError(f"{url} has the SHA-256 {found} instead of {expected}; it has changed, or was cut off")
        os.replace(draft / path.name, path)
    except store_errors(ValueError) as error:
        raise UserError(f"{url} cannot be fetched: {one_line(error)}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
