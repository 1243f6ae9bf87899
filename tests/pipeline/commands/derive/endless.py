"""Work that does not end, in a module that a child process imports."""

import time
from pathlib import Path


def work(path: str) -> None:
    """Create a file, and wait."""
    Path(path).touch()
    time.sleep(600)
