"""The shard loop and the resizer of img2dataset, with bodies and pixels from this stage (`download.client`)."""

import asyncio
import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import FunctionType
from typing import Any

import cv2
import pyarrow as pa

from hypergrit_common.errors import is_machine_error
from hypergrit_common.images import Image, ImageRejected
from pipeline.images import ResizeConfig
from pipeline.stages.download.client import Client
from pipeline.stages.download.config import DownloadConfig
from pipeline.stages.download.fetch import Request
from pipeline.stages.download.permits import PermitsError
from pipeline.stages.download.prepare import Outcome, Stored, prepare_image


def with_names(function: Any, **names: Any) -> Callable[..., Any]:
    """Return a function that finds other values under some global names, which stay as they are for everyone else."""
    if unknown := names.keys() - function.__globals__.keys():  # else this version would ask hosts by itself
        raise AttributeError(f"{function.__module__} of this version of img2dataset has no {', '.join(unknown)}")
    return FunctionType(function.__code__, function.__globals__ | names, argdefs=function.__defaults__)


class Body(io.BytesIO):
    """The body of a URL, whose bytes count in the budget until `context` ends."""

    def __init__(self, url: str, data: bytes, context: contextlib.AbstractAsyncContextManager[bytes]) -> None:
        super().__init__(data)
        self.url, self.context = url, context


class Img2datasetShard:
    """Runs the URLs of a table through img2dataset's Downloader and Resizer; it is the opener and the writer of that loop.

    The opener is `client.body`: addresses, redirects, bytes, retries, robots.txt and the limits per host are ours. The
    resizer gets images that were decoded under our limits.
    """

    def __init__(self, client: Client, config: DownloadConfig, requests: Mapping[str, Request]) -> None:
        self.client, self.config, self.requests = client, config, requests
        self.outcomes: dict[str, Outcome | Exception] = {}
        self._failed: dict[str, Exception] = {}
        self._prepared: Outcome | Exception = Outcome({})  # of the body that the loop handed on last
        self._loop = asyncio.get_running_loop()
        self._waiting: set[Future[Any]] = set()
        self._is_stopped = False

    async def run(self) -> dict[str, Outcome | Exception]:
        """Return the outcome of each URL, or what was raised."""
        loop = asyncio.ensure_future(asyncio.to_thread(self._download))
        try:
            await asyncio.shield(loop)
        finally:
            self._stop()
            await asyncio.wait([loop])
        missing = RuntimeError("img2dataset returned no row for the URL")
        return {url: self.outcomes.get(url, missing) for url in self.requests}

    def _download(self) -> None:
        """Run the loop, in a thread beside the event loop."""
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # its import would look for updates online
        from img2dataset.downloader import Downloader
        from img2dataset.resizer import Resizer

        mode, size = self.config.resize.mode, self.config.resize.size
        self._resizer = Resizer(size, "no" if mode == "none" else mode, resize_only_if_bigger=mode != "border")
        # As it is, it would silence the log of the whole process.
        self._resize = with_names(Resizer.__call__, SuppressStdoutStderr=contextlib.nullcontext)
        with tempfile.TemporaryDirectory() as folder:
            path, table = str(Path(folder, "shard.arrow")), pa.table({"url": list(self.requests)})
            with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
            downloader = Downloader(
                sample_writer_class=lambda *_: self,
                resizer=self.resize,
                thread_count=self.config.concurrency,
                save_caption=False,
                extract_exif=False,
                output_folder=folder,
                column_list=["url"],
                timeout=None,  # `client.body` keeps the limits of time, makes the retries and obeys the headers
                number_sample_per_shard=table.num_rows,
                oom_shard_count=5,
                compute_hash=None,
                verify_hash_type=None,
                encode_format="jpg",
                retries=None,
                user_agent_token=None,
                disallowed_header_directives=None,
            )
            with_names(Downloader.download_shard, download_image_with_retry=self.fetch)(downloader, (0, path))

    def fetch(self, row: tuple[int, str], **_: None) -> tuple[int, Body | None, str | None]:
        """Fetch a body, in a thread of the loop."""
        number, url = row
        context = self.client.body(self.requests[url])
        try:
            return number, Body(url, self._await(context.__aenter__()), context), None
        except Exception as error:
            self._failed[url] = self._raised(error)
            return number, None, str(error)

    def _await(self, step: Coroutine[Any, Any, bytes]) -> bytes:
        future = asyncio.run_coroutine_threadsafe(step, self._loop)
        self._waiting.add(future)
        if self._is_stopped:
            future.cancel()
        try:
            return future.result()
        finally:
            self._waiting.discard(future)

    def _raised(self, error: Exception) -> Exception:
        """Return an exception; a lack on this machine ends the shard."""
        if isinstance(error, PermitsError) or is_machine_error(error):
            self._loop.call_soon_threadsafe(self._stop)
        return error

    def _stop(self) -> None:
        """Let all rows that are not done fail at once."""
        self._is_stopped = True
        for future in tuple(self._waiting):
            future.cancel()

    def resize(self, body: Body, _: None) -> tuple[bytes | None, int, int, int, int, str | None]:
        """Prepare an image in the place of a Resizer, which stores it, and let go of its body."""
        image, problem = None, None
        try:
            self._prepared = outcome = prepare_image(body.getvalue(), self.config, self._store)
            image, problem = outcome.image, outcome.drop.reason if outcome.drop else None
        except Exception as error:
            self._prepared, problem = self._raised(error), str(error)
        asyncio.run_coroutine_threadsafe(body.context.__aexit__(None, None, None), self._loop)
        return image, 0, 0, 0, 0, problem

    def _store(self, pixels: Image, config: ResizeConfig) -> Stored:
        """Resize and encode an image with the Resizer. Raises ImageRejected if it cannot."""
        bitmap = cv2.imencode(".bmp", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))[1].tobytes()
        data, width, height, _, _, error = self._resize(self._resizer, io.BytesIO(bitmap))
        if error is not None:
            raise ImageRejected("undecodable", f"img2dataset: {error}")
        return data, width, height

    def write(self, image: bytes | None, key: str, caption: None, meta: Mapping[str, Any]) -> None:
        """Take a row with its status, in the place of img2dataset's writer."""
        url = meta["url"]
        is_fetched = meta["status"] in ("success", "failed_to_resize")  # else failed_to_download
        self.outcomes[url] = self._prepared if is_fetched else self._failed[url]

    def close(self) -> None:
        """End the shard, as a writer does."""
