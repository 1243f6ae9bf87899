"""The formats of `hypergrit export`: each writes records, which have the kept boxes of a row, into a folder."""

import importlib
import json
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa

from hypergrit_common.errors import UserError
from pipeline.read.roots import is_web

Record = dict[str, Any]
"""A kept row, as a line of pictures.jsonl; its boxes have phrase, span, head noun (label), corners, scores."""
REGION: Final = pa.struct(
    {"phrase": pa.string(), "start": pa.int32(), "end": pa.int32(), "label": pa.string(),
     "box": pa.list_(pa.float32(), 4), "score": pa.float32(), "clip_cosine": pa.float32()}.items()
)  # fmt: skip
SCHEMA: Final = pa.schema(
    {"key": pa.string(), "split": pa.string(), "file": pa.string(), "caption": pa.string(), "width": pa.int32(),
     "height": pa.int32(), "url": pa.string(), "sha256": pa.string(), "license": pa.string(),
     "license_name": pa.string(), "author": pa.string(), "title": pa.string(), "page": pa.string(),
     "clip_similarity": pa.float32(), "boxes": pa.list_(REGION)}.items()
)  # fmt: skip
LANCE_ROWS: Final = 256
INFO: Final = {"description": "Image-text pairs whose noun phrases have boxes, made with HyperGRIT", "version": "1.0"}


def pixels(region: Record, record: Record) -> list[float]:
    """Return the corners of a box in pixels."""
    return [edge * size for edge, size in zip(region["box"], (record["width"], record["height"]) * 2, strict=True)]


def write_line(file: IO[str], value: Any) -> None:
    """Write a line of JSON."""
    file.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")


def write_json(path: Path, value: Any) -> None:
    """Write a file of JSON."""
    path.write_text(json.dumps(value, ensure_ascii=False, allow_nan=False), encoding="utf-8")


class Format:
    """Writes the images of a folder; subclasses write the boxes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, record: Record, image: bytes) -> None:
        """Write a row."""
        path = self.folder / record["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)

    def close(self) -> None:
        """Finish the files."""


class Coco(Format):
    """SPLIT.json as of COCO's detection: a category for each head noun. Held in memory until `close`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.categories, self.licenses, self.n_images, self.n_boxes = dict[str, int](), dict[str, int](), 0, 0
        self.splits: dict[str, tuple[list[Record], list[Record]]] = {}

    def add(self, record: Record, image: bytes) -> None:
        super().add(record, image)
        images, annotations = self.splits.setdefault(record["split"], ([], []))
        self.n_images += 1
        facts = {name: record[name] for name in ("width", "height", "caption", "key")}
        if record["license"]:
            facts["license"] = self.licenses.setdefault(record["license"], len(self.licenses) + 1)
        images.append({"id": self.n_images, "file_name": record["file"], **facts})
        for region in record["boxes"]:
            x0, y0, x1, y1 = pixels(region, record)
            self.n_boxes += 1
            category = self.categories.setdefault(region["label"], len(self.categories) + 1)
            annotations.append(
                {"id": self.n_boxes, "image_id": self.n_images, "category_id": category, "iscrowd": 0,
                 "bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0), "score": region["score"],
                 "phrase": region["phrase"], "tokens_positive": [[region["start"], region["end"]]]}
            )  # fmt: skip

    def close(self) -> None:
        names = [{"id": number, "name": name, "supercategory": "thing"} for name, number in self.categories.items()]
        licenses = [
            {"id": number, "name": name, "url": name if is_web(name) else ""} for name, number in self.licenses.items()
        ]
        for split, (images, annotations) in self.splits.items():
            lists = {"images": images, "annotations": annotations, "categories": names}
            write_json(self.folder / f"{split}.json", {"info": INFO, "licenses": licenses, **lists})


def stable(text: str) -> str:
    """Return a text that keeps its length in lower case: characters that do not, such as "İ", are in lower case already."""
    return text if len(text.lower()) == len(text) else "".join(c if len(c.lower()) == 1 else c.lower() for c in text)


class Odvg(Format):
    """SPLIT.jsonl with the phrase grounding of ODVG, the format of MM-Grounding-DINO in mmdetection.

    Its reader takes `caption.lower().strip()`; the spans are written for this text.
    """

    def add(self, record: Record, image: bytes) -> None:
        super().add(record, image)
        caption = record["caption"].lstrip()
        removed = len(record["caption"]) - len(caption)

        def place(offset: int) -> int:
            return len(stable(caption[: max(0, offset - removed)]))

        regions = [
            {"bbox": pixels(region, record), "phrase": stable(region["phrase"]), "score": region["score"],
             "tokens_positive": [[place(region["start"]), place(region["end"])]]}
            for region in record["boxes"]
        ]  # fmt: skip
        line = {"filename": record["file"], "height": record["height"], "width": record["width"]}
        with (self.folder / f"{record['split']}.jsonl").open("a", encoding="utf-8") as file:
            write_line(file, {**line, "grounding": {"caption": stable(caption), "regions": regions}})


class Lance(Format):
    """pictures.lance: one table with images, captions and boxes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        try:
            self._lance: Any = importlib.import_module("lance")
        except ModuleNotFoundError as error:
            raise UserError("format=lance needs the package pylance; pip install pylance") from error
        self._rows: list[Record] = []

    def add(self, record: Record, image: bytes) -> None:
        self._rows.append({**record, "image": image})
        if len(self._rows) == LANCE_ROWS:
            self.close()

    def close(self) -> None:
        """Write the rows that are held."""
        path = self.folder / "pictures.lance"
        table = pa.Table.from_pylist(self._rows, schema=SCHEMA.append(pa.field("image", pa.large_binary())))
        self._lance.write_dataset(table.drop_columns(["file"]), str(path), mode="append" if path.exists() else "create")
        self._rows.clear()


FORMATS: Final[dict[str, type[Format]]] = {"coco": Coco, "odvg": Odvg, "lance": Lance}
