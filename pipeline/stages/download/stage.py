"""Stage `download`: concurrent requests on one event loop, decoding in threads, rows in their original order."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import pyarrow as pa
from yarl import URL

from hypergrit_common.errors import is_machine_error
from pipeline.faults import Fault, describe, format_traceback
from pipeline.stages.download.addresses import FetchError, parse_url
from pipeline.stages.download.client import Client, Worker
from pipeline.stages.download.config import DownloadConfig
from pipeline.stages.download.fetch import Deadline, Request
from pipeline.stages.download.hosts import TRIALS
from pipeline.stages.download.img2dataset_shard import Img2datasetShard
from pipeline.stages.download.permits import PermitAddress, PermitsError
from pipeline.stages.download.prepare import Outcome, prepare_image
from pipeline.stages.stage import Context, Stage, TableFunction
from schemas.rows import DOWNLOADED
from schemas.status import REASONS
from schemas.table import Drop, add_columns, drop_rows, kept_indices, set_column

UNANSWERED: Final = ("timeout", "dns_error", "connection_error")
"""Drop reasons of rows without a complete answer: their hosts, or the network of this machine, failed."""
REFUSED: Final = ("invalid_url", "private_address")
"""Drop reasons of rows for which no host is asked."""
POPULAR: Final = 16
"""Number of rows in a table above which a host is tried with several rows at once."""
PATIENCE_S: Final = 10.0
PAUSE_S: Final = 0.2
"""Pause before an image is decoded again if this machine lacked files, memory or threads, for at most PATIENCE_S."""


class Download(Stage):
    """Fetch, verify, resize and encode images. Takes a READ table and returns a DOWNLOADED table.

    Nothing is fetched for rows that already have an image (tars). A row is dropped if its image cannot be fetched or
    decoded, exceeds a limit of the configuration, or repeats image and caption of an earlier row (`duplicate`).
    schemas.status.REASONS lists the reasons.

    An object keeps its connections, host names and dead hosts from one table to the next. The first table raises the
    soft limit for open files.

    Args:
        config: settings.
        permits: address of a PermitServer, by which all workers of a job together keep to `concurrency_per_host`; None:
            each keeps to it alone.

    Raises:
        PermitsError: in a call, the server cannot be reached.
        OSError: in a call, the machine lacks open files, memory, threads or disk space, or its proxy does not answer.

    >>> import numpy as np
    >>> import pyarrow as pa
    >>> from pipeline import Download, DownloadConfig
    >>> from pipeline.images import encode_jpeg
    >>> from schemas.rows import READ
    >>> image = encode_jpeg(np.zeros((512, 768, 3), np.uint8))
    >>> row = {"key": "000000000000", "source": "a.tar", "source_row": 0, "status": "kept", "image": image}
    >>> table = Download(DownloadConfig())(pa.Table.from_pylist([row], schema=READ))
    >>> table.select(["width", "height", "original_width", "original_height"]).to_pylist()
    [{'width': 384, 'height': 256, 'original_width': 768, 'original_height': 512}]
    """

    name, schema, reasons = "download", DOWNLOADED, REASONS["download"]
    Config = DownloadConfig

    def __init__(self, config: DownloadConfig, permits: PermitAddress | None = None) -> None:
        super().__init__(config)
        self._worker = Worker(config, permits)

    @classmethod
    def load(cls, context: Context) -> TableFunction:
        """Load the stage for the parts of a shard, in which duplicates are found later (`drop_duplicates`)."""
        return cls(context.settings[cls.name], context.permits).isolate

    def __call__(self, table: pa.Table) -> pa.Table:
        return drop_duplicates(self.prepare(table))

    def prepare(self, table: pa.Table) -> pa.Table:
        """Fetch, verify, resize and encode images, without looking for duplicates.

        Args:
            table: a READ table, of a shard or a part of it.

        Returns:
            The DOWNLOADED table.
        """
        return self.isolate(table)[0]

    def isolate(self, table: pa.Table) -> tuple[pa.Table, list[Fault]]:
        """Fetch, verify, resize and encode images; drop the rows on which the stage raised as `internal_error`.

        A search for them (`run_isolated`) would fetch all rows again.

        Args:
            table: a READ table, of a shard or a part of it.

        Returns:
            The table of `prepare`, and the rows on which the stage raised.
        """
        kept = kept_indices(table)
        keys, urls, images = (table[name].to_pylist() for name in ("key", "url", "image"))
        rows = [(keys[i], urls[i], images[i]) for i in kept]
        found = self._worker.run(lambda client: self._prepare_all(rows, client))
        outcomes = dict(zip(kept, found, strict=True))
        drops = {i: outcome.drop for i, outcome in outcomes.items() if outcome.drop is not None}
        table = add_columns(table, DOWNLOADED, {i: outcome.fields for i, outcome in outcomes.items()})
        stored = [outcomes[i].image if i in outcomes else None for i in range(table.num_rows)]
        table = drop_rows(set_column(table, "image", pa.array(stored, pa.binary())), "download", drops)
        n_asked, n_unanswered = count_answers(table)
        if 2 * n_unanswered > n_asked:
            self.close()  # so that an outage of this machine's network is not remembered as dead hosts and names
        faults = ((key, outcome.fault) for (key, *_), outcome in zip(rows, found, strict=True))
        return table, [replace(fault, key=key) for key, fault in faults if fault is not None]

    def close(self) -> None:
        """Close all connections; the next table opens new ones."""
        self._worker.close()

    async def _prepare_all(self, rows: Sequence[tuple[str, str | None, bytes | None]], client: Client) -> list[Outcome]:
        """The outcomes of `rows` (key, URL, image bytes or None), in their order."""
        client.hosts.forget()
        requests: list[Request | bytes | Outcome | Exception] = [
            parse_request(url or "", self.config) if image is None else image for _, url, image in rows
        ]
        places = [request.url if isinstance(request, Request) else i for i, request in enumerate(requests)]
        if self.config.client == "img2dataset":
            ordered = [requests[i] for i in by_host(requests)]
            asked = {str(request.url): request for request in ordered if isinstance(request, Request)}
            found = await Img2datasetShard(client, self.config, asked).run() if asked else {}
            requests = [found[str(request.url)] if isinstance(request, Request) else request for request in requests]
        workers = ThreadPoolExecutor(self.config.decode_threads, thread_name_prefix="decode")
        with workers as pool:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks: dict[URL | int, asyncio.Task[Outcome]] = {}
                    for i in by_host(requests):
                        if places[i] not in tasks:  # rows with the same URL share a request
                            row = self._row(rows[i][0], requests[i], client, pool)
                            tasks[places[i]] = group.create_task(row)
            except ExceptionGroup as errors:  # PermitsError or a lack on this machine, which the rows share
                raise errors.exceptions[0] from None
        return [tasks[place].result() for place in places]

    async def _row(
        self, key: str, request: Request | bytes | Outcome | Exception, client: Client, pool: ThreadPoolExecutor
    ) -> Outcome:
        """The outcome of one row, whatever happens to it."""
        try:
            if isinstance(request, Outcome):
                return request
            if isinstance(request, Exception):
                raise request
            if isinstance(request, bytes):
                return await self._prepare(request, pool)
            async with client.body(request) as body:
                return await self._prepare(body, pool)
        except FetchError as error:
            return Outcome({}, drop=error.drop)
        except PermitsError:
            raise
        except Exception as error:
            if is_machine_error(error):
                raise
            fault = Fault(key, "download", describe(error), format_traceback(error))
            return Outcome({}, drop=fault.drop, fault=fault)

    async def _prepare(self, data: bytes, pool: ThreadPoolExecutor) -> Outcome:
        """Prepare an image in a thread; on the event loop, all connections would wait meanwhile.

        A lack on this machine usually ends when other images are done.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + PATIENCE_S
        while True:
            try:
                return await loop.run_in_executor(pool, prepare_image, data, self.config)
            except (OSError, MemoryError, RuntimeError) as error:  # RuntimeError: no thread
                is_lack = is_machine_error(error) or isinstance(error, MemoryError)
                if not is_lack or loop.time() >= end_s:
                    raise
            await asyncio.sleep(PAUSE_S)


def parse_request(url: str, config: DownloadConfig) -> Request | FetchError:
    """The first request of a row, or the error in its URL."""
    try:
        return Request(parse_url(url), Deadline(config.deadline_s))
    except FetchError as error:
        return error


def by_host(requests: Sequence[Request | bytes | Outcome | Exception]) -> list[int]:
    """The order in which to start: the first row of each host, the second of each, and so on.

    The first rows find out early which hosts are slow or dead, and the rows of one host are spread over time. Hosts
    with POPULAR rows begin with as many rows as it takes to find out.
    """
    hosts = [(request.host, request.port) if isinstance(request, Request) else None for request in requests]
    totals, seen = Counter(hosts), Counter[tuple[str, int] | None]()
    ranks = []
    for host in hosts:
        is_trial = host is None or (totals[host] >= POPULAR and seen[host] < TRIALS)
        ranks.append(0 if is_trial else seen[host])
        seen[host] += 1
    return sorted(range(len(requests)), key=ranks.__getitem__)


def drop_duplicates(table: pa.Table) -> pa.Table:
    """Drop the rows of a table that repeat image bytes and caption of an earlier row.

    Args:
        table: a DOWNLOADED table of a whole shard. Images are compared by `sha256`, captions by `caption_original`.

    Returns:
        The table with `duplicate` rows, whose detail is the key of the earlier row.
    """
    hashes, captions, keys = (table[name].to_pylist() for name in ("sha256", "caption_original", "key"))
    first: dict[tuple[str, str | None], str] = {}
    drops: dict[int, Drop] = {}
    for i in kept_indices(table):
        if hashes[i] is None:
            continue
        content = (hashes[i], captions[i])
        if content in first:
            drops[i] = Drop("duplicate", first[content])
        else:
            first[content] = keys[i]
    return drop_rows(table, "download", drops)


def count_answers(table: pa.Table) -> tuple[int, int]:
    """Count the rows that could get an answer, and those of them that got none.

    Args:
        table: a DOWNLOADED table.

    Returns:
        The number of rows that reached the stage, without those dropped for one of REFUSED; of those dropped for one of
        UNANSWERED.
    """
    rows = zip(table["stage"].to_pylist(), table["reason"].to_pylist(), strict=True)
    reasons = Counter(reason for stage, reason in rows if stage in (None, "download"))
    n_refused, n_unanswered = (sum(reasons[reason] for reason in group) for group in (REFUSED, UNANSWERED))
    return reasons.total() - n_refused, n_unanswered


def silent_host(table: pa.Table) -> str:
    """Find the host of the rows that got no answer.

    Args:
        table: a DOWNLOADED table.

    Returns:
        The host of all rows dropped for one of UNANSWERED; "" if there are none, or several hosts.
    """
    rows = zip(*(table[name].to_pylist() for name in ("stage", "reason", "url")), strict=True)
    urls = [url for stage, reason, url in rows if stage == "download" and reason in UNANSWERED]
    hosts = {parse_url(url).raw_host or "" for url in urls}
    return hosts.pop() if len(hosts) == 1 else ""
