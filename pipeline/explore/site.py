"""The files of the page: its code, and the index, rows and pictures of an output."""

import bisect
import hashlib
import heapq
import json
import math
import shutil
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
from tqdm import tqdm

from hypergrit_common.errors import UserError
from hypergrit_common.files import new_folder
from hypergrit_common.json_file import read_object
from hypergrit_common.paths import absolute, public_name
from hypergrit_common.text import one_line
from pipeline.explore.config import ExploreOptions
from pipeline.explore.index import STORED, cached_index, open_output, read_meta, read_parts, write_json
from pipeline.explore.marks import COLUMNS, FORMULA
from pipeline.explore.rows import CHUNK_ROWS, Shards
from pipeline.output.store import Store
from schemas.disk import KINDS
from schemas.manifest import Manifest
from schemas.scores import SCORES

CODE: Final = Path(__file__).resolve().parent / "static"
DATA: Final = "data"
SITE_FILE: Final = f"{DATA}/site.json"
ROWS_FILE: Final = "rows/{:05d}-{:05d}.json"
IMAGE_FILE: Final = "images/{:05d}/{:06d}.jpg"


@dataclass(frozen=True)
class Output:
    """An output with its index. `name` is the path or URL as it was given; `folder` is its folder of the page."""

    name: str
    folder: str
    store: Store
    manifests: list[Manifest]
    index: Path
    lock: IO[bytes]  # keeps the index from being removed by other processes

    @cached_property
    def shards(self) -> Shards:
        """Reader of single rows."""
        return Shards(self.store, self.manifests)


def read_output(name: str, cache: str | None) -> Output:
    """Return an output with its index, which is built if necessary. Raises UserError."""
    store, manifests = open_output(absolute(name))
    index = cached_index(store, manifests, cache)
    return Output(name, f"{DATA}/{index.folder.name[:8]}", store, manifests, *index)


def code_files() -> dict[str, Path]:
    """Return the files of the page's code by their paths in the URL."""
    return {path.relative_to(CODE).as_posix(): path for path in sorted(CODE.rglob("*")) if path.is_file()}


def index_files(output: Output) -> dict[str, Path]:
    """Return the files of an index by their paths in the URL."""
    return {f"{output.folder}/{path.name}": path for path in sorted(output.index.iterdir())}


def site(
    output: Output,
    disks: list[dict[str, Any]],
    *,
    images: list[int] | None = None,
    marks: str | None = None,
    token: str | None = None,
) -> Any:
    """Return site.json, which the page reads first.

    `images`: numbers of the rows whose images are there, null for all; `marks`: name of the file of marks, null if the
    browser keeps them; `token`: what a link for others must contain; `disks` as `read_disk` returns them.
    """
    found = {"name": output.name, "folder": output.folder, "images": images}
    form = {"columns": COLUMNS, "formula": FORMULA}
    shown = {"disks": disks, "scores": [asdict(score) for score in SCORES if score.label]}
    return {"output": found, "chunk": CHUNK_ROWS, "marks": marks, "form": form, "token": token, **shown}


def write_static(output: Output, options: ExploreOptions) -> None:
    """Write the page and its files into the new folder `options.static`. Raises UserError."""
    disks = [*map(read_disk, options.disk)]
    try:
        with new_folder(str(options.static)) as folder:
            sample = write_output(output, folder, options)
            for name, path in code_files().items():
                copy(path, folder / name)
            named = replace(output, name=public_name(output.name))
            write_json(folder / SITE_FILE, site(named, disks, images=sample))
    except OSError as error:
        raise UserError(f"static={options.static} cannot be written: {one_line(error)}; give another folder") from error


def write_output(output: Output, folder: Path, options: ExploreOptions) -> list[int]:
    """Write the index, the details of all rows and a sample of the images; return the numbers of the sampled rows."""
    for name, path in index_files(output).items():
        copy(path, folder / name)
    chosen = choose(output, options.images, options.seed)
    place, shards, numbers = folder / output.folder, output.shards, list[int]()
    for meta in tqdm(read_meta(output.index)["shards"], desc="pages", unit=" shards", disable=None):
        shard, index = shards.get(meta["shard"]), meta["shard"]
        for chunk in range(-(-shard.n_rows // CHUNK_ROWS)):
            write_json(with_folder(place / ROWS_FILE.format(index, chunk)), shard.details(chunk))
        for number in chosen.get(index, ()):
            image = shard.image(number)
            if image is not None:
                with_folder(place / IMAGE_FILE.format(index, number)).write_bytes(image)
                numbers.append(meta["first"] + number)
    return numbers


def choose(output: Output, n: int, seed: int) -> dict[int, list[int]]:
    """Choose `n` rows with an image by a hash of the seed and their key; return their numbers by shard."""
    table = pa.concat_tables(rows.select(["key", "has_image"]) for rows, _ in read_parts(output.index))
    keys = enumerate(zip(table["key"].to_pylist(), table["has_image"].to_pylist(), strict=True))
    ranked = (
        (hashlib.sha256(f"{seed}:{key}".encode()).digest(), row)
        for row, (key, has_image) in keys
        if has_image == STORED
    )
    shards = read_meta(output.index)["shards"]
    firsts, chosen = [shard["first"] for shard in shards], dict[int, list[int]]()
    for row in sorted(row for _, row in heapq.nsmallest(n, ranked)):
        at = bisect.bisect_right(firsts, row) - 1
        chosen.setdefault(shards[at]["shard"], []).append(row - firsts[at])
    return chosen


def copy(source: Path, target: Path) -> None:
    """Copy a file and make its folder."""
    shutil.copyfile(source, with_folder(target))


def with_folder(path: Path) -> Path:
    """Make the folder of a file and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


# Files of points in the Poincaré disk, which a trained model made (`schemas/disk.py`).


def read_disk(path: str) -> dict[str, Any]:
    """The fields of a file that the page shows. Raises UserError for one that is missing or malformed."""
    try:
        found = read_object(Path(path))
        json.dumps(found, ensure_ascii=False).encode()  # as the page will have it, without lone surrogates
        names = {name: str(found[name]) for name in ("model", "projection")}
        return names | {"points": [check_point(*point) for point in found["points"]]}
    except (OSError, ValueError, TypeError, LookupError, OverflowError) as error:
        command = "python -m trainer.analyses.disk MODEL shards=OUT/train output=FILE.json"
        raise UserError(f"disk: {path} has no points of a disk: {error}; write it with {command}") from error


def check_point(key: str, kind: str, text: str, x: float, y: float) -> list[Any]:
    """The point. Raises ValueError or TypeError for one outside the disk, or of another kind."""
    if kind not in KINDS or not math.hypot(x, y) <= 1:
        raise ValueError(f"the {str(kind)[:20]} of row {str(key)[:20]} at ({x}, {y})")
    return [str(key), kind, str(text), x, y]
