"""GLIGEN's grounded sets, such as CC3M: `read.format=pipeline.read.gligen:Gligen` (jobs/pipeline/gligen.yaml).

A line of a TSV has an identifier and a JSON object: the image as base64, `caption`, and `annos`, whose boxes are
[x, y, width, height] in pixels and whose `tokens_positive` are spans of the caption.
"""

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, ClassVar, Final

from hypergrit_common.image_header import CostlyImageError, jpeg_header
from pipeline.read.config import ReadConfig
from pipeline.read.rows import UNPLACED
from pipeline.read.text import JsonLines, parse_json
from pipeline.read.types import IMAGE, BadRecord, ColumnNames, RawRow, Record


@dataclass(frozen=True, kw_only=True)
class LongRows(ReadConfig):
    """Limits of lines that hold an image as base64, and embeddings of its boxes."""

    max_row_bytes: ClassVar[int] = 4 * ReadConfig.max_image_bytes // 3 + 16 * ReadConfig.max_row_bytes


LONG: Final = LongRows()
JOINED: Final = re.compile(r"[\s,-]*")
"""What lies between two tokens of one phrase."""


class Gligen(JsonLines):
    """Rows of GLIGEN's TSV files, with the boxes as GRIT's noun_chunks. Boxes have no scores there: they get 1."""

    name, suffixes = "gligen", (".tsv",)

    def columns(self, file: IO[bytes], config: ReadConfig) -> ColumnNames | None:
        """Return None: all rows have the same columns, which need no check."""
        return None

    def find(self, file: IO[bytes], offset: int, line: int, n_columns: int, config: ReadConfig) -> Iterator[RawRow]:
        return super().find(file, offset, line, n_columns, LONG)

    def parse(self, payload: Any, header: list[str], file: IO[bytes], config: ReadConfig) -> Record | BadRecord:
        name, _, text = payload.partition(b"\t")
        item = parse_json(text)
        if isinstance(item, BadRecord):
            return item
        try:
            image = base64.b64decode(item["image"], validate=True)
            size = jpeg_header(image)
            if size is None:
                return BadRecord("the image of the row is no JPEG, so its boxes in pixels mean nothing")
            caption = item.get("caption") or ""
            chunks = [c for anno in item["annos"] for c in noun_chunks(anno, caption, size.width, size.height)]
        except (KeyError, TypeError, ValueError, CostlyImageError) as error:
            return BadRecord(f"not a row of GLIGEN: {error!r}")
        others: Record = {key: item[key] for key in ("caption", "file_name") if key in item}
        return {"id": name.decode(errors="replace"), IMAGE: image, "noun_chunks": json.dumps(chunks), **others}


def noun_chunks(anno: dict[str, Any], caption: str, width: int, height: int) -> Iterator[list[float]]:
    """Yield a box as GRIT's lists of 7 numbers, one for each of its phrases: tokens with words between them are several."""
    x, y, w, h = anno["bbox"]
    spans = list[list[int]]()
    for start, end in sorted(anno["tokens_positive"]):
        if spans and JOINED.fullmatch(caption, spans[-1][1], max(start, spans[-1][1])):
            spans[-1][1] = max(end, spans[-1][1])
        else:
            spans.append([start, end])
    for span in spans or [[*UNPLACED]]:
        yield [*span, x / width, y / height, (x + w) / width, (y + h) / height, 1.0]
