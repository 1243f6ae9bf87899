"""Write arrow/, the ledger: every input row with all columns, as an Arrow IPC file with zstd compression."""

from collections.abc import Sequence
from typing import IO, Final

import pyarrow as pa

from pipeline.output.write.samples import Row
from schemas.rows import SCORED
from schemas.status import KEPT

BATCH_ROWS: Final = 1024


def write_arrow(file: IO[bytes], rows: Sequence[Row], with_images: bool, metadata: dict[str, str]) -> None:
    """Write `rows` in order, in record batches of BATCH_ROWS.

    Dropped rows have an image only with `score.keep_all`; it is in no other file.

    The arrays are built from Python values, so that equal rows give equal bytes. The bytes of existing Arrow arrays
    also depend on their chunks and on the values stored under nulls.
    """
    schema = SCORED.with_metadata(metadata)
    with pa.ipc.new_file(file, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        for first in range(0, len(rows), BATCH_ROWS):
            batch = rows[first : first + BATCH_ROWS]
            if not with_images:
                batch = [{**row, "image": None} if row["status"] == KEPT else row for row in batch]
            writer.write_batch(pa.RecordBatch.from_pylist(list(batch), schema=schema))
