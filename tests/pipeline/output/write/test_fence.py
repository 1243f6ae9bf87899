"""Workers commit only while the lease of their job holds the output."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.lease import new_lease
from pipeline.config import WriteConfig
from pipeline.faults import ShardError
from pipeline.output.commit import Staging
from pipeline.output.lock import check_lease, hold_lease
from pipeline.output.manifest import read_manifest
from pipeline.output.store import Store
from pipeline.output.write.stage import write_shard
from schemas.files import LEASE_FILE
from tests.pipeline.output.write.shards import PROVENANCE, plan, table, tree


def write(output: str, lease: str | None, config_hash: str = "1") -> None:
    """Commit a shard of a job with these settings."""
    provenance: Any = {**PROVENANCE, "config_hash": config_hash}
    write_shard(table(), plan(), WriteConfig(), output, provenance, lease=lease)


def take_over(store: Store) -> bytes:
    """Put the lease of another job into the output; return its content."""
    content = new_lease()
    store.write_bytes(LEASE_FILE, content)
    return content


def test_only_the_holder_of_the_lease_commits(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "out"))
    with hold_lease(store) as lease:
        token = lease.token
        write(store.root, token)
        lease.renew()
        write(store.root, token, "2")
        take_over(store)
        before = tree(store.root)
        for stale in (token, "another"):
            with pytest.raises(UserError, match=r"lost the output .* to a job on host .* nothing is written"):
                write(store.root, stale, "3")
    assert tree(store.root) == before
    write(store.root, None, "4")  # without a job, as by pipeline.write_shard
    assert tree(store.root) != before


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[]", b"\xff", b'{"token": '])
def test_a_worker_that_sees_no_lease_fails_its_shard_and_not_the_job(tmp_path: Path, content: bytes | None) -> None:
    store = Store(str(tmp_path))
    if content is not None:
        store.write_bytes(LEASE_FILE, content)
    with pytest.raises(ShardError, match="not mounted there"):
        write(store.root, "token")
    assert read_manifest(store, 1) is None


def test_a_lease_that_cannot_be_read_fails_the_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path))
    for error in (UserError("no answer"), OSError(116, "Stale file handle")):

        def fail(_: str, error: Exception = error) -> bytes:
            raise error

        monkeypatch.setattr(store, "read", fail)
        with pytest.raises(ShardError, match=r"cannot be read on .*: .*(no answer|Stale file handle)"):
            check_lease(store, "token")


@pytest.mark.parametrize("when", ["before the files", "before the manifest"])
def test_an_output_that_is_lost_during_the_commit_gets_no_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    store, publish = Store(str(tmp_path)), Staging.publish
    others: list[bytes] = []

    def slow(staging: Staging) -> None:
        if not others:
            others.append(take_over(store))
        publish(staging)

    open_: Callable[..., object] = Staging.open

    def late(staging: Staging, name: str, rows: int) -> object:
        if not others:
            others.append(take_over(store))
        return open_(staging, name, rows)

    monkeypatch.setattr(*((Staging, "open", late) if when == "before the files" else (Staging, "publish", slow)))
    with hold_lease(store) as lease, pytest.raises(UserError, match="lost the output"):
        write(store.root, lease.token)
    assert read_manifest(store, 1) is None
    assert not list(tmp_path.rglob("*.tmp"))
    assert (tmp_path / "train/00001.tar").exists() == (when == "before the manifest")
    assert json.loads(store.read(LEASE_FILE) or b"") == json.loads(others[0])  # the loser has not removed it
