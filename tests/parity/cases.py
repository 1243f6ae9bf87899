"""Open the file of cases on a runner's command line."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypergrit_common.text import one_line


class Cases(dict[str, NDArray[Any]]):
    """Arrays by name, with the attribute `files` of an open npz."""

    @property
    def files(self) -> list[str]:
        return list(self)


def open_cases(path: Path, kind: str, arrays: Iterable[str], meta_keys: Iterable[str]) -> tuple[Cases, dict[str, Any]]:
    """Return the arrays of an npz and the values of its `meta_json`.

    Exits with a message if the file is not an npz of numbers, or if one of the `arrays` or `meta_keys` is missing;
    `kind` describes the expected file.
    """
    try:
        content = np.load(path)
        table = Cases({name: content[name] for name in getattr(content, "files", ())})
        meta = json.loads(str(table["meta_json"])) if "meta_json" in table else None
    except Exception as error:  # a flipped byte may raise any error of zipfile, zlib, NumPy and its parser of headers
        sys.exit(f"{path} cannot be read as an npz of numbers: {one_line(error)}")
    if not isinstance(meta, dict):
        sys.exit(f"{path} is not a {kind}: it has no meta_json that holds a JSON object")
    missing = [*(name for name in arrays if name not in table.files), *(name for name in meta_keys if name not in meta)]
    if missing:
        sys.exit(f"{path} is not a {kind}: {', '.join(missing[:5])} missing")
    return table, meta
