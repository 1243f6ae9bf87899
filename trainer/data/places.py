"""The places of samples in their shards, in a temporary file of eight bytes per sample.

Processes read the rows that they need from the file, so that the number of samples takes no memory. The file has no
name, so that it disappears with the last process that uses it.
"""

import os
import tempfile
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError

Rows = NDArray[np.uint32]  # [n 2]: first byte of each sample, divided by 512, and its size in bytes
ROW: Final = 8
CHUNK: Final = 1 << 23  # rows that are copied at once


class Places:
    """Rows of places, which are appended and read by their numbers. Pickling copies all of them."""

    def __init__(self, file: BinaryIO | None = None) -> None:
        """Create a file in the folder for temporary files, or use an open one. Raises UserError if there is no room."""
        try:
            self.file = file or tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        except OSError as error:
            raise no_room(error) from error

    @classmethod
    def of_process(cls, path: str) -> "Places":
        """Open the file of another process of this machine by its `path`. Raises OSError."""
        return cls(Path(path).open("rb", buffering=0))

    @property
    def path(self) -> str:
        """A path by which other processes of this machine can open the file, as long as this one has it open."""
        return f"/proc/{os.getpid()}/fd/{self.file.fileno()}"

    def append(self, rows: Rows) -> None:
        """Append rows. Raises UserError if there is no room."""
        data = memoryview(rows.astype(np.uint32, copy=False).tobytes())
        try:
            while data:
                data = data[os.write(self.file.fileno(), data) :]
        except OSError as error:
            raise no_room(error) from error

    def read(self, first: int, n: int) -> Rows:
        """Return n rows from number `first` on."""
        return np.frombuffer(os.pread(self.file.fileno(), ROW * n, ROW * first), np.uint32).reshape(n, 2)

    def __getstate__(self) -> dict[str, Any]:
        size = os.fstat(self.file.fileno()).st_size
        return {"rows": [self.read(first, min(CHUNK, size // ROW - first)) for first in range(0, size // ROW, CHUNK)]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        for rows in state["rows"]:
            self.append(rows)


def no_room(error: OSError) -> UserError:
    """The error for a folder for temporary files that is full or cannot be written."""
    return UserError(
        f"the index of the shards, 8 bytes per sample, cannot be written to {tempfile.gettempdir()}: {error}; free disk "
        "space there, or set TMPDIR to another folder"
    )
