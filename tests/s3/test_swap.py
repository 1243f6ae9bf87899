"""Compare-and-swap and leases in a bucket."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
from s3fs import S3FileSystem

from hypergrit_common.errors import UserError
from pipeline.faults import ShardError
from pipeline.output import lock as leases
from pipeline.output.lock import hold_lease, swap
from pipeline.output.store import Store
from schemas.manifest import FileFacts


@pytest.fixture(scope="module")
def store(server: str) -> Store:
    fsspec.filesystem("s3").mkdir("swaps")
    return Store("s3://swaps/out")


def test_of_several_writers_one_succeeds(store: Store) -> None:
    for old, name in ((None, "new"), (b"0", "old")):
        if old:
            store.write(name, "0")
        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(lambda i, old=old, name=name: swap(store, name, old, b"%d" % (i + 1)), range(4)))
        assert won.count(True) == 1
        assert store.read(name) == b"%d" % (won.index(True) + 1)
    assert not swap(store, "gone", b"0", b"1")
    assert swap(store, "new", store.read("new"), None)
    assert store.read("new") is None


def test_a_put_whose_answer_is_lost_succeeds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    request = S3FileSystem.call_s3

    def twice(self: S3FileSystem, method: str, *arguments: object, **options: object) -> object:
        if method == "put_object":
            request(self, method, *arguments, **options)
        return request(self, method, *arguments, **options)

    monkeypatch.setattr(S3FileSystem, "call_s3", twice)
    assert swap(store, "answer", None, b"mine")


def test_a_store_without_conditional_writes_is_written_and_read_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = S3FileSystem.call_s3

    def refuse(self: S3FileSystem, method: str, *arguments: object, **options: object) -> object:
        if method == "put_object" and ("IfNoneMatch" in options or "IfMatch" in options):
            error = OSError("not implemented")
            error.__cause__ = type("ClientError", (Exception,), {"response": {"Error": {"Code": "NotImplemented"}}})()
            raise error
        return request(self, method, *arguments, **options)

    monkeypatch.setattr(S3FileSystem, "call_s3", refuse)
    monkeypatch.setattr(leases, "SETTLE_S", 0.2)
    with hold_lease(Store("s3://swaps/plain")) as lease:
        lease.renew()
        with pytest.raises(UserError, match="in use by a job on host"), hold_lease(Store("s3://swaps/plain")):
            pass
        Store("s3://swaps/plain").write("_lease.json", "{}")
        with pytest.raises(UserError, match="has lost the output"):
            lease.check()


def test_an_upload_over_an_older_object_of_the_same_size_is_noticed_if_it_is_lost(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")
    facts: FileFacts = {"bytes": 3, "sha256": "a" * 64, "rows": 1}
    store.upload(str(file), "object", facts)
    monkeypatch.setattr(store.fs, "put_file", lambda *_, **__: None)
    with pytest.raises(ShardError, match="the store accepted 3 uploads, but the object is missing or differs"):
        store.upload(str(file), "object", {**facts, "sha256": "b" * 64})
