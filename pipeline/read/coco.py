"""COCO's captions: `read.format=pipeline.read.coco:Coco` (jobs/pipeline/coco.yaml).

The file is an object with the lists `images` and `annotations`. A row is an image with the captions whose `image_id` is
its `id`, in their order.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import IO, Any

from pipeline.read.config import ReadConfig
from pipeline.read.text import Json
from pipeline.read.types import BadRecord, ColumnNames, Load, Piece, RawRow, Record


class Coco(Json):
    """The images of COCO's captions_train2017.json and the like, each with the list of its captions."""

    name = "coco"

    def columns(self, file: IO[bytes], config: ReadConfig) -> ColumnNames | None:
        return [*(super().columns(file, config) or ()), "caption"]

    def find(self, file: IO[bytes], offset: int, line: int, n_columns: int, config: ReadConfig) -> Iterator[RawRow]:
        return super().find(file, offset, line, n_columns, replace(config, json_key="images"))

    def loads(
        self, piece: Piece, config: ReadConfig, is_wanted: Callable[[int], bool]
    ) -> Iterator[tuple[int, Load | None]]:
        captions: dict[Any, list[Any]] = {}
        with self.open(piece.path, config) as file:
            for raw in super().find(file, 0, 1, 0, replace(config, json_key="annotations")):
                found = self.load(raw.payload, [], file, config)
                if not isinstance(found, BadRecord):
                    captions.setdefault(found.get("image_id"), []).append(found.get("caption"))
        for line, load in super().loads(piece, config, is_wanted):
            yield line, partial(_with_captions, load, captions) if load is not None else None


def _with_captions(load: Load, captions: dict[Any, list[Any]]) -> Record | BadRecord:
    record = load()
    if isinstance(record, BadRecord):
        return record
    return {**record, "caption": captions.get(record.get("id"), [])}
