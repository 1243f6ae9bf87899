"""The record of cached features in their folder. Does not import torch."""

from pathlib import Path
from typing import Any, Final, cast

from hypergrit_common.errors import UserError
from hypergrit_common.json_file import read_object
from hypergrit_common.locations import Locations, split_locations
from schemas.features import RECORD_NAME, FeatureRecord
from trainer.encoders.config import CACHED

MAX_WIDTH: Final = 1 << 16
"""More than the width of any tower, and than the patches or views of an image."""
KNOWN: Final = {
    "training": {"tokenizer", "model"},
    "model": {"image", "text", "pixel_mean", "pixel_std"},
    "tower": {"name", "weights", "size_px", "vocab_size", "context_length", "pad_id", "kwargs"},
    "kwargs": {"width", "model", "sha256", "projected", "patches"},
}
"""The settings of a training in a record: of the heads it names the frozen tower alone."""


def read_record(folder: str) -> FeatureRecord:
    """Read what made the features in a folder. Raises UserError if it holds none."""
    if "://" in folder:
        raise UserError(f"{folder}: features are mapped into memory; copy them to a folder of this machine")
    try:
        record = read_object(Path(folder) / RECORD_NAME)
        settings, training = record["settings"], record["training"]
        towers = [training["model"][name] for name in ("image", "text")]
        parts = {"training": [training], "model": [training["model"]], "tower": towers}
        parts["kwargs"] = [tower["kwargs"] for tower in towers]
        sizes = [kwargs.get(name, 1) for kwargs in parts["kwargs"] for name in ("width", "patches")]
        numbers = (record["n_samples"], settings["rows_per_shard"], settings["views"], *sizes)
        if (
            not all(type(n) is int and 0 < n < 1 << 48 for n in numbers)
            or max(settings["views"], *sizes) > MAX_WIDTH
            or any(part.keys() - KNOWN[name] for name, found in parts.items() for part in found)
            or any(tower["name"] != CACHED or "width" not in tower["kwargs"] for tower in towers)
            or (settings["tokens"] is not None and settings["tokens"].keys() != {"kind", "block"})
        ):
            raise ValueError(f"{RECORD_NAME} has wrong values")
        return cast(FeatureRecord, record | {"tower": {**record["tower"], "sha256": str(record["tower"]["sha256"])}})
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"{folder} holds no features ({error}); write them with hypergrit features shards=... model=... output={folder}"
        ) from error


def read_records(features: Locations) -> list[FeatureRecord]:
    """The records of all folders. Raises UserError if their features are not of the same towers and settings."""
    folders = split_locations(features)
    records = [read_record(folder) for folder in folders]
    for folder, record in zip(folders, records, strict=True):
        if what_decides(record) != what_decides(records[0]):
            raise UserError(f"{folder} and {folders[0]} hold features of different towers or settings; make them alike")
    return records


def what_decides(record: FeatureRecord) -> tuple[str, dict[str, Any]]:
    """The tower and the settings of features, without the number of rows of a file and the number format."""
    free = ("rows_per_shard", "precision")
    return record["tower"]["sha256"], {k: v for k, v in record["settings"].items() if k not in free}
