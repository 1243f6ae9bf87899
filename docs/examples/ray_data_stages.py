"""Run the stages in Ray Data: python docs/examples/ray_data_stages.py input=pairs.parquet output=out/boxes"""

import sys

import pyarrow as pa
import ray.data

from pipeline import (
    Download,
    Ground,
    Parse,
    Score,
    clean_captions,
    load_config,
    plan_shards,
    read_shard,
    resolve_thresholds,
)

config = load_config(sys.argv[1:])
plans = plan_shards(config.input, config.rows_per_shard, config.limit, config.read)
thresholds = resolve_thresholds(config.score, config.ground.grounder)


def read(batch: pa.Table) -> pa.Table:
    """Read the rows of a shard."""
    return read_shard(plans[batch["id"][0].as_py()], config.read)


rows = ray.data.range(len(plans), override_num_blocks=len(plans)).map_batches(
    read, batch_size=1, batch_format="pyarrow"
)
stages = [
    (Download, (config.download,)), (clean_captions, config.captions), (Parse, (config.parse,)),
    (Ground, (config.ground,)), (Score, (config.score, thresholds)),
]  # fmt: skip
for stage, settings in stages:
    options = {"batch_size": 256, "batch_format": "pyarrow"}
    if isinstance(stage, type):  # a class loads its model once in each actor; give Ground and Score num_gpus=1 on GPUs
        options |= {"fn_constructor_args": settings, "compute": ray.data.ActorPoolStrategy(size=1), "num_cpus": 0.2}
    else:
        options |= {"fn_args": (settings,)}
    rows = rows.map_batches(stage, **options)
rows.write_parquet(config.output)
