"""Stream the samples of tars with webdataset: of files, URLs and commands, whether or not one can go back in them.

Tars are parsed by `hypergrit_common.tar`, since tarfile takes a tar that is cut for a whole one.
"""

import logging
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count, islice
from typing import IO, Any, Final, NamedTuple

import torch
import webdataset
from torch.utils.data import get_worker_info
from webdataset.compat import FluidInterface
from webdataset.utils import pytorch_worker_info

from hypergrit_common.errors import UserError
from hypergrit_common.locations import NOT_SAVED, PIPE, Locations, expand_braces, split_locations
from hypergrit_common.remote import one_line, open_file, open_store, store_errors
from hypergrit_common.samples import MAX_SAMPLE_BYTES, MEMBER, BadSample, is_logged, too_many_bad
from hypergrit_common.shards import GLOB, list_shards
from hypergrit_common.tar import MAX_SIZE, TarError, iter_members, round_up_to_block
from hypergrit_common.text import counted
from hypergrit_common.urls import without_secrets

logger = logging.getLogger(__name__)

CHUNK: Final = 1 << 20
ENDED_EARLY: Final = (0, -signal.SIGPIPE, 128 + signal.SIGPIPE)
"""Codes of a command whose output was read, the last two of one whose output was not read to its end."""


class Streamed(NamedTuple):
    """A sample as it comes: the bytes of its members in the tar, none if they are more than MAX_SAMPLE_BYTES."""

    shard: str
    key: str
    data: bytes


def list_streams(shards: Locations) -> list[str]:
    """List shards as `list_shards` does; commands (`pipe:`) and web addresses of one file are taken as they are."""
    found: list[str] = []
    for location in (pattern for item in split_locations(shards) for pattern in expand_braces(item)):
        is_file = location.startswith(("http://", "https://")) and not any(mark in location for mark in GLOB)
        found += [location] if is_file or location.startswith(PIPE) else list_shards((location,))
    if NOT_SAVED in found:
        raise UserError("the command that gives the shards is never saved; give it on the command line")
    if not found:
        raise UserError("no shards given; give a folder or glob of *.tar, URLs, or pipe:COMMAND")
    return list(dict.fromkeys(found))


@contextmanager
def open_stream(url: str) -> Iterator[IO[bytes]]:
    """Open a file, a URL or the output of a command, to be read once from its beginning. Raises one of `store_errors`."""
    if not url.startswith(PIPE):
        is_web = url.startswith(("http://", "https://"))
        fs, path = open_store(url)  # block_size=0: the server need not send parts of files
        with fs.open(path, "rb", block_size=0) if is_web else open_file(url) as file:
            yield file
        return
    with subprocess.Popen(url.removeprefix(PIPE), shell=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        damage = None
        try:
            yield process.stdout
        except TarError as error:
            damage = error
        finally:
            process.stdout.close()
            code = process.wait()
        if code not in ENDED_EARLY:
            raise OSError(f"the command ended with exit code {code}") from damage
        if damage is not None:
            raise damage


class Tape:
    """Reads a stream forward, for `iter_members`, and keeps what has come from `first` on."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.first, self.kept = file, 0, bytearray()

    @property
    def end(self) -> int:
        return self.first + len(self.kept)

    def read_at(self, offset: int, length: int) -> bytes:
        if offset - self.first > MAX_SAMPLE_BYTES:
            self.forget(offset)
        while self.end < offset + length and (block := self.file.read(min(offset + length - self.end, CHUNK))):
            self.kept += block
        return bytes(self.kept[offset - self.first : offset - self.first + length])

    def forget(self, offset: int) -> None:
        """Keep nothing before `offset`, and read up to it."""
        while self.end < offset:
            block = self.file.read(min(offset - self.end, CHUNK))
            self.first, self.kept = self.end + len(block), bytearray()
            if not block:
                return
        del self.kept[: offset - self.first]
        self.first = offset

    def cut(self, start: int, end: int) -> bytes:
        """Return the bytes [start, end) and forget them; none if they were too many to be kept."""
        data = bytes(self.kept[start - self.first : end - self.first]) if start >= self.first else b""
        self.forget(min(end, self.end))
        return data


def iter_samples(url: str, shard: str) -> Iterator[Streamed]:
    """Yield the samples of a tar, called `shard`.

    Raises TarError after the last whole one of a damaged tar, and one of `store_errors`.
    """
    with open_stream(url) as file:
        tape, key, start, end = Tape(file), "", 0, 0
        try:
            for member in iter_members(tape.read_at, 0, MAX_SIZE, needs_mark=True):
                match = MEMBER.fullmatch(member.name)
                if match is None:
                    continue
                if match[1] != key:
                    if key:
                        yield Streamed(shard, key, tape.cut(start, end))
                    key, start = match[1], member.header_offset
                end = member.data_offset + round_up_to_block(member.size)
        except TarError:
            if key and tape.end >= end:
                yield Streamed(shard, key, tape.cut(start, end))
            raise
        if key:
            yield Streamed(shard, key, tape.cut(start, end))


class SampleStream(webdataset.DataPipeline, FluidInterface):
    """A webdataset pipeline of `read(sample)` for each sample, of which every loader process of every rank has its part.

    Without `read`, the samples are those of the tars, whatever they hold.

    Shards are shuffled by seed and epoch, equally in all processes, and then divided among them; if there are fewer than
    processes, each process reads all and takes every n-th sample. `shuffle` samples wait in a buffer, before they are
    decoded. Bad samples and damaged shards are left out, logged and counted.

    Attributes:
        counts: samples and bad samples ("bad/REASON") of this process.
        damaged: shards that this process found damaged, in their order.
    """

    def __init__(
        self,
        shards: Locations,
        read: Callable[[Streamed], Any] | None,
        *,
        shuffle: int,
        seed: int | str = 0,
        samples: int | None = None,
        repeat: bool = False,
        max_bad_share: float = 0.1,
        ranks: tuple[int, int] | None = None,
    ) -> None:
        """Create the stream for rank `ranks[0]` of `ranks[1]`, by default those of torch.distributed or torchrun."""
        super().__init__(self._samples, *([self._read, self._limited] if read else []))
        self.urls = list_streams(shards)
        self.read, self.buffer, self.seed, self.max_bad_share = read, shuffle, seed, max_bad_share
        self.samples, self.is_repeated = samples, repeat or samples is not None
        # A loader process knows no group: its parent asks.
        self.ranks = ranks or pytorch_worker_info()[:2]
        self.counts: Counter[str] = Counter()
        self.damaged: dict[str, str] = {}  # name -> damage
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # the same in the loader processes

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration begins with, as of torch's DistributedSampler."""
        self._epoch.fill_(epoch)

    @property
    def place(self) -> tuple[int, int]:
        """The number of this process among all loader processes of all ranks, and their number."""
        info = get_worker_info()
        worker, n_workers = (info.id, info.num_workers) if info else (0, 1)
        return self.ranks[0] * n_workers + worker, self.ranks[1] * n_workers

    def name(self, number: int) -> str:
        """Return the name of a shard for logs, without passwords; a command may hold them anywhere."""
        url = self.urls[number]
        if not url.startswith(PIPE):
            return without_secrets(url, strip_query=True)
        return f"{PIPE}{url.removeprefix(PIPE).split()[0]} ({number + 1} of {len(self.urls)})"

    def _samples(self) -> Iterator[Streamed]:
        """Yield this process's samples of one epoch, or of all from that on."""
        place, n = self.place
        is_split_by_shard = len(self.urls) >= n
        if not is_split_by_shard and not place:
            logger.warning(
                "%s for %d loader processes: each reads all of them and takes every %d-th sample",
                counted(len(self.urls), "shard"),
                n,
                n,
            )
        first = int(self._epoch)
        for epoch in count(first) if self.is_repeated else (first,):
            numbers = list(range(len(self.urls)))
            if self.buffer:
                random.Random(f"{self.seed}:{epoch}").shuffle(numbers)  # a text, whose hash is the same everywhere
            mine = numbers[place::n] if is_split_by_shard else numbers
            found = (sample for number in mine for sample in self._of_shard(number))
            part = found if is_split_by_shard else islice(found, place, None, n)
            n_found = 0
            for sample in self._shuffled(part, f"{self.seed}:{epoch}:{place}"):
                n_found += 1
                yield sample
            if self.is_repeated and not n_found:
                raise UserError(
                    f"{self.name(mine[0])} and the other shards of this process gave no sample; {self._why()}"
                )

    def _shuffled(self, samples: Iterator[Streamed], seed: str) -> Iterator[Streamed]:
        """Shuffle the samples of an epoch; none comes again before all have come."""
        if not self.buffer:
            return samples
        shuffle = webdataset.shuffle(self.buffer, initial=self.buffer, rng=random.Random(seed))
        return iter(shuffle(samples))

    def _why(self) -> str:
        return next(iter(self.damaged.values()), "they have fewer samples than there are loader processes")

    def _of_shard(self, number: int) -> Iterator[Streamed]:
        """Yield the samples of a shard up to the first damage. Raises UserError for too many damaged shards."""
        name = self.name(number)
        try:
            yield from iter_samples(self.urls[number], name)
        except store_errors(UserError, TarError, ValueError) as error:
            if name not in self.damaged:
                logger.warning("%s is read up to a damage: %s", name, one_line(error))
            self.damaged[name] = one_line(error)
            n = max(len(self.urls) // self.place[1], 1)
            if len(self.damaged) > self.max_bad_share * n:
                raise UserError(
                    f"{len(self.damaged)} of the {n} shards of this process are damaged, more than a share of "
                    f"{self.max_bad_share}, among them {name}: {one_line(error)}; create or download them again"
                ) from error

    def _read(self, samples: Iterable[Streamed]) -> Iterator[Any]:
        for sample in samples:
            self.counts["samples"] += 1
            try:
                if not sample.data:
                    raise BadSample("too_large", f"the sample has more than {MAX_SAMPLE_BYTES} bytes")
                assert self.read is not None
                found = self.read(sample)
            except BadSample as bad:
                self.counts[f"bad/{bad.reason}"] += 1
                n_bad = sum(n for name, n in self.counts.items() if name.startswith("bad/"))
                if is_logged(n_bad):
                    logger.warning("bad sample %d, left out: %s: %s: %s", n_bad, sample.shard, sample.key, bad)
                limit = f"max_bad_share={self.max_bad_share}"
                if problem := too_many_bad(self.counts, self.counts["samples"], limit)[0]:
                    raise UserError(f"{problem}; fix or remove the shards that the log names") from bad
                continue
            yield found

    def _limited(self, found: Iterator[Any]) -> Iterator[Any]:
        """Yield this process's part of `samples`, so that every rank has equally many; without a limit, all."""
        if self.samples is None:
            return found
        info = get_worker_info()
        worker, n_workers = (info.id, info.num_workers) if info else (0, 1)
        return islice(found, self.samples // n_workers + (worker < self.samples % n_workers))
