"""The result of a shard that shared batches; this module imports no torch."""

from typing import NamedTuple

import pyarrow as pa


class Scored(NamedTuple):
    """A finished shard: its number, its SCORED table without images, and for each stage seconds and rows."""

    shard: int
    table: pa.Table
    seconds: dict[str, tuple[float, int]]
