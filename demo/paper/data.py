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


def make_data(folder: Path, size: Size) -> dict[str, Any]:
    """Write what is missing, and replace what was written with other settings. Return the settings.

    Raises RuntimeError if the pipeline fails.
    """
    record: dict[str, Any] = {"job": (ROOT / JOB).read_text("utf-8"), "style": STYLE}
    for name, n_rows, seeds in (
        ("train", size.train_rows, SHARD_SEEDS),
        ("held_out", size.held_out_rows, HELD_OUT_SEEDS),
    ):
        pairs, shards = folder / "pairs" / f"{name}.tar", folder / "shards" / name
        settings = {**record, "rows": n_rows, "seed": seeds[0]}
        if not is_current(pairs, settings):
            shutil.rmtree(shards, ignore_errors=True)
            write_pairs(pairs, n_rows, seeds, (STYLE,))
            record_settings(pairs, settings)
        if not is_current(shards, settings):
            make_shards(pairs, shards, FORMATS, f"ray.runner={size.runner}")
            record_settings(shards, settings)
    sets = folder / "sets"
    record |= {"rows": [size.train_rows, size.held_out_rows]}
    record |= {"pictures": size.pictures, "captioned": size.captioned, "pairs": size.pairs}
    if not is_current(sets, record):
        write_sets(sets, size, folder / "shards" / "held_out")
        record_settings(sets, record)
    return record
