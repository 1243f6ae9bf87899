"""The shard loop and the resizer of img2dataset, with bodies and pixels from this stage (`download.client`)."""

import asyncio
import contextlib
import io
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from email.message import Message
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.response import addinfourl

import cv2
import pyarrow as pa

from hypergrit_common.errors import is_machine_error
from hypergrit_common.images import Image, ImageRejected
from pipeline.faults import Fault, describe, format_traceback
from pipeline.images import ResizeConfig
from pipeline.stages.download.addresses import FetchError
from pipeline.stages.download.client import Client
from pipeline.stages.download.config import DownloadConfig
from pipeline.stages.download.fetch import Request
from pipeline.stages.download.permits import PermitsError
from pipeline.stages.download.prepare import Outcome, Stored, prepare_image
from schemas.status import REASONS
from schemas.table import Drop


def own_copy(name: str) -> Any:
    """Load a module of img2dataset anew, so that what is replaced in it stays as it is for everyone else."""
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # its import would look for updates online
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Img2datasetShard:
    """Runs the URLs of a table through img2dataset's Downloader and Resizer; it is the opener and the writer of that loop.

    The opener is `client.body`: addresses, redirects, bytes, retries, robots.txt and the limits per host are ours. The
    resizer gets images that were decoded under our limits.
    """

    def __init__(self, client: Client, config: DownloadConfig, requests: Mapping[str, Request]) -> None:
        self.client, self.config, self.requests = client, config, requests
        self.outcomes: dict[str, Outcome] = {}
        self._loop = asyncio.get_running_loop()
        self._waiting: set[Future[Any]] = set()
        self._held: dict[str, contextlib.AsyncExitStack] = {}  # URL -> what holds the bytes of its body
        self._faults: dict[str, Fault] = {}
        self._lack: Exception | None = None  # on this machine: it ends the shard
        self._is_stopped = False
        self._prepared = Outcome({})  # of the body that the loop handed on last

    async def run(self) -> dict[str, Outcome]:
        """Return the outcome of each URL. Raises PermitsError, and OSError for a lack on this machine."""
        loop = asyncio.ensure_future(asyncio.to_thread(self._download))
        try:
            await asyncio.shield(loop)
        finally:
            self._stop()
            await asyncio.wait([loop])
        if self._lack is not None:
            raise self._lack
        missing = Outcome({}, drop=Drop("internal_error", "img2dataset returned no row for the URL"))
        return {url: self.outcomes.get(url, missing) for url in self.requests}

    def _download(self) -> None:
        """Run the loop, in a thread beside the event loop."""
        downloader, resizer = own_copy("img2dataset.downloader"), own_copy("img2dataset.resizer")
        downloader.urllib = SimpleNamespace(request=SimpleNamespace(Request=lambda url, **_: url, urlopen=self.urlopen))
        resizer.SuppressStdoutStderr = contextlib.nullcontext  # it would silence the log of the whole process
        mode, size = self.config.resize.mode, self.config.resize.size
        self._resizer = resizer.Resizer(size, "no" if mode == "none" else mode, resize_only_if_bigger=mode != "border")
        with tempfile.TemporaryDirectory() as folder:
            path, table = str(Path(folder, "shard.arrow")), pa.table({"url": list(self.requests)})
            with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
            downloader.Downloader(
                sample_writer_class=lambda *_: self,
                resizer=self.resize,
                thread_count=self.config.concurrency,
                save_caption=False,
                extract_exif=False,
                output_folder=folder,
                column_list=["url"],
                timeout=self.config.timeout_s,
                number_sample_per_shard=table.num_rows,
                oom_shard_count=5,
                compute_hash=None,  # it is in our outcome
                verify_hash_type=None,
                encode_format="jpg",
                retries=0,  # `client.body` makes them
                user_agent_token=self.config.user_agent_token,
                disallowed_header_directives=None,  # `client.body` obeys them
            ).download_shard((0, path))

    def urlopen(self, url: str, timeout: float) -> addinfourl:
        """Fetch a body, for a thread of the loop, which writes the message of an exception into the row."""
        stack = contextlib.AsyncExitStack()
        body = stack.enter_async_context(self.client.body(self.requests[url]))
        future = asyncio.run_coroutine_threadsafe(body, self._loop)
        self._waiting.add(future)
        if self._is_stopped:
            future.cancel()
        try:
            found = addinfourl(io.BytesIO(future.result()), Message(), url)
        except FetchError:
            raise
        except Exception as error:
            self._faults[url] = self._fault_of(error)
            raise
        finally:
            self._waiting.discard(future)
        self._held[url] = stack
        return found

    def _fault_of(self, error: Exception) -> Fault:
        """Return the fault of a row; a lack on this machine ends the shard."""
        if isinstance(error, PermitsError) or is_machine_error(error):
            self._lack = self._lack or error
            self._loop.call_soon_threadsafe(self._stop)
        return Fault("", "download", describe(error), format_traceback(error))

    def _stop(self) -> None:
        """Let all rows that are not done fail at once."""
        self._is_stopped = True
        for future in tuple(self._waiting):
            future.cancel()

    def resize(self, stream: io.BytesIO, _: None) -> tuple[bytes | None, int, int, int, int, str | None]:
        """Prepare an image in the place of a Resizer, which stores it."""
        try:
            self._prepared = prepare_image(stream.getvalue(), self.config, self._store)
        except Exception as error:
            fault = self._fault_of(error)
            self._prepared = Outcome({}, drop=fault.drop, fault=fault)
        drop = self._prepared.drop
        return self._prepared.image, 0, 0, 0, 0, f"{drop.reason}: {drop.detail}" if drop else None

    def _store(self, pixels: Image, config: ResizeConfig) -> Stored:
        """Resize and encode an image with the Resizer. Raises ImageRejected if it cannot."""
        bitmap = cv2.imencode(".bmp", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))[1].tobytes()
        data, width, height, _, _, error = self._resizer(io.BytesIO(bitmap))
        if error is not None:
            raise ImageRejected("undecodable", f"img2dataset: {error}")
        return Stored(data, width, height)

    def write(self, image: bytes | None, key: str, caption: None, meta: Mapping[str, Any]) -> None:
        """Take a row with its status, in the place of img2dataset's writer, and let go of its body."""
        url, message = meta["url"], str(meta["error_message"])
        reason, _, detail = message.partition(": ")  # as in the text of a FetchError
        if meta["status"] != "failed_to_download":  # success, failed_to_resize
            self.outcomes[url] = self._prepared
        elif reason in REASONS["download"] and url not in self._faults:
            self.outcomes[url] = Outcome({}, drop=Drop(reason, detail[:300]))
        else:
            fault = self._faults.get(url) or Fault("", "download", message)
            self.outcomes[url] = Outcome({}, drop=fault.drop, fault=fault)
        if stack := self._held.pop(url, None):
            asyncio.run_coroutine_threadsafe(stack.aclose(), self._loop)

    def close(self) -> None:
        """End the shard, as a writer does."""
