"""Commit or replace a shard again and again, each time with a fault at another I/O call, and check the output after each.

    python -m tests.pipeline.output.write.crashes SCRATCH [CASE ...]

`SCRATCH` is a folder for an undisturbed commit; a case is the JSON of a `Case`. Of the I/O calls of a commit, numbered
from 0, those with `number % stride == offset` are hit. After each fault, all files that have a manifest must agree with
it, and a second attempt must give the bytes of an undisturbed one. With `replaces`, opening the output must give the old
shard or the new one, completely. Prints the number of faults of each case.

This process starts no threads and forks each step: faults kill the step, not the loop.
"""

import builtins
import errno
import hashlib
import io
import itertools
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pandas  # noqa: F401  # before forking, since importing takes time; pyarrow imports it at the first table
import pyarrow.parquet  # noqa: F401
import s3fs

from pipeline.config import WriteConfig
from pipeline.output.commit import open_output
from pipeline.output.store import Store, indices, remove_abandoned
from pipeline.output.write.stage import write_shard
from pipeline.read.types import ShardPlan
from schemas.files import FILES, INDEX_FOLDER, JOURNAL_FILE, JOURNAL_FOLDER, MANIFEST_FOLDER, SUMMARY_FOLDER
from tests.pipeline.output.write.shards import PROVENANCE, dropped_row, kept_row, plan, rows, table

FAULTS: Final = ("full", "broken", "half", "short", "kill", "kill_after", "lost", "truncated")
"""full: ENOSPC; broken: EIO; half: a write call takes half of its data; short: and the next one fails; kill: the process
ends before or after the call; lost, truncated: the store accepts an upload and keeps nothing, or half of it."""
REMOTE: Final = ("lost", "truncated")
KILLED: Final = 77
NOT_REACHED: Final = 78
OLD = [kept_row(10), dropped_row(11), kept_row(13) | {"caption": "another caption with two dogs"}, kept_row(12)]
"""Rows of an older version of the shard, made with other settings, which the commit replaces."""
OLD_PROVENANCE: Final[dict[str, Any]] = PROVENANCE | {"config_hash": "decade"}
FOLDERS: Final = (*FILES, INDEX_FOLDER, MANIFEST_FOLDER, SUMMARY_FOLDER)


class Faults:
    """Wraps I/O calls of this process, counts them, and disturbs the one with number `target`."""

    def __init__(self, kind: str, target: int) -> None:
        self.kind, self.target = kind, target
        self.n = -1
        self.is_full = False

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.n += 1
            if self.n == self.target:
                self.before()
            result = call(*arguments, **options)
            if self.n == self.target and self.kind == "kill_after":
                os._exit(KILLED)
            return result

        return wrapped

    def before(self) -> None:
        if self.kind == "kill":
            os._exit(KILLED)
        if self.kind in ("full", "broken"):
            number = errno.ENOSPC if self.kind == "full" else errno.EIO
            raise OSError(number, os.strerror(number))

    def install(self) -> None:
        """Replace the requests to S3 and, unless the fault concerns only these, local I/O calls."""
        if self.kind not in REMOTE:
            self.install_local()
        request = s3fs.S3FileSystem._call_s3

        async def request_counted(fs: Any, method: str, *arguments: Any, **options: Any) -> Any:
            self.n += 1
            is_target = self.n == self.target
            if is_target:
                self.before()
                if method == "put_object" and self.kind == "lost":
                    return {"ETag": '"0"'}
                if method == "put_object" and self.kind == "truncated":
                    options["Body"] = options["Body"][: len(options["Body"]) // 2]
            result = await request(fs, method, *arguments, **options)
            if is_target and self.kind == "kill_after":
                os._exit(KILLED)
            return result

        s3fs.S3FileSystem._call_s3 = request_counted

    def install_local(self) -> None:
        """Replace calls of the `os` module, `open`, and writes to raw files."""
        for name in ("open", "fsync", "replace", "remove", "mkdir", "stat", "scandir"):
            setattr(os, name, self.wrap(getattr(os, name)))
        faults, opened = self, open

        class RawFile(io.FileIO):
            def write(self, data: Any) -> int:
                faults.n += 1
                if faults.is_full:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if faults.n == faults.target:
                    faults.before()
                    if faults.kind in ("half", "short"):
                        faults.is_full = faults.kind == "short"
                        return super().write(bytes(data)[: len(data) // 2])
                n_bytes = super().write(data)
                if faults.n == faults.target and faults.kind == "kill_after":
                    os._exit(KILLED)
                return n_bytes

        def open_counted(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if mode in ("wb", "xb") and options.get("buffering") == 0:
                return RawFile(path, mode)
            return opened(path, mode, *arguments, **options)

        builtins.open = open_counted


def fork(step: Callable[[], int]) -> int:
    """Run `step` in a forked process; return its exit code, 1 after an exception."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = step()
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def commit(
    output: str, values: list[dict[str, Any]], provenance: dict[str, Any] = PROVENANCE, replaces: bool = False
) -> None:
    shard: ShardPlan = plan()
    write_shard(table(values), shard, WriteConfig(), output, provenance, replaces=replaces)


def disturb(output: str, kind: str, target: int, replaces: bool = False) -> int:
    """Replace an older version of the shard, with a fault."""
    commit(output, OLD, OLD_PROVENANCE, replaces)
    faults = Faults(kind, target)
    faults.install()
    try:
        commit(output, rows(), replaces=replaces)
    except BaseException:
        if faults.n < target:
            raise
    return 0 if faults.n >= target else NOT_REACHED


def content(output: str) -> dict[str, bytes]:
    """Return the files of all shards."""
    store = Store(output)
    names = [f"{folder}/{name}" for folder in FOLDERS for name in store.names(folder) if not name.endswith(".tmp")]
    return {name: store.read(name) or b"" for name in names}


def recover(output: str, old: dict[str, bytes], expected: dict[str, bytes]) -> int:
    """Open the output after a fault, and compare it with the old shard and the new one, whose summaries may be missing."""
    with open_output(Store(output)):
        found = content(output)
    assert found in (old, expected), "neither the old shard nor the new one"
    assert not indices(Store(output), JOURNAL_FILE), "a journal remains"
    return 0


def check(output: str, expected: dict[str, bytes]) -> int:
    """Check the output after a fault, commit again, and compare with the bytes of an undisturbed commit."""
    found = content(output)
    for name, text in found.items():
        if name.startswith(MANIFEST_FOLDER):
            for file, facts in json.loads(text)["files"].items():
                data = found.get(file, b"")
                assert (len(data), hashlib.sha256(data).hexdigest()) == (facts["bytes"], facts["sha256"]), file
    commit(output, rows())
    assert content(output) == expected, "another attempt gives other bytes"
    if "://" not in output:
        remove_abandoned(f"{output}/{folder}" for folder in (*FOLDERS, JOURNAL_FOLDER))
        assert not list(Path(output).rglob("*.tmp")), "temporary files remain"
    return 0


def reference(folder: Path, values: list[dict[str, Any]], provenance: dict[str, Any]) -> dict[str, bytes]:
    """Return the files of an undisturbed commit."""
    assert fork(lambda: commit(str(folder), values, provenance) or 0) == 0
    return content(str(folder))


class Case(NamedTuple):
    """Faults of a kind of FAULTS at commits to a folder or an S3 URL."""

    output: str
    kind: str
    stride: int
    offset: int
    replaces: bool = False


def main(scratch: str, *cases: str) -> None:
    expected = reference(Path(scratch), rows(), PROVENANCE)
    old = reference(Path(scratch, "old"), OLD, OLD_PROVENANCE)
    for case in cases:
        print(disturb_calls(*json.loads(case), old, expected))


def disturb_calls(
    output: str, kind: str, stride: int, offset: int, replaces: bool, old: dict[str, bytes], expected: dict[str, bytes]
) -> int:
    """Return the number of faults of a case."""
    assert kind in FAULTS
    for hit, target in enumerate(itertools.count(offset, stride)):
        code = fork(lambda target=target: disturb(output, kind, target, replaces))  # type: ignore[misc]
        assert code in (0, KILLED, NOT_REACHED), f"call {target}: exit code {code}"
        if replaces:
            assert fork(lambda: recover(output, old, expected)) == 0, f"not replaced after {kind} at call {target}"
        assert fork(lambda: check(output, expected)) == 0, f"wrong output after {kind} at call {target}"
        if code == NOT_REACHED:
            return hit
    raise AssertionError


if __name__ == "__main__":
    main(*sys.argv[1:])
