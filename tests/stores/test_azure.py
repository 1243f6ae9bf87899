"""Input and output in Azure Blob Storage, with the emulator Azurite."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from hypergrit_common.processes import free_ports
from tests.patience import PATIENCE_S, wait_until
from tests.stores.jobs import check_store

pytest.importorskip("adlfs")
AZURITE = shutil.which("azurite-blob")
ACCOUNT, KEY = (
    "devstoreaccount1",
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
)
"""Account and key that every emulator of Azure accepts; they are public."""


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if AZURITE is None:
        pytest.skip("azurite-blob (npm install azurite) is not in PATH")
    (port,) = free_ports(1)
    command = [AZURITE, "--silent", "--skipApiVersionCheck", "--location", str(tmp_path), "--blobHost", "127.0.0.1"]
    process = subprocess.Popen([*command, "--blobPort", str(port)])
    text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
    text += f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
    monkeypatch.setitem(fsspec.config.conf, "abfs", {"connection_string": text})
    try:
        wait_until(lambda: answers(port))
        fsspec.filesystem("abfs").mkdir("mine")
        yield "abfs://mine/here"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def answers(port: int) -> bool:
    """Return whether a server accepts connections."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_container_is_input_root_of_images_and_output(container: str) -> None:
    check_store(container)
