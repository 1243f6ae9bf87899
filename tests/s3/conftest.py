"""A local S3 server (moto); jobs compute their shards in the process of the test."""

import logging
import os
from collections.abc import Iterator

import pytest
import requests
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

from tests.patience import PATIENCE_S
from tests.pipeline.here import running_here

VARIABLES = {
    "AWS_ACCESS_KEY_ID": "someone",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
"""What clients find in their environment besides the URL of the server."""


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The URL of the server."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def server(moto: str) -> Iterator[str]:
    """The URL of the server, which is empty; clients find it by environment variables, as in production."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {**VARIABLES, "AWS_ENDPOINT_URL": moto}.items():
            environment.setenv(name, value)
        S3FileSystem.clear_instance_cache()
        yield moto
        requests.post(f"{moto}/moto-api/reset", timeout=PATIENCE_S)
    S3FileSystem.clear_instance_cache()


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    """No process is started for the shards of a job."""
    with running_here():
        yield
