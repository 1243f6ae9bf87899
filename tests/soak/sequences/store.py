"""An object store for the sequences: its server, disturbances at requests to it, and the copy of a bucket in a folder."""

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from aiobotocore.client import AioBaseClient
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError
from moto.server import ThreadedMotoServer

from tests.pipeline.output.write.crashes import KILLED
from tests.s3.conftest import VARIABLES
from tests.soak.sequences.input import serving
from tests.soak.sequences.processes import Disturbance


def serve(writer: int) -> None:
    """Serve empty buckets; write the port to a pipe."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    os.write(writer, b"%d" % server.get_host_and_port()[1])
    signal.pause()


@contextmanager
def serving_objects() -> Iterator[Any]:
    """Serve objects; yield a client that starts no threads. Processes that are forked meanwhile find the server."""
    with serving(serve) as port:
        os.environ |= VARIABLES | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        yield boto3.client("s3")


WRITES = 5
"""One of so many requests writes, roughly."""


class AtRequests(Disturbance):
    """Something that happens at a request of this process; but for `broken` and half of `stop`, at one that writes.

    From it on, `full`: such requests are refused (503); `broken`: none reaches the store. `half`: the store does what it
    was asked for, but the answer is lost, and the client asks again.
    """

    def install(self) -> None:
        request = AioBaseClient._make_api_call
        is_any = self.kind == "broken" or (self.kind == "stop" and self.target % 2)
        self.target //= 1 if is_any else WRITES

        async def counted(client: Any, operation: str, options: Any) -> Any:
            if not is_any and operation.startswith(("Get", "Head", "List")):
                return await request(client, operation, options)
            is_target = self.count(operation)
            result = await request(client, operation, options)
            if is_target and self.kind == "kill_after":
                os._exit(KILLED)
            if is_target and self.kind == "half":
                raise ReadTimeoutError(endpoint_url=client.meta.endpoint_url)
            return result

        AioBaseClient._make_api_call = counted

    def fail(self, name: str) -> None:
        if self.kind == "broken":
            raise EndpointConnectionError(endpoint_url=os.environ["AWS_ENDPOINT_URL"])
        if self.kind == "full":
            error = {"Error": {"Code": "SlowDown", "Message": "Please reduce your request rate."}}
            raise ClientError(error | {"ResponseMetadata": {"HTTPStatusCode": 503}}, name)


class Bucket:
    """A bucket, and its copy in a folder of the same name."""

    def __init__(self, objects: Any, folder: Path) -> None:
        self.objects, self.folder, self.tags = objects, folder, dict[str, str]()
        objects.create_bucket(Bucket=folder.name)

    def copy(self) -> None:
        """Make the folder's files those of the bucket, where these have changed."""
        found = self.objects.list_objects_v2(Bucket=self.folder.name)
        assert not found["IsTruncated"]
        tags = {item["Key"]: item["ETag"] for item in found.get("Contents", ())}
        for key in self.tags.keys() - tags.keys():
            (self.folder / key).unlink(missing_ok=True)
        for key, tag in tags.items():
            if self.tags.get(key) != tag:
                path = self.folder / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self.objects.get_object(Bucket=self.folder.name, Key=key)["Body"].read())
        self.tags = tags

    def put(self, path: Path) -> None:
        """Make an object what its file is, which was changed or removed."""
        place = {"Bucket": self.folder.name, "Key": str(path.relative_to(self.folder))}
        if path.exists():
            self.objects.put_object(**place, Body=path.read_bytes())
        else:
            self.objects.delete_object(**place)
        self.copy()
