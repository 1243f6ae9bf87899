"""Stream the samples of tars with webdataset: of files, URLs and commands, whether or not one can go back in them."""

import logging
import random
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, Final

import webdataset
from torch.utils.data import get_worker_info
from webdataset.compat import FluidInterface
from webdataset.shardlists import split_by_worker
from webdataset.tariterators import base_plus_ext, group_by_keys, tar_file_iterator
from webdataset.utils import pytorch_worker_info

from hypergrit_common.errors import UserError
from hypergrit_common.locations import PIPE, Locations, expand_braces, split_locations
from hypergrit_common.remote import one_line, open_file, open_store, store_errors
from hypergrit_common.samples import MAX_SAMPLE_BYTES
from hypergrit_common.shards import list_shards
from hypergrit_common.tar import BLOCK, TarError
from hypergrit_common.text import counted
from hypergrit_common.urls import without_secrets

logger = logging.getLogger(__name__)

CHUNK: Final = 1 << 20
WEB: Final = ("http://", "https://")


def list_streams(shards: Locations) -> list[str]:
    """List shards as `list_shards` does; commands (`pipe:`) and web addresses are taken as they are."""
    found: list[str] = []
    for location in (pattern for item in split_locations(shards) for pattern in expand_braces(item)):
        found += [location] if location.startswith((PIPE, *WEB)) else list_shards((location,))
    if not found:
        raise UserError("no shards given; give a folder or glob of *.tar, URLs, or pipe:COMMAND")
    return list(dict.fromkeys(found))


def shard_name(url: str) -> str:
    """Return the name of a shard for logs, without passwords; a command may hold them anywhere after its program."""
    return f"{url.split(maxsplit=1)[0]} ..." if url.startswith(PIPE) else without_secrets(url, strip_query=True)


@contextmanager
def open_stream(url: str) -> Iterator[IO[bytes]]:
    """Open a file, a URL or the output of a command, to be read once from its beginning. Raises one of `store_errors`."""
    if url.startswith(PIPE):  # if it fails, the tar has no end
        with subprocess.Popen(url.removeprefix(PIPE), shell=True, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            yield process.stdout
        return
    fs, path = open_store(url)  # block_size=0: the server need not send parts of files
    with fs.open(path, "rb", block_size=0) if url.startswith(WEB) else open_file(url) as file:
        yield file


class WholeTar:
    """A tar that is read once, to its end: tarfile takes one that is cut for a whole one, and reads files of any size."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.n_read, self.most, self.last, self.name = file, 0, MAX_SAMPLE_BYTES, b"", ""

    def read(self, size: int) -> bytes:
        data = self.file.read(size)
        self.n_read += len(data)
        self.last = (self.last + data)[-BLOCK:]
        if self.n_read > self.most:
            raise TarError(f"a file has more than {MAX_SAMPLE_BYTES} bytes")
        return data

    def files(self) -> Iterator[dict[str, Any]]:
        """Yield names and contents. Raises TarError, and those of tarfile, after the last whole file of a damaged tar."""
        yield from tar_file_iterator(self, select_files=self._begin)
        is_whole = not any(self.last)
        while is_whole and (padding := self.read(CHUNK)):
            is_whole = padding.count(0) == len(padding)
        if not is_whole:
            raise TarError(f"no end of the archive after {self.name}: the tar is cut, has a hole, or is compressed")

    def _begin(self, name: str) -> bool:
        """Take note of the file that is read next; if it is damaged, so is its sample."""
        self.name, self.most = name, self.n_read + MAX_SAMPLE_BYTES
        return True

    def __str__(self) -> str:  # in tarfile's errors, as webdataset words them
        return f"byte {self.n_read}"


class SampleStream(webdataset.DataPipeline, FluidInterface):
    """A webdataset pipeline of samples: `__key__`, `__url__`, and the bytes of each file under its extension.

    Each loader process of each rank has its own shards, shuffles them and, encoded, `shuffle` samples, in another order in
    each pass. It leaves out damaged shards from the damage on, logs and counts them.

    Attributes:
        damaged: shards that this process found damaged, with the damage.
    """

    def __init__(
        self,
        shards: Locations,
        *,
        shuffle: int,
        seed: int | str,
        max_bad_share: float,
        ranks: tuple[int, int] | None = None,
    ) -> None:
        """Create the stream for rank `ranks[0]` of `ranks[1]`, by default those of torch.distributed or torchrun."""
        self.rng, self.is_shuffled, self.seed = random.Random(), shuffle > 0, seed
        mixed = [webdataset.shuffle(shuffle, initial=shuffle, rng=self.rng)] if shuffle else []
        super().__init__(self._shards, self._files, partial(group_by_keys, handler=self._is_damaged), mixed)
        self.urls, self.max_bad_share = list_streams(shards), max_bad_share
        self.ranks = ranks or pytorch_worker_info()[:2]  # asked here, since a loader process knows no group
        self.damaged: dict[str, str] = {}
        self.n_passes = 0

    def _shards(self) -> Iterator[str]:
        """Yield the shards of this process in the order of a pass. Raises UserError if it has none."""
        (rank, n_ranks), worker = self.ranks, get_worker_info()
        self.mine = list(split_by_worker(self.urls[rank::n_ranks]))
        if not self.mine:
            raise UserError(
                f"{counted(len(self.urls), 'shard')} cannot be divided among {n_ranks * (worker.num_workers if worker else 1)} "
                "loader processes; use fewer processes, or more shards"
            )
        if self.is_shuffled:  # torch gives its loader processes new seeds in each epoch
            self.rng.seed(f"{self.seed}:{rank}:{worker and worker.seed}:{self.n_passes}")
            self.rng.shuffle(self.mine)
        self.n_passes += 1
        yield from self.mine

    def _files(self, shards: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield the files of shards, and a mark after each shard, as webdataset's `tar_file_expander` does."""
        for self.url in shards:
            tar = None
            try:
                with open_stream(self.url) as stream:
                    tar = WholeTar(stream)
                    for file in tar.files():
                        yield file | {"__url__": self.url}
            except store_errors(UserError, TarError, tarfile.TarError, ValueError) as error:
                self._is_damaged(error)
                if tar is not None:  # group_by_keys leaves out what is marked in this way
                    yield {"fname": f"{base_plus_ext(tar.name)[0]}.__bad__", "data": True, "__url__": self.url}
            yield {}

    def _is_damaged(self, error: Exception) -> bool:
        """Count and log the damage of a shard, and go on. Raises UserError for too many damaged shards."""
        name, problem = shard_name(self.url), error.args[0] if isinstance(error, ValueError) else one_line(error)
        if self.url not in self.damaged:
            logger.warning("%s is read up to a damage: %s", name, problem)
        self.damaged[self.url] = problem
        if len(self.damaged) > self.max_bad_share * len(self.mine):
            raise UserError(
                f"{len(self.damaged)} of the {len(self.mine)} shards of this process are damaged, more than a share of "
                f"{self.max_bad_share}, among them {name}: {problem}; create or download them again"
            ) from error
        return True
