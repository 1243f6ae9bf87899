"""The shards that the pipeline wrote, as examples: arrow/*.arrow or grit/*.tar, images with captions, phrases and boxes."""

import glob
import io
import json
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from common.errors import UserError
from common.images import STORED, ImageRejected, decode
from pipeline.ground.glip.config import GlipConfig
from pipeline.ground.glip.images import network_size, padded_size
from pipeline.ground.glip.text import Prompter
from pipeline.ground.glip.training.examples import Example, LabelledPhrase
from schemas.status import KEPT

SORTED_BATCHES = 16  # so many are drawn together and sorted by size, so that little of a batch is padding
Box = tuple[int, int, float, float, float, float]  # start, end of the phrase; xyxy as fractions of the image


@dataclass(frozen=True)
class Row:
    """Where one usable example lies."""

    path: Path
    place: int  # row of an .arrow file; first byte of the image in a .tar
    n_bytes: int  # of the image in a .tar
    size: tuple[int, int]  # padded, in the network
    caption: str
    boxes: tuple[Box, ...]


def find_shards(shards: str) -> list[Path]:
    """The .tar or .arrow files of a file, glob or folder; of a pipeline's output folder those of grit/, else of arrow/.

    Raises UserError if there are none.
    """
    root = Path(shards)
    for folder in (root / "grit", root / "arrow", root):
        for suffix in (".tar", ".arrow"):
            if found := sorted(folder.glob(f"*{suffix}")):
                return found
    found = [Path(path) for path in sorted(glob.glob(shards)) if path.endswith((".arrow", ".tar"))]
    if not found:
        raise UserError(f"shards={shards!r}: no .arrow or .tar file is there; give an output folder of the pipeline")
    return found


def captions(paths: Sequence[Path]) -> Iterator[str]:
    """Every kept caption."""
    return (caption for path in paths for _, _, _, caption, _ in _contents(path))


def index_rows(paths: Sequence[Path], prompter: Prompter, config: GlipConfig) -> tuple[list[Row], Counter[str]]:
    """The examples that teach something, and how many others there are, by reason."""
    rows: list[Row] = []
    skipped: Counter[str] = Counter()
    for path in paths:
        for place, n_bytes, (height, width), caption, boxes in _contents(path):
            spans = sorted({(start, end) for start, end, *_ in boxes})
            plan = prompter.plan(caption, spans, "caption")
            if not boxes:
                skipped["no box"] += 1
            elif not plan.prompts:
                skipped[plan.dropped[0][1]] += 1
            else:
                size = padded_size(network_size(height, width, config.detect))
                rows.append(Row(path, place, n_bytes, size, caption, tuple(boxes)))
    return rows, skipped


def batches_from(rows: Sequence[Row], size: int, seed: int, start: int) -> Iterator[list[Row]]:
    """Endless batches of `size` rows from the `start`-th on; every epoch has its own order, the same in every run.

    Raises UserError if the rows fill no batch.
    """
    per_epoch = len(rows) // size
    if not per_epoch:
        raise UserError(f"the shards hold {len(rows)} usable rows, fewer than train.batch_size={size}")
    epoch, first = divmod(start, per_epoch)
    while True:
        yield from _epoch(rows, size, seed, epoch)[first:]
        epoch, first = epoch + 1, 0


def _epoch(rows: Sequence[Row], size: int, seed: int, epoch: int) -> list[list[Row]]:
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(rows)).tolist()
    found: list[list[Row]] = []
    for start in range(0, len(order) - len(order) % size, SORTED_BATCHES * size):
        drawn = sorted(order[start : start + SORTED_BATCHES * size], key=lambda i: rows[i].size)
        found += [[rows[i] for i in drawn[k : k + size]] for k in range(0, len(drawn) - len(drawn) % size, size)]
    return [found[i] for i in rng.permutation(len(found)).tolist()]


def load_example(row: Row) -> Example:
    """The decoded image with its phrases and boxes.

    Raises UserError naming the file if the image is damaged.
    """
    try:
        image = decode(_image_bytes(row), STORED)
    except ImageRejected as error:
        raise UserError(f"{row.path}, image at {row.place}: {error}; write the shard again") from error
    height, width = image.shape[:2]
    owned: dict[tuple[int, int], list[int]] = {}
    boxes: list[tuple[float, float, float, float]] = []
    for start, end, x_min, y_min, x_max, y_max in row.boxes:
        owned.setdefault((start, end), []).append(len(boxes))
        boxes.append((x_min * width, y_min * height, x_max * width, y_max * height))
    phrases = [LabelledPhrase(span=span, boxes=tuple(numbers)) for span, numbers in owned.items()]
    return Example(image=image, caption=row.caption, phrases=phrases, boxes=boxes)


Content = tuple[int, int, tuple[int, int], str, list[Box]]  # place, bytes, (height, width), caption, boxes


def _contents(path: Path) -> Iterator[Content]:
    return _arrow_contents(path) if path.suffix == ".arrow" else _tar_contents(path)


@cache
def _arrow(path: Path) -> pa.Table:
    """The file's table, mapped and not read."""
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path} is no Arrow file: {error}") from error


def _arrow_contents(path: Path) -> Iterator[Content]:
    names = ["status", "height", "width", "caption", "noun_chunks", "boxes", "box_scores"]
    missing = {*names, "image"} - set(_arrow(path).schema.names)
    if missing:
        raise UserError(f"{path} is no shard of the pipeline's arrow/: it lacks {', '.join(sorted(missing))}")
    for place, row in enumerate(_arrow(path).select(names).to_pylist()):
        if row["status"] == KEPT:
            if not _arrow(path)["image"][place].is_valid:
                raise UserError(f"{path} holds no images (write.image_bytes); give the grit/ beside it")
            yield place, 0, (row["height"], row["width"]), row["caption"], list(_kept_boxes(row))


def _kept_boxes(row: Mapping[str, Any]) -> Iterator[Box]:
    for box, score in zip(row["boxes"], row["box_scores"], strict=True):
        if score["removed"] is None:
            chunk = row["noun_chunks"][box["phrase"]]
            yield chunk["start"], chunk["end"], box["x_min"], box["y_min"], box["x_max"], box["y_max"]


def _tar_contents(path: Path) -> Iterator[Content]:
    """Members come as jpg, txt, json of each sample, as grit/ has them."""
    try:
        with tarfile.open(path, "r:") as tar:
            image: tarfile.TarInfo | None = None
            for member in tar:
                if member.name.endswith(".jpg"):
                    image = member
                elif member.name.endswith(".json") and image and image.name[:-4] == member.name[:-5]:
                    file = tar.extractfile(member)
                    row = json.load(file) if file else {}
                    boxes = [(int(c[0]), int(c[1]), c[2], c[3], c[4], c[5]) for c in row["noun_chunks"]]
                    size = (row["height"], row["width"])
                    yield image.offset_data, image.size, size, row["caption"], boxes
    except (tarfile.TarError, OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{path} is no shard of the pipeline's grit/: {type(error).__name__} {error}") from error


def _image_bytes(row: Row) -> bytes:
    if row.path.suffix == ".arrow":
        return _arrow(row.path)["image"][row.place].as_py()
    with row.path.open("rb", buffering=io.DEFAULT_BUFFER_SIZE) as file:
        file.seek(row.place)
        return file.read(row.n_bytes)
