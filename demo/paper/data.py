"""Data of the study: training and held-out shards that the pipeline writes from scenes, and the evaluation sets.

data/pairs/, data/shards/{train,held_out}/   as in demo.train_demo_data, with the formats train and grit
data/sets/                                   see demo.paper.sets
"""

import shutil
from pathlib import Path
from typing import Any

from demo.paper.sets import STYLE, write_sets
from demo.paper.sizes import Size
from demo.train_demo_data import JOB, ROOT, is_current, make_shards, record_settings, write_pairs
from demo.world.scenes import HELD_OUT_SEEDS, SHARD_SEEDS

FORMATS = "formats=[train,grit,arrow]"


def data_settings(size: Size) -> dict[str, Any]:
    """The settings that all data of a study depend on."""
    return shard_settings() | {
        "rows": [size.train_rows, size.held_out_rows],
        "pictures": size.pictures,
        "captioned": size.captioned,
        "pairs": size.pairs,
    }


def shard_settings() -> dict[str, Any]:
    """The settings that training and held-out shards share."""
    return {"job": (ROOT / JOB).read_text("utf-8"), "style": STYLE}


def make_data(folder: Path, size: Size) -> None:
    """Write what is missing, and replace what was written with other settings.

    Raises RuntimeError if the pipeline fails.
    """
    for name, n_rows, seeds in (
        ("train", size.train_rows, SHARD_SEEDS),
        ("held_out", size.held_out_rows, HELD_OUT_SEEDS),
    ):
        pairs, shards = folder / "pairs" / f"{name}.tar", folder / "shards" / name
        settings = shard_settings() | {"rows": n_rows, "seed": seeds[0]}
        if not is_current(pairs, settings):
            shutil.rmtree(shards, ignore_errors=True)
            write_pairs(pairs, n_rows, seeds, (STYLE,))
            record_settings(pairs, settings)
        if not is_current(shards, settings):
            make_shards(pairs, shards, FORMATS, f"ray.runner={size.runner}")
            record_settings(shards, settings)
    sets, record = folder / "sets", data_settings(size)
    if not is_current(sets, record):
        write_sets(sets, size, folder / "shards" / "held_out")
        record_settings(sets, record)
