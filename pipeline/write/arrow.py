"""arrow/: every input row with its status, parse, boxes and scores, as one Arrow IPC file (zstd) that maps into memory."""

from collections.abc import Sequence
from typing import IO, Final

import pyarrow as pa

from pipeline.write.samples import Row
from schemas.rows import SCORED

BATCH_ROWS: Final = 1024


def write_arrow(file: IO[bytes], rows: Sequence[Row], with_images: bool, metadata: dict[str, str]) -> None:
    """`rows` in order, in batches.

    They are built anew from plain values: an Arrow array may hold anything under its nulls and be cut into any chunks, and both
    would show in the bytes.
    """
    schema = SCORED.with_metadata(metadata)
    with pa.ipc.new_file(file, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        for first in range(0, len(rows), BATCH_ROWS):
            batch = rows[first : first + BATCH_ROWS]
            if not with_images:
                batch = [{**row, "image": None} for row in batch]
            writer.write_batch(pa.RecordBatch.from_pylist(list(batch), schema=schema))
