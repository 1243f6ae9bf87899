"""A local S3 server (moto)."""

import logging
import os
from collections.abc import Iterator

import pytest
import requests
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of an empty S3 server, which clients find by environment variables, as in production."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    with pytest.MonkeyPatch.context() as environment:
        for name, value in variables.items():
            environment.setenv(name, value)
        S3FileSystem.clear_instance_cache()
        yield variables["AWS_ENDPOINT_URL"]
        reset = f"{variables['AWS_ENDPOINT_URL']}/moto-api/reset"
        requests.post(reset, timeout=PATIENCE_S)  # frees the memory of this process
    S3FileSystem.clear_instance_cache()
    server.stop()
