"""Workers of jobs and retries whose driver was killed go on, while another command already has the output."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.lease import new_lease
from pipeline.config import RayConfig
from pipeline.faults import ShardError
from pipeline.run.loop import Runner
from pipeline.run.steps import Recipe
from tests.pipeline.commands.derive.rows import stats_of
from tests.pipeline.commands.retry.conftest import Finished
from tests.pipeline.commands.retry.jobs import retry, run_job
from tests.pipeline.here import compute_here
from tests.pipeline.jobs import hash_output
from tests.pipeline.stages.download.server import TinyWeb

LEASE = "_lease.json"


class KilledError(Exception):
    """The end of a killed driver."""


def slow_worker(output: Path, others: Callable[[], object], refused: list[Exception]) -> Runner:
    """A runner whose worker commits its first shard only when the driver was killed and `others` have run."""

    def compute(plans: Sequence[Any], config: RayConfig, recipe: Recipe) -> Iterator[Any]:
        if recipe.job is None:
            yield from compute_here(plans, config, recipe)
            return
        steps = recipe.make()
        computed = steps.infer(plans[0], *steps.prepare(plans[0]))
        (output / LEASE).unlink()  # as that of a killed driver, which is taken over
        others()
        before = hash_output(output)
        try:
            steps.write(plans[0], *computed)
        except (UserError, ShardError) as error:
            refused.append(error)
        assert hash_output(output) == before
        raise KilledError
        yield

    return compute


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("is_retry", [False, True])
def test_a_worker_of_a_killed_driver_leaves_the_shards_of_the_next_command_alone(
    output: Path,
    web: TinyWeb,
    finished_job: Finished,
    monkeypatch: pytest.MonkeyPatch,
    is_held: bool,
    is_retry: bool,
) -> None:
    refused = list[Exception]()

    def first() -> object:
        if is_retry:
            return retry(output)
        shutil.rmtree(output)
        return run_job(web, finished_job.folder, output)

    def others() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("pipeline.run.loop.compute_local", compute_here)
            patch.setattr("pipeline.run.progress._FOLLOWERS", [])  # without those of the killed driver
            if is_retry:
                assert retry(output) == retry(output) == 0
            else:
                assert run_job(web, finished_job.folder, output, "overwrite=true", "download.max_bytes=1000") == 0
        if is_held:
            (output / LEASE).write_bytes(new_lease())

    monkeypatch.setattr("pipeline.run.loop.compute_local", slow_worker(output, others, refused))
    with pytest.raises(KilledError):
        first()
    assert [type(error) for error in refused] == [UserError if is_held else ShardError]
    assert "nothing is written" in str(refused[0])
    rows = stats_of(output)["rows"]
    assert rows["read"] == 12 == rows["kept"] + sum(n for drops in rows["dropped"].values() for n in drops.values())
    if not is_retry:
        assert rows["dropped"]["download"]["too_many_bytes"] > 0
