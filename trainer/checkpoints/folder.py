"""The folder of a run: `output` of the configuration, or, if that is a URL, a temporary copy on this machine.

A lock keeps a second run from a folder, and a lease from a URL. A checkpoint at a URL is complete once its state.json
exists: this file is uploaded last and removed first. Metrics and the other files of the run are uploaded before it, so
that they are never older than the checkpoint.
"""

import fcntl
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hypergrit_common.errors import UserError
from hypergrit_common.files import check_link
from hypergrit_common.lease import SETTLE_S, LeaseFile
from hypergrit_common.processes import ProcessId, machine, this_process
from hypergrit_common.remote import is_s3, map_concurrently, one_line, open_store, store_errors
from trainer.distributed.gather import all_ranks, on_rank_0
from trainer.distributed.process import Process, true_on_all_ranks

logger = logging.getLogger(__name__)

PREFIX: Final = "hypergrit-run-"
"""Of the temporary folders. The identity of the process follows, and then what `tempfile` adds."""
NOT_UPLOADED: Final = (".", "wandb/")
"""Beginnings of the names of files that stay on this machine: drafts, and what wandb uploads to its own server."""
CHECKPOINTS: Final = "checkpoints"
REPLACED: Final = ("model", ".model")
"""Folders of a run that it writes as a whole."""
FILLED: Final = (CHECKPOINTS, "profile", "tensorboard", "wandb")
"""Folders of a run in which it writes or removes files one by one."""
MARK: Final = "state.json"
"""File of a checkpoint that makes it complete at a URL."""
TENSORS: Final = "state.safetensors"
"""File of a checkpoint with the weights, unless each rank writes its part."""
LOCK: Final = ".lock"
"""File of a folder that the run which writes to it has locked, with its process."""
LOG_FILE: Final = "train.log"
EXPIRY_S: Final = 120.0
"""Longest wait for the lock of a process that cannot be seen: NFS releases that of a lost machine after 90 s."""
LEASE: Final = ".lease"
"""Object of a URL that names the run which writes there, and when it has renewed it."""


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the last step, or None if there are no checkpoints."""
    found = list_checkpoints(folder)
    return found[-1] if found else None


def list_checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints in a folder, in the order of their steps."""
    return sorted(path for path in folder.glob("step_*") if is_step(path.name))


def is_step(name: str) -> bool:
    """True for the name of the folder of a checkpoint."""
    return name.startswith("step_") and name.removeprefix("step_").isdecimal()


@dataclass
class RunFolder:
    """The folder of a run on this machine, and the URL or path that the user gave."""

    url: str
    path: Path
    uploaded: str = ""  # name of the newest complete checkpoint at the URL, as far as this process knows
    lease: "UrlLease | None" = None  # of the URL, on rank 0

    @property
    def is_remote(self) -> bool:
        """True if files must be uploaded."""
        return "://" in self.url

    def newest_checkpoint(self) -> str | None:
        """Path or URL of the newest complete checkpoint; None without one.

        At a URL, rank 0 knows those of this run, and the others know those that the run began with.
        """
        if self.is_remote:
            return self.shown(self.path / CHECKPOINTS / self.uploaded) if self.uploaded else None
        found = newest_checkpoint(self.path / CHECKPOINTS)
        return str(found) if found else None

    def shown(self, path: Path) -> str:
        """The path or URL by which a message names a file or folder of the run."""
        return f"{self.url}/{path.relative_to(self.path)}" if self.is_remote else str(path)

    def note_downloaded(self) -> None:
        """Note the checkpoint that was downloaded, also by another process of this machine."""
        found = newest_checkpoint(self.path / CHECKPOINTS)
        self.uploaded = found.name if found else ""

    def fetch(self) -> None:
        """Download the newest checkpoint and the files beside the checkpoints. Raises UserError and `store_errors`."""
        fs, root = open_store(self.url)
        if not fs.exists(root):
            return
        names = [path.removeprefix(root).lstrip("/") for path in fs.find(root)]
        newest = max((name.rsplit("/", 1)[0] for name in names if is_mark(name)), default=None)
        wanted = [name for name in names if not name.startswith((f"{CHECKPOINTS}/", "model/", LEASE))]
        wanted += [name for name in names if newest and name.startswith(f"{newest}/")]
        if outside := [name for name in wanted if ".." in name.split("/")]:
            raise UserError(f"{self.url}/{outside[0]} leads out of the folder; remove this object")

        def download(name: str) -> None:
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            fs.get_file(f"{root}/{name}", str(target))

        list(map_concurrently(download, wanted))
        self.note_downloaded()

    def upload_checkpoint(self, checkpoint: Path, keep: int, keep_every: int | None = None) -> None:
        """Upload a checkpoint and the files beside the checkpoints, then remove all but `kept_checkpoints`.

        Nothing is done for a folder without a URL. Raises UserError and `store_errors`.
        """
        if not self.is_remote:
            return
        fs, root = open_store(self.url)
        fs.invalidate_cache()
        self._check_lease()  # before checkpoints are removed
        before = remote_checkpoints(fs, root)
        name = f"{CHECKPOINTS}/{checkpoint.name}"
        self.upload_files()
        if MARK not in before.get(name, ()):
            files = [path.name for path in checkpoint.iterdir() if path.name != MARK]
            list(map_concurrently(lambda file: self._upload(fs, root, f"{name}/{file}"), files))
            self._upload(fs, root, f"{name}/{MARK}")
        self.uploaded = checkpoint.name
        complete = sorted({name, *(key for key, files in before.items() if MARK in files)})
        for old in (before.keys() | {name}) - kept_checkpoints(complete, keep, keep_every):
            for file in sorted(before.get(old, ()), key=lambda file: file != MARK):
                fs.rm_file(f"{root}/{old}/{file}")

    def upload_files(self) -> None:
        """Upload all files but the checkpoints. Nothing is done for a folder without a URL.

        Files that disappear meanwhile, such as temporary ones, are skipped. Raises UserError if the URL cannot be
        written, or if another run writes to it.
        """
        if not self.is_remote:
            return
        fs, root = open_store(self.url)
        names = [
            os.path.relpath(os.path.join(top, file), self.path)
            for top, _, found in os.walk(self.path)
            for file in found
        ]
        with writes_explained(self.url):
            self._check_lease()
            for name in names:
                if not name.startswith((f"{CHECKPOINTS}/", *NOT_UPLOADED)) and not name.endswith(".tmp"):
                    try:
                        self._upload(fs, root, name)
                    except FileNotFoundError:
                        if (self.path / name).exists():  # else the store lacks something, such as the bucket
                            raise

    def _check_lease(self) -> None:
        if self.lease:
            self.lease.check()

    def _upload(self, fs: Any, root: str, name: str) -> None:
        if not is_s3(fs):  # it has no folders, and s3fs would create the bucket
            fs.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
        fs.put_file(str(self.path / name), f"{root}/{name}")


def kept_checkpoints(names: Sequence[str], keep: int, keep_every: int | None) -> set[str]:
    """Those of the complete checkpoints, from old to new, that stay: the newest, and those of every so many steps."""
    for_good = {name for name in names if keep_every and int(name.rpartition("_")[2]) % keep_every == 0}
    return for_good | set(names[-keep:])


def is_mark(name: str) -> bool:
    """True for the path of the file that makes a checkpoint complete, relative to the run."""
    parts = name.split("/")
    return len(parts) == 3 and parts[0] == CHECKPOINTS and is_step(parts[1]) and parts[2] == MARK


def remote_checkpoints(fs: Any, root: str) -> dict[str, list[str]]:
    """The files of each checkpoint at a URL, by its name relative to the run; also of those that are not complete."""
    found: dict[str, list[str]] = {}
    folder = f"{root}/{CHECKPOINTS}"
    for path in fs.find(folder) if fs.exists(folder) else []:
        checkpoint, _, file = path.removeprefix(root).lstrip("/").rpartition("/")
        if is_step(checkpoint.rpartition("/")[2]):
            found.setdefault(checkpoint, []).append(file)
    return found


@contextmanager
def writes_explained(url: str) -> Iterator[None]:
    """Turn errors of the store at `url` into a UserError that says what to do."""
    try:
        yield
    except store_errors(ValueError) as error:
        raise UserError(
            f"output={url} cannot be written: {one_line(error)}; create the bucket and allow to write to it, then repeat "
            "the command"
        ) from error


def signature() -> str:
    """The words for this process in a lock: its identity, then what a message shows."""
    return f"{this_process()} process {os.getpid()} on host {socket.gethostname()}"


class UrlLease(LeaseFile):
    """An object at a URL that names the process of the run which writes there."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "its checkpoints are kept", SETTLE_S)
        self.fs, self.root = open_store(url)

    def read(self) -> bytes | None:
        """The content of the object; None if there is none. Raises UserError."""
        with writes_explained(self.output):
            try:
                return bytes(self.fs.cat_file(f"{self.root}/{LEASE}"))
            except FileNotFoundError:
                return None

    def swap(self, old: bytes | None, new: bytes | None) -> bool:
        """Replace the object, unless its content has changed. Raises UserError."""
        if self.read() != old:
            return False
        with writes_explained(self.output):
            if new is None:
                self.fs.rm_file(f"{self.root}/{LEASE}")
            else:
                if not is_s3(self.fs):
                    self.fs.makedirs(self.root, exist_ok=True)
                self.fs.pipe_file(f"{self.root}/{LEASE}", new)
        return True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder, which the system releases when this process ends.

    Raises UserError, naming the process, if another run holds it, and for a link to a file or into another run, which
    this run would change, also a hard link, and like `check_link` for FILLED. Other links, as to a larger disk, are
    followed. A file system without locks is only logged.
    """
    for path in folder.iterdir():
        is_replaced = not path.is_dir() or path.name in REPLACED or (path.resolve().parent / LOCK).exists()
        if path.is_symlink() and is_replaced:
            raise UserError(f"{path} is a link, and what it names would be overwritten; remove it")
        if path.is_symlink() and path.name in FILLED:
            check_link(str(path))
        if path.name in (LOCK, LOG_FILE) and not (path.is_file() and path.stat().st_nlink == 1):
            raise UserError(
                f"{path} is no file, or has a second name (a hard link), whose content would change; remove it, or put a "
                "copy in its place"
            )
    path, end = folder / LOCK, time.monotonic() + EXPIRY_S
    with path.open("a+", encoding="utf-8") as file:
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock, not inherited by loader processes
                break
            except (BlockingIOError, PermissionError) as error:
                holder, _, shown = path.read_text(encoding="utf-8").partition(" ")
                process = ProcessId.parse(holder)
                if time.monotonic() > end or (process and process.is_alive()):
                    raise UserError(
                        f"another run writes to {folder}: {shown or 'an unknown process'}; stop it, wait for its end, or "
                        "give another output="
                    ) from error
                logger.warning("%s is locked by %s, which cannot be seen from here: waiting for its end", folder, shown)
                time.sleep(EXPIRY_S / 12)
            except OSError as error:
                logger.warning("%s cannot be locked (%s): start no second run with this output", folder, error)
                break
        file.truncate(0)
        file.write(signature())
        file.flush()
        yield


@contextmanager
def open_run_folder(url: str, process: Process) -> Iterator[RunFolder]:
    """Yield the folder of the run, with its newest checkpoint. Collective.

    For a URL, the processes of a machine share a temporary folder, which is removed at the end; on success all files
    have been uploaded. Raises UserError if the URL cannot be read or written, or if another run writes to it.
    """
    if "://" not in url:
        yield RunFolder(url, Path(url))
        return
    url = url.rstrip("/")
    with ExitStack() as stack:
        lease = on_rank_0(lambda: stack.enter_context(UrlLease(url).held()))
        remove_abandoned_copies(Path(tempfile.gettempdir()))
        mine = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{this_process()}."))
        stack.callback(shutil.rmtree, mine, ignore_errors=True)
        # Not by host names: nodes may have equal ones.
        shared = Path(next(path for name, path in all_ranks((machine(), str(mine))) if name == machine()))
        folder = RunFolder(url, shared, lease=lease)
        problem = ""
        if shared == mine:
            try:
                folder.fetch()
            except store_errors(ValueError, UserError) as error:
                problem = one_line(error)
        if not true_on_all_ranks(not problem, process):
            raise UserError(f"output={url} cannot be read: {problem or 'another process names the reason'}")
        folder.note_downloaded()
        yield folder


def remove_abandoned_copies(parent: Path) -> None:
    """Remove the temporary folders in `parent` that killed runs of this user and machine have left."""
    for path in parent.glob(f"{PREFIX}*.*"):
        process = ProcessId.parse(path.name.removeprefix(PREFIX).partition(".")[0])
        with suppress(OSError):
            if process and process.is_alive() is False and path.lstat().st_uid == os.getuid() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
                logger.info("%s removed: the run that it belonged to was killed", path)
