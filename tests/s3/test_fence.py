"""The fence of an output in a bucket."""

from collections import Counter

import fsspec
import pytest
from s3fs import S3FileSystem

from hypergrit_common.errors import UserError
from pipeline.output.commit import Staging
from pipeline.output.lock import hold_lease
from pipeline.output.manifest import read_manifest
from pipeline.output.store import Store
from schemas.files import LEASE_FILE
from tests.pipeline.output.write.test_fence import take_over, write


def test_a_worker_that_loses_a_bucket_during_its_uploads_publishes_no_manifest(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.filesystem("s3").mkdir("fence")
    store, publish = Store("s3://fence/lost"), Staging.publish_file

    def slow(staging: Staging, relative: str) -> None:
        publish(staging, relative)
        take_over(store)

    with hold_lease(store) as lease:
        monkeypatch.setattr(Staging, "publish_file", slow)
        with pytest.raises(UserError, match=r"lost the output fence/lost to a job on host"):
            write("s3://fence/lost", lease.token)
    assert read_manifest(store, 1) is None
    assert store.names("train") == ["00001.tar"]


def test_the_fence_costs_two_small_requests_for_each_shard(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("s3").makedirs("fence", exist_ok=True)
    store, request, requests = Store("s3://fence/held"), S3FileSystem._call_s3, list[tuple[str, str]]()

    async def counted(self: S3FileSystem, method: str, *arguments: object, **options: object) -> object:
        requests.append((method, str(options.get("Key", ""))))
        return await request(self, method, *arguments, **options)

    def count(lease: str | None) -> Counter[str]:
        requests.clear()
        write("s3://fence/held", lease, f"{lease}")
        return Counter(method for method, key in requests if not key.endswith(".tmp"))

    with hold_lease(store) as lease:
        write("s3://fence/held", None)
        monkeypatch.setattr(S3FileSystem, "_call_s3", counted)
        without, fenced = count(None), count(lease.token)
        assert [r for r in requests if LEASE_FILE in r[1]] == [("get_object", f"held/{LEASE_FILE}")] * 2
    assert fenced - without == {"get_object": 2}
    assert not without - fenced
