"""User errors with S3: one line, exit code 2."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests
from aiobotocore.client import AioBaseClient
from botocore.exceptions import ClientError, EndpointConnectionError
from fsspec.registry import _registry
from s3fs import S3FileSystem
from s3fs.errors import translate_boto_error

from hypergrit_common.errors import UserError
from hypergrit_common.shards import list_shards
from pipeline import grit
from pipeline.explore.rows import Shard
from pipeline.output.commit import has_content
from pipeline.output.ledger import read_manifests, read_rows, tar_images
from pipeline.output.store import Store
from tests.patience import PATIENCE_S
from tests.pipeline.output.write.crashes import commit
from tests.pipeline.output.write.shards import rows
from tests.trainer.small_run import overrides
from trainer import train


@pytest.fixture(scope="module")
def bucket(server: str) -> S3FileSystem:
    """An empty bucket, "mine"."""
    fs = fsspec.filesystem("s3")
    fs.mkdir("mine")
    return fs


def run(source: str, output: str) -> int:
    return grit.main([f"input={source}", f"output={output}", "ray.runner=local"])


@pytest.fixture(params=["bucket", "key", "credentials", "endpoint", "package"])
def user_error(
    request: pytest.FixtureRequest, bucket: S3FileSystem, server: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str]]:
    """(URL, expected part of the message) of an error that a user can make."""
    url, expected = "s3://mine/in", ""
    S3FileSystem.clear_instance_cache()
    match request.param:
        case "bucket":
            url, expected = "s3://yours/in", "s3://yours"
        case "key":
            requests.post(f"{server}/moto-api/reset-auth", data="0", timeout=PATIENCE_S)
            expected = "Key Id you provided does not exist"
        case "credentials":
            monkeypatch.delenv("AWS_ACCESS_KEY_ID")
            expected = "credentials"
        case "endpoint":
            monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
            expected = "nonsense"
        case "package":
            monkeypatch.delitem(_registry, "s3")
            monkeypatch.setitem(sys.modules, "s3fs", None)
            expected = "pip install 's3fs'"
    yield url, expected
    requests.post(f"{server}/moto-api/reset-auth", data="inf", timeout=PATIENCE_S)
    monkeypatch.undo()
    S3FileSystem.clear_instance_cache()


def test_a_wrong_input_output_or_shard_is_an_error_of_one_line_with_exit_code_2(
    user_error: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, expected = user_error
    pq.write_table(pa.table({"url": ["http://127.0.0.1:9/"], "caption": ["a cat"]}), tmp_path / "pairs.parquet")
    commands = (
        lambda: run(url, str(tmp_path / "out")),
        lambda: run(str(tmp_path / "pairs.parquet"), url),
        lambda: train.main(overrides(tmp_path / "run", f"shards={url}")),
    )
    for command in commands:
        assert command() == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if not line[:1].isdigit()]
        assert line.startswith("error: ")
        assert expected in line


def test_a_missing_bucket_is_not_created(bucket: S3FileSystem, tmp_path: Path) -> None:
    pq.write_table(pa.table({"url": ["http://127.0.0.1:9/"], "caption": ["a cat"]}), tmp_path / "pairs.parquet")
    assert run(str(tmp_path / "pairs.parquet"), "s3://theirs/out") == 2
    assert not bucket.exists("theirs")
    with pytest.raises(UserError, match=r"s3://theirs.* does not exist"):
        list_shards("s3://theirs/*.tar")


DENIED = ClientError({"Error": {"Code": "AccessDenied", "Message": "not for you"}}, "GetObject")


@pytest.mark.parametrize("error", [DENIED, EndpointConnectionError(endpoint_url="http://127.0.0.1:9")])
def test_a_store_that_gives_out_while_a_file_is_read_is_named_and_the_file_is_not_called_damaged(
    error: Exception, bucket: S3FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit("s3://mine/out", rows())
    store, request = Store("s3://mine/out"), AioBaseClient._make_api_call
    (manifest,) = read_manifests(store)
    name, shard = "grit/00001.tar", Shard(store, manifest)
    readers: tuple[Callable[[], object], ...] = (
        lambda: len([*read_rows(store, [manifest], ["key"])]),
        lambda: len([*tar_images(store, name)]),
        lambda: shard.image(0) is not None,
        lambda: has_content(store, name, manifest["files"][name]),
        lambda: name in store.walk(),
    )
    assert [read() for read in readers] == [4, 3, True, True, True]

    async def given_out(client: object, operation: str, options: dict[str, str]) -> object:
        if operation != "ListObjectsV2" or options["Prefix"] == "out/":
            raise error
        return await request(client, operation, options)

    monkeypatch.setattr(AioBaseClient, "_make_api_call", given_out)
    for read in readers:
        with pytest.raises(UserError, match=r"^cannot read s3://mine/out/.*; check the address, the bucket"):
            read()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("NotImplemented", "A header you provided implies functionality that is not implemented"),
        ("501", "Not Implemented"),
        ("InvalidRequest", "Missing required header for this request: Content-MD5"),
        ("InvalidArgument", "x-amz-checksum-crc32 is not supported"),
        ("XAmzContentSHA256Mismatch", "The provided header does not match what was computed"),
        ("AccessDenied", "not for you"),
    ],
)
def test_a_store_with_other_rules_for_checksums_names_the_variable(
    code: str, message: str, bucket: S3FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": {}}, "PutObject")
    variable = "AWS_REQUEST_CHECKSUM_CALCULATION"

    def text() -> str:
        with pytest.raises(UserError) as caught, Store("s3://mine/out").convert_errors("write", "a.tar"):
            raise translate_boto_error(answer)
        return str(caught.value)

    monkeypatch.delenv(variable, raising=False)
    assert code in text()
    assert message in text()
    assert text().endswith(f"export {variable}=when_required") == (code != "AccessDenied")
    assert ("permissions" in text()) == (code == "AccessDenied")
    monkeypatch.setenv(variable, "when_required")
    assert text().endswith(f"unset {variable}") == (code != "AccessDenied")


def test_a_small_file_is_read_up_to_its_limit_and_may_be_empty(bucket: S3FileSystem) -> None:
    store = Store("s3://mine/small")
    for name, content in (("a", b"abc"), ("b", b"")):
        bucket.pipe_file(f"mine/small/{name}", content)
        assert store.read(name) == content
    assert store.read("c") is None
    with pytest.raises(UserError, match="s3://mine/small/a has 3 bytes, more than the 2 that such a file may have"):
        store.read("a", 2)
