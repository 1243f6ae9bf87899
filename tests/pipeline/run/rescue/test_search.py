"""The search for faulty rows: its time limits."""

import time
from functools import partial
from pathlib import Path

from pipeline.config import load_config
from pipeline.read.plan import plan_shards
from pipeline.run.local import Rescue
from pipeline.run.provenance import make_provenance
from pipeline.stages.stage import TableFunction
from tests.pipeline.poison import LightSteps

LOAD_S = 4.0


class SlowToLoad(LightSteps):
    """Steps of which the third stage takes LOAD_S to load."""

    def make_inner(self, name: str) -> TableFunction:
        time.sleep(LOAD_S * (name == "captions"))
        return super().make_inner(name)


def test_the_time_limit_does_not_include_the_loading_of_a_later_stage(tars: Path, tmp_path: Path) -> None:
    config = load_config([f"input={tars}", f"output={tmp_path / 'out'}", "rows_per_shard=4"])
    plan, *_ = plan_shards(config.input, config.rows_per_shard, config.limit, config.read)
    make_steps = partial(SlowToLoad, config, make_provenance(config), ())
    table, _ = Rescue(make_steps, LOAD_S / 2, None).run("prepare", plan)
    assert table.num_rows == 4
