"""The file of cases that a runner is given, and what to say where it is another one."""

import json
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


def open_cases(path: Path, kind: str, arrays: Iterable[str], facts: Iterable[str]) -> tuple[Any, dict[str, Any]]:
    """The arrays of an npz and the facts in its `meta_json`. Ends the program, saying why, without those that are named."""
    try:
        table = np.load(path)
        meta = json.loads(str(table["meta_json"])) if "meta_json" in getattr(table, "files", ()) else None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        sys.exit(f"{path} cannot be read as an npz of numbers: {error}")
    if not isinstance(meta, dict):
        sys.exit(f"{path} is no {kind}: it has no meta_json with facts in it")
    lacking = [*(name for name in arrays if name not in table.files), *(name for name in facts if name not in meta)]
    if lacking:
        sys.exit(f"{path} is no {kind}: it lacks {', '.join(lacking[:5])}")
    return table, meta
