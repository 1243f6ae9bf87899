"""Thumbnails of dropped rows, for the report: their images are not stored otherwise."""

import io
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from common.images import ImageRejected
from pipeline.report.config import ReportConfig
from pipeline.report.samples import Row, Thumbnail, thumbnail
from pipeline.write.store import Store
from schemas.files import DROPPED_FILE, THUMBNAIL
from schemas.manifest import Manifest
from schemas.status import INTERNAL_ERROR, KEPT

MAX_SHARDS: Final = 32
STAGES_WITH_IMAGES: Final = {"captions", "parse", "ground", "score"}


@dataclass(frozen=True)
class DroppedPicture:
    """The thumbnail of a row that a stage dropped."""

    key: str
    stage: str
    reason: str
    thumbnail: Thumbnail


def pick_dropped(
    before: pa.Table, after: pa.Table, known: Sequence[DroppedPicture], config: ReportConfig
) -> list[DroppedPicture]:
    """Return thumbnails of the first rows that a stage dropped for each reason, `config.examples` with those `known`.

    `before` and `after` are the rows of a shard, in the same order, before and after the stage.
    """
    is_new = pc.and_(pc.equal(before["status"], KEPT), pc.not_equal(after["status"], KEPT))
    counts = Counter((picture.stage, picture.reason) for picture in known)
    found: list[DroppedPicture] = []
    for i in pc.indices_nonzero(is_new).to_pylist():
        key, stage, reason = (after[name][i].as_py() for name in ("key", "stage", "reason"))
        image = before["image"][i].as_py()
        if image is None or reason == INTERNAL_ERROR or counts[stage, reason] >= config.examples:
            continue  # an image at which a stage has failed may also make this function fail
        with suppress(ImageRejected):
            picture = DroppedPicture(key, stage, reason, thumbnail(image, config.thumbnail_px))
            found.append(picture)
            counts[stage, reason] += 1
    return found


def write_dropped(store: Store, index: int, pictures: Sequence[DroppedPicture]) -> None:
    """Write the thumbnails of a shard; no file if there are none."""
    if not pictures:
        return
    rows = [{"key": picture.key, **picture.thumbnail._asdict()} for picture in pictures]
    data = io.BytesIO()
    with pa.ipc.new_file(data, THUMBNAIL) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema=THUMBNAIL))
    store.write_bytes(store.file(DROPPED_FILE, index), data.getvalue())


def find_dropped(
    store: Store, manifests: Sequence[Manifest], examples: Mapping[tuple[str, str], Sequence[Row]]
) -> dict[str, Thumbnail]:
    """Return the thumbnails of the rows in `examples`, (stage, reason) -> rows, by key; those that are stored.

    At most MAX_SHARDS shards are read.
    """
    causes = {row["key"]: cause for cause, rows in examples.items() for row in rows}
    found: dict[str, Thumbnail] = {}
    n_read = 0
    for manifest in manifests:
        in_shard = {(stage, reason) for stage, reasons in manifest["counts"]["dropped"].items() for reason in reasons}
        wanted = {key for key, cause in causes.items() if cause in in_shard and cause[0] in STAGES_WITH_IMAGES}
        if wanted - found.keys() and n_read < MAX_SHARDS:
            n_read += 1
            found |= read_dropped(store, manifest["shard"], wanted)
    return found


def read_dropped(store: Store, index: int, keys: Collection[str]) -> dict[str, Thumbnail]:
    """Return the thumbnails of a shard by key, those of `keys`; none if its file is missing or damaged."""
    data = store.read(store.file(DROPPED_FILE, index))
    try:
        rows = pa.ipc.open_file(data).read_all().cast(THUMBNAIL).to_pylist() if data else []
    except (pa.ArrowException, ValueError, OSError):
        return {}
    return {row["key"]: Thumbnail(row["jpeg"], row["width"], row["height"]) for row in rows if row["key"] in keys}
