"""Shards that workers report as finished although they are not in the output."""

import dataclasses
import errno
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from pipeline import grit
from pipeline.config import load_config
from pipeline.faults import ShardError
from pipeline.output import commit as staging
from pipeline.output.store import Store
from pipeline.read.types import ShardPlan
from pipeline.run.job import check_rows
from pipeline.run.steps import Done, Recipe, Steps
from tests.pipeline.here import compute_here
from tests.pipeline.output.write.shards import PROVENANCE, plan, table
from tests.pipeline.poison import light_steps


@pytest.mark.parametrize("n_lost", [1, 2])
def test_a_shard_written_where_the_output_is_not_mounted_is_computed_again_and_fails_the_second_time(
    tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, n_lost: int
) -> None:
    lost: list[int] = []

    def compute(plans: list[ShardPlan], _: object, recipe: Recipe) -> Iterator[Done]:
        config = recipe.job
        assert config is not None
        for shard in plans:
            is_lost = shard.index == 1 and len(lost) < n_lost
            lost.extend([1] * is_lost)
            folder = str(tmp_path / "local") if is_lost else config.output
            make = light_steps(dataclasses.replace(config, output=folder))
            (done,) = compute_here([shard], config.ray, Recipe(make, config))
            assert done.host
            yield dataclasses.replace(done, host="node7")

    monkeypatch.setattr("pipeline.run.loop.compute_local", compute)
    output = tmp_path / "out"
    arguments = [f"input={tars}", f"output={output}", "rows_per_shard=4", "ray.runner=local", "formats=[arrow]"]
    assert grit.main(arguments) == (3 if n_lost == 2 else 0)
    assert "1 shard missing in the output" in caplog.text
    assert "node7 (1)" in caplog.text
    rows = json.loads((output / "stats.json").read_text())["rows"]
    assert (
        rows["read"]
        == rows["kept"] + sum(map(sum, [r.values() for r in rows["dropped"].values()])) + rows["unfinished"]
    )
    assert rows["unfinished"] == (4 if n_lost == 2 else 0)
    if n_lost == 2:
        failed = json.loads((output / "_failed" / "00001.json").read_text())
        assert "written on node7, but not in the output" in failed["error"]
        assert grit.main(arguments) == 0
    assert len(list((output / "_manifests").glob("*.json"))) == 3


def test_a_report_with_other_rows_than_planned_ends_the_job(tmp_path: Path) -> None:
    stats = {"rows": {"read": 7, "kept": 7, "dropped": {}, "unfinished": 0}}
    with pytest.raises(UserError, match="accounts for 7 rows, but 8 were planned"):
        check_rows(stats, [plan(0), plan(1)], Store(str(tmp_path)))  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_full_temporary_disk_fails_the_rehearsal_of_a_shard_and_not_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    class Full(staging.HashedFile):
        def write(self, data: object, /) -> int:
            raise OSError(number, "refused")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    config = load_config([f"input={tmp_path}", f"output={tmp_path / 'out'}"])
    monkeypatch.setattr(staging, "HashedFile", Full)
    with pytest.raises(ShardError, match="folder for temporary files"):
        Steps(config, PROVENANCE).rehearse(plan(), table())  # type: ignore[arg-type]
