"""Open the file of cases on a runner's command line."""

import json
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


def open_cases(path: Path, kind: str, arrays: Iterable[str], meta_keys: Iterable[str]) -> tuple[Any, dict[str, Any]]:
    """Return the arrays of an npz and the values of its `meta_json`.

    Exits with a message if the file is not an npz of numbers, or if one of the `arrays` or `meta_keys` is missing;
    `kind` describes the expected file.
    """
    try:
        table = np.load(path)
        meta = json.loads(str(table["meta_json"])) if "meta_json" in getattr(table, "files", ()) else None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        sys.exit(f"{path} cannot be read as an npz of numbers: {error}")
    if not isinstance(meta, dict):
        sys.exit(f"{path} is not a {kind}: it has no meta_json that holds a JSON object")
    missing = [*(name for name in arrays if name not in table.files), *(name for name in meta_keys if name not in meta)]
    if missing:
        sys.exit(f"{path} is not a {kind}: {', '.join(missing[:5])} missing")
    return table, meta
