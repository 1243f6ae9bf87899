"""The record of cached features in their folder. Does not import torch."""

from pathlib import Path
from typing import Any, cast

from hypergrit_common.errors import UserError
from hypergrit_common.json_file import read_object
from hypergrit_common.locations import Locations, split_locations
from schemas.features import RECORD_NAME, FeatureRecord


def read_record(folder: str) -> FeatureRecord:
    """Read what made the features in a folder. Raises UserError if it holds none."""
    if "://" in folder:
        raise UserError(f"{folder}: features are mapped into memory; copy them to a folder of this machine")
    try:
        record = read_object(Path(folder) / RECORD_NAME)
        settings = record["settings"]
        numbers = (record["n_samples"], settings["views"], settings["rows_per_shard"])
        if not all(type(n) is int and 0 < n < 1 << 48 for n in numbers) or type(record["training"]) is not dict:
            raise ValueError(f"{RECORD_NAME} has wrong values")
        return cast(FeatureRecord, record | {"tower": {**record["tower"], "sha256": str(record["tower"]["sha256"])}})
    except (OSError, ValueError, LookupError, TypeError) as error:
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
