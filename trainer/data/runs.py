"""Read samples in runs: one request for a sample and those after it in its shard that this process needs soon."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hypergrit_common.samples import MAX_SAMPLE_BYTES
from hypergrit_common.tar import BLOCK
from trainer.data.index import SampleIndex, ShardIndex
from trainer.data.order import BlockOrder, Order
from trainer.data.shards import ByteRange, ByteRangeReader

MAX_KEPT_BYTES: Final = 512 << 20
"""Bytes of samples that a process keeps for its next batches."""
MAX_PART_BYTES: Final = 64 << 20
"""Bytes of samples that are read together."""
MIN_USED: Final = 0.5
"""Smallest share of the bytes of a run that belongs to needed members; with less, samples are read one by one."""


@dataclass
class RunReader:
    """Reads samples by number, up to `length` of them with one request. Can be pickled."""

    index: SampleIndex
    length: int = 1
    files: ByteRangeReader = field(init=False)
    kept: OrderedDict[int, bytes] = field(default_factory=OrderedDict)  # sample -> bytes, the oldest first
    n_kept_bytes: int = 0
    n_requests: int = 0

    def __post_init__(self) -> None:
        self.files = ByteRangeReader(self.index.stored)

    def read_parts(self, samples: Sequence[int], ahead: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of samples like `read`, which is called for at most `MAX_PART_BYTES` at a time."""
        first = n_bytes = 0
        for place, sample in enumerate(samples):
            size = self.index.n_bytes(sample)
            if place > first and n_bytes + size > MAX_PART_BYTES:
                yield from self.read(samples[first:place], ahead[first:place])
                first, n_bytes = place, 0
            n_bytes += size
        yield from self.read(samples[first:], ahead[first:])

    def read(self, samples: Sequence[int], ahead: Sequence[int] | None = None) -> list[bytes]:
        """Return the bytes of samples; the next `ahead[i]` samples after `samples[i]` are needed later.

        A sample of more than `MAX_SAMPLE_BYTES` is returned as b"" and not read. Raises UserError if a shard cannot be
        read or has changed.
        """
        found = {sample: self._take(sample) for sample in samples if sample in self.kept}
        found |= {sample: b"" for sample in samples if self.index.n_bytes(sample) > MAX_SAMPLE_BYTES}
        wanted = zip(samples, [0] * len(samples) if ahead is None else ahead, strict=True)
        missing = [(sample, n) for sample, n in wanted if sample not in found]
        runs = [self._run(sample, n) for sample, n in missing]
        self.n_requests += len(runs)
        contents = self.files.read([byte_range for _, _, _, byte_range in runs])
        for (sample, _), (shard, row, last, byte_range), content in zip(missing, runs, contents, strict=True):
            for other in range(row, last + 1):
                _, start, end = shard.byte_range(other)
                part = content[start - byte_range.start : end - byte_range.start] if last > row else content
                if other == row:
                    found[sample] = part
                else:
                    self._keep(sample + other - row, part)
        return [found[sample] for sample in samples]

    def _run(self, sample: int, ahead: int) -> tuple[ShardIndex, int, int, ByteRange]:
        """The shard of a sample, the first and the last row of its run, and their byte range."""
        shard, row = self.index.locate(sample)
        last = row + min(ahead, self.length - 1, len(shard) - 1 - row)
        byte_range = shard.byte_range(row, last)
        used = int(shard.sizes[row : last + 1].sum(dtype=np.int64))
        n_bytes = byte_range.end - byte_range.start
        if used < MIN_USED * n_bytes or n_bytes > MAX_PART_BYTES:
            last, byte_range = row, shard.byte_range(row)
        return shard, row, last, byte_range

    def _take(self, sample: int) -> bytes:
        data = self.kept.pop(sample)
        self.n_kept_bytes -= len(data)
        return data

    def _keep(self, sample: int, data: bytes) -> None:
        if sample in self.kept:
            self._take(sample)
        self.kept[sample] = data
        self.n_kept_bytes += len(data)
        while self.n_kept_bytes > MAX_KEPT_BYTES:
            self._take(next(iter(self.kept)))

    def close(self) -> None:
        """Close all files and forget the kept samples."""
        self.files.close()
        self.kept.clear()
        self.n_kept_bytes = 0


def run_length(order: Order, mean_bytes: float, batch: int, world_size: int, workers: int) -> int:
    """Return the number of samples to read with one request, such that they fit into half of `MAX_KEPT_BYTES`.

    It is 1 if the samples of a block belong to several processes: each would read those of the others. `batch` is the
    number of samples of a rank's part, and `workers` the number of its loader processes.
    """
    workers = max(workers, 1)
    if not isinstance(order, BlockOrder) or batch % order.block:
        return 1
    batches, rest = divmod(order.width, batch * world_size)
    if rest or batches % workers:
        return 1
    n_open = order.width / (world_size * workers)
    return max(1, min(order.block, int(MAX_KEPT_BYTES / (n_open * max(mean_bytes, BLOCK)))))
