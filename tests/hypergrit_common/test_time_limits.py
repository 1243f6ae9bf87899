"""A store that accepts connections and never answers: a bounded wait, and an error that names it."""

import logging
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from fsspec.implementations.http import HTTPFileSystem
from s3fs import S3FileSystem

from hypergrit_common import time_limits
from hypergrit_common.errors import UserError
from hypergrit_common.remote import open_store
from pipeline.read.listing import list_files
from tests.patience import PATIENCE_S


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server on loopback that never answers, and short time limits."""
    monkeypatch.setattr(time_limits, "S3_OPTIONS", {**time_limits.S3_OPTIONS, "read_timeout": 0.2})
    monkeypatch.setattr(time_limits, "HTTP_READ_S", 0.2)
    monkeypatch.setattr(time_limits, "REPORT_AFTER_S", 0.1)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")

        def accept() -> None:
            try:
                while True:
                    held.append(server.accept()[0])
            except OSError:
                return

        S3FileSystem.clear_instance_cache()
        HTTPFileSystem.clear_instance_cache()
        thread = threading.Thread(target=accept)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in held:
        connection.close()
    S3FileSystem.clear_instance_cache()
    HTTPFileSystem.clear_instance_cache()


@pytest.mark.parametrize("url", ["s3://bucket/a.csv", "http://{}/a.csv"])
def test_a_store_that_never_answers_is_an_error_that_names_it(
    silent: str, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    start = time.monotonic()
    with caplog.at_level(logging.WARNING), pytest.raises(UserError, match=r"a\.csv.*check") as error:
        list_files(url.format(silent))
    assert time.monotonic() - start < PATIENCE_S
    assert "\n" not in str(error.value)
    assert "still waiting for" in caplog.text


def test_all_tries_together_end_after_about_a_minute() -> None:
    fs, _ = open_store("s3://bucket/a")
    attempts = time_limits.S3_OPTIONS["retries"]["total_max_attempts"]
    assert fs.retries * attempts * time_limits.S3_OPTIONS["read_timeout"] <= 60


def test_options_of_the_user_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(time_limits.conf, "s3", {"config_kwargs": {"read_timeout": 99}})
    assert time_limits.time_limits("s3://b/a")["s3"]["config_kwargs"]["read_timeout"] == 99
    assert time_limits.time_limits("/data/a.csv") == {}
    assert set(time_limits.time_limits("simplecache::s3://b/a")) == {"s3"}
