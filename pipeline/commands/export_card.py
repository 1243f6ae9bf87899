"""The dataset card of an export, with figures and sample pictures, and its Croissant metadata."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import cv2
import pyarrow as pa
import yaml

from hypergrit_common.errors import UserError
from hypergrit_common.files import file_hash
from hypergrit_common.images import STORED_IMAGE_LIMITS, decode
from hypergrit_common.paths import public_name
from pipeline.commands.export_formats import SCHEMA, Record, pixels
from pipeline.commands.export_licenses import NONE, Permits
from pipeline.images import encode_jpeg
from schemas.manifest import NO_MODEL, Manifest
from schemas.status import shown_stage

PICTURES_FILE: Final = "pictures.jsonl"
COLOURS: Final = ((230, 60, 60), (40, 110, 220), (30, 150, 70), (200, 120, 0), (140, 60, 190), (0, 150, 160))
MOST: Final = 20
"""Head nouns, and licences, that the card names."""
N_SAMPLES: Final = 6
TYPES: Final = {pa.string(): "sc:Text", pa.int32(): "sc:Integer"}
"""Types of the fields that Croissant describes."""
CONTEXT: Final = {
    "@language": "en", "@vocab": "https://schema.org/", "cr": "http://mlcommons.org/croissant/",
    "sc": "https://schema.org/", "dct": "http://purl.org/dc/terms/", "conformsTo": "dct:conformsTo",
    "recordSet": "cr:recordSet", "field": "cr:field", "source": "cr:source", "extract": "cr:extract",
    "column": "cr:column", "fileObject": "cr:fileObject", "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
}  # fmt: skip


def check_license(license: str) -> None:
    """Raise UserError unless `license` is a word."""
    if not re.fullmatch(r"[\w.+-]+", license):
        raise UserError(f"license={license!r} is no identifier; give one of the hub, such as cc-by-4.0")


def text(value: object) -> str:
    """Return a text of the data as text of Markdown: nothing in it is a link, an image or HTML."""
    return re.sub(r"([\\`*_{}\[\]()<>#+!|~&$:@])", r"\\\1", " ".join(str(value).split())[:200])


def table(name: str, rows: Mapping[str, object]) -> str:
    """Return a table of Markdown."""
    lines = [f"| {text(key)} | {text(content)} |" for key, content in rows.items()]
    return "\n".join([f"| {name} | |", "|---|---|", *lines])


class Card:
    """README.md of a data set. Without a record, the data are the shards of the output."""

    def __init__(
        self, folder: Path, manifests: Sequence[Manifest], format: str, license: str, permits: Permits
    ) -> None:
        self.folder, self.manifests, self.format, self.license = folder, manifests, format, license
        self.permits, self.splits, self.labels = permits, Counter[str](), Counter[str]()
        self.samples: list[str] = []

    def add(self, record: Record, image: bytes) -> None:
        """Count a record; the first ones become samples."""
        self.splits[record["split"]] += 1
        self.labels.update(region["label"] for region in record["boxes"])
        if len(self.samples) < N_SAMPLES:
            self.samples.append(self._sample(record, image))

    def _sample(self, record: Record, image: bytes) -> str:
        """Write a picture with its boxes; return its part of the card."""
        pixels_ = decode(image, STORED_IMAGE_LIMITS).copy()
        for region, colour in zip(record["boxes"], COLOURS * len(record["boxes"]), strict=False):
            x0, y0, x1, y1 = map(round, pixels(region, record))
            cv2.rectangle(pixels_, (x0, y0), (x1, y1), colour, 2)
        path = self.folder / "card" / f"{record['key']}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode_jpeg(pixels_))
        phrases = ", ".join(f"{text(region['phrase'])} {region['score']:.2f}" for region in record["boxes"])
        return f"![sample](card/{path.name})\n\n{text(record['caption'])}\n\nBoxes: {phrases or 'none'}"

    def write(self) -> None:
        """Write README.md."""
        tags = ["grounding", "hypergrit", self.format]
        provenance: Mapping[str, Any] = self.manifests[0]["provenance"]
        models = {role: public_name(model["name"]) for role, model in provenance["models"].items()}
        has_boxes, located = any(manifest["boxes"] for manifest in self.manifests), models["grounder"] != NO_MODEL
        tasks = [*(["object-detection"] if has_boxes else []), "image-to-text"]
        front = {"license": self.license, "task_categories": tasks, "tags": tags}
        origin = (
            "models located the noun phrases of the captions in the images" if located else "the boxes are given ones"
        )
        parts = [
            f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
            "# Image-text pairs with grounded phrases" if has_boxes else "# Image-text pairs",
            f"Images and captions of the web; {origin}."
            if has_boxes
            else "Images and captions of the web, without boxes.",
            table("made with", {"HyperGRIT": provenance["hypergrit"], **models, **provenance["thresholds"]}),
            table("figures", self._figures()),
            *self._of_records(),
            f"## Licences\n\n`{self.license}` is the licence of the annotations. Each picture and caption belongs to its "
            f"owner; {PICTURES_FILE} or grit/ name its URL."
            + (" Boxes and phrases contain errors of the models." if has_boxes and located else ""),
            *self._licences(),
        ]
        (self.folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")

    def _figures(self) -> dict[str, int]:
        """Return the rows that were read, kept and dropped, and the boxes."""
        values, dropped = Counter[str](), Counter[str]()
        for manifest in self.manifests:
            counts = manifest["counts"]
            values.update({"rows read": counts["read"], "rows kept": counts["kept"], "boxes": manifest["boxes"]})
            for stage, reasons in counts["dropped"].items():
                dropped.update({f"dropped by {shown_stage(stage, name)} as {name}": n for name, n in reasons.items()})
        exported = {f"pictures in {split}": n for split, n in sorted(self.splits.items())}
        return {**values, **dict(dropped.most_common()), **exported}

    def _of_records(self) -> list[str]:
        """Return the parts about the records."""
        nouns = ", ".join(f"{text(name)} ({n})" for name, n in self.labels.most_common(MOST))
        return [f"Head nouns: {len(self.labels)}, most often {nouns}.", "## Samples", *self.samples] if nouns else []

    def _licences(self) -> list[str]:
        """Return the parts about the licences of the pictures, which columns of the input name."""
        permits, n = self.permits, self.permits.published.total()
        if {*permits.published} <= {NONE}:
            return ["The source names no licences."] if n else []
        shares = {name: f"{k} ({k / n:.1%})" for name, k in permits.published.most_common(MOST)}
        credited = ", ".join(f"`{fact}` ({permits.credited[fact]})" for fact in ("author", "title", "page"))
        left_out = {f"left out: {reason}": k for reason, k in permits.refused.most_common()}
        return [
            table("licences of the pictures", {**shares, **left_out}),
            f"{PICTURES_FILE} names the licence of each picture, and whom to credit (pictures that have it): {credited}.",
        ]


def write_croissant(folder: Path, license: str) -> None:
    """Write croissant.json (Croissant 1.0): the records of pictures.jsonl without their boxes."""
    fields = [
        {"@type": "cr:Field", "@id": f"pictures/{item.name}", "name": item.name, "dataType": TYPES[item.type],
         "source": {"fileObject": {"@id": PICTURES_FILE}, "extract": {"column": item.name}}}
        for item in SCHEMA if item.type in TYPES
    ]  # fmt: skip
    file = {"@type": "cr:FileObject", "@id": PICTURES_FILE, "name": PICTURES_FILE, "contentUrl": PICTURES_FILE,
            "encodingFormat": "application/jsonlines", "sha256": file_hash(folder / PICTURES_FILE)}  # fmt: skip
    content = {
        "@context": CONTEXT, "@type": "sc:Dataset", "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": "image-text-pairs-with-grounded-phrases", "license": license, "distribution": [file],
        "description": "Image-text pairs whose noun phrases were located in the images, made with HyperGRIT.",
        "recordSet": [{"@type": "cr:RecordSet", "@id": "pictures", "name": "pictures", "field": fields}],
    }  # fmt: skip
    (folder / "croissant.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
