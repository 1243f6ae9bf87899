"""Input and output in Google Cloud Storage, with the emulator of the package gcp-storage-emulator."""

from collections.abc import Iterator

import fsspec
import pytest

from tests.stores.jobs import check_store

with pytest.MonkeyPatch.context() as environment:  # read at import: no request by gRPC, which the emulator lacks
    environment.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    pytest.importorskip("gcsfs")
emulator = pytest.importorskip("gcp_storage_emulator.server")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket="mine")
    server.start()
    port = server._api._httpd.server_address[1]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    for name in ("gs", "gcs"):
        monkeypatch.setitem(fsspec.config.conf, name, {"token": "anon"})
    yield "gs://mine/here"
    server.stop()


def test_a_bucket_is_input_root_of_images_and_output(bucket: str) -> None:
    check_store(bucket)
