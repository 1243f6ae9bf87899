"""Shards without answers are computed again, at most `ray.retries` times; those that count in the end have the same bytes."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import PipelineConfig, load_config
from pipeline.read.plan import plan_shards
from pipeline.read.types import ShardPlan
from pipeline.run import attempts
from pipeline.run.attempts import Breaker
from pipeline.run.job import Shards, run_job
from pipeline.run.local import compute_local
from pipeline.run.progress import Follower, followed_by
from pipeline.run.steps import Notes, Recipe
from tests.pipeline.jobs import hash_output
from tests.pipeline.run.downloads import N_ROWS, DownloadingSteps, Switch, downloading_steps, make_rows

N_SHARDS = 3


def is_put_off(judge: Breaker, index: int, n_rows: int, n_unanswered: int) -> bool:
    return judge.pause_s(ShardPlan(index, 0, n_rows, ()), Notes({}, asked=n_rows, unanswered=n_unanswered)) > 0


def test_a_shard_is_compared_with_those_before_it() -> None:
    judge = Breaker(retries=9)
    assert not is_put_off(judge, 0, 19, 19)  # too few rows to tell
    judge = Breaker(retries=9)
    assert is_put_off(judge, 0, 100, 100)
    assert not is_put_off(judge, 1, 100, 99)  # nothing to compare it with
    assert not is_put_off(judge, 2, 900, 10)
    assert is_put_off(judge, 3, 100, 56)  # a tenth is usual
    assert not is_put_off(judge, 4, 100, 55)


def test_a_result_counts_after_the_retries_and_for_the_shards_after_it() -> None:
    judge = Breaker(retries=2)
    assert [is_put_off(judge, 0, 100, 100) for _ in range(3)] == [True, True, False]
    assert not any(is_put_off(judge, index, 100, 100) for index in range(1, 9))


def test_worse_rows_after_many_good_ones_put_off_only_the_first_shards() -> None:
    judge = Breaker(retries=1)
    assert not any(is_put_off(judge, index, 100, 5) for index in range(1000))
    put_off = [is_put_off(judge, index, 100, 60) for index in range(1000, 1020) for _ in range(2)]
    assert put_off == [True, False] * 4 + [False] * 32


def test_the_host_is_named_if_all_rows_without_an_answer_are_of_one(caplog: pytest.LogCaptureFixture) -> None:
    notes = Notes({}, asked=50, unanswered=50, host="dead.test") + Notes({})
    Breaker(retries=1).pause_s(ShardPlan(0, 0, 50, ()), notes)
    assert "they are all of dead.test, which may be down" in caplog.text
    caplog.clear()
    Breaker(retries=1).pause_s(ShardPlan(0, 0, 50, ()), Notes({}, asked=50, unanswered=50))
    assert " s: check the network of this machine" in caplog.text


def test_the_pause_doubles() -> None:
    judge, notes = Breaker(retries=3), Notes({}, asked=50, unanswered=50)
    pauses = [judge.pause_s(ShardPlan(0, 0, 50, ()), notes) / attempts.PAUSE_S for _ in range(3)]
    assert pauses == [1, 2, 4]


def test_shards_that_ask_no_host_are_not_judged() -> None:
    assert Breaker(retries=1).pause_s(ShardPlan(0, 0, 50, ()), Notes({}, unanswered=0)) == 0


class Watch(Follower):
    """Counts the beginnings of `prepare`, and calls `put_off(number of losses)` when a shard is put off."""

    def __init__(self, put_off: Callable[[int], object] = lambda n: None) -> None:
        self.begun_shards, self.n_put_off, self.put_off = Counter[int](), 0, put_off

    def begun(self, index: int, step: str, n_rows: int) -> None:
        self.begun_shards[index] += step == "prepare"

    def lost(self, index: int) -> None:
        self.n_put_off += 1
        self.put_off(self.n_put_off)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "PAUSE_S", 0.01)


@pytest.fixture
def web() -> Iterator[Switch]:
    with Switch() as switch:
        yield switch


@pytest.fixture
def job(web: Switch, tmp_path: Path) -> Callable[..., PipelineConfig]:
    """Makes the configuration of a job with three shards on a server that is down."""
    rows = make_rows(tmp_path / "rows.jsonl", web.port, N_SHARDS)

    def make(name: str, *arguments: str) -> PipelineConfig:
        return load_config([f"input={rows}", f"output={tmp_path / name}", *downloads(), *arguments])

    return make


def downloads() -> tuple[str, ...]:
    host = "download.allowed_private_hosts=[127.0.0.1]"
    return (host, "download.retries=0", f"rows_per_shard={N_ROWS}", "formats=[arrow]", "ray.runner=local", "quiet=true")


def compute(config: PipelineConfig, watch: Watch) -> list[Any]:
    plans = plan_shards(config.input, config.rows_per_shard, config.limit, config.read)
    with followed_by(watch):
        return list(compute_local(plans, config.ray, Recipe(downloading_steps(config), config)))


def test_a_server_that_is_down_for_a_while_costs_no_row_and_changes_no_byte(
    web: Switch, job: Callable[..., PipelineConfig], tmp_path: Path
) -> None:
    watch = Watch(lambda n: n == 2 and web.start())
    assert [result.manifest["counts"]["kept"] for result in compute(job("later"), watch)] == [N_ROWS] * N_SHARDS
    assert watch.n_put_off == 2
    plain = Watch()
    compute(job("plain"), plain)
    assert plain.begun_shards == dict.fromkeys(range(N_SHARDS), 1)
    assert hash_output(tmp_path / "later") == hash_output(tmp_path / "plain")


def test_a_job_whose_hosts_are_all_dead_ends_with_its_rows_counted_as_dropped(
    job: Callable[..., PipelineConfig],
) -> None:
    watch = Watch()
    found = {result.manifest["shard"]: result.manifest["counts"] for result in compute(job("out"), watch)}
    dead = {"read": N_ROWS, "kept": 0, "dropped": {"download": {"connection_error": N_ROWS}}}
    assert found == dict.fromkeys(range(N_SHARDS), dead)
    assert max(watch.begun_shards.values()) == 3
    assert [result.manifest["counts"] for result in compute(job("at once", "ray.retries=0"), Watch())] == [
        dead
    ] * N_SHARDS


def test_a_killed_job_has_not_kept_a_shard_that_was_put_off(
    web: Switch, job: Callable[..., PipelineConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Shards.finish

    def with_light_steps(shards: Shards, plans: Any) -> None:
        shards.make = partial(DownloadingSteps, poisons=())
        finish(shards, plans)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Shards, "finish", with_light_steps)
    with followed_by(Watch(interrupt)), pytest.raises(KeyboardInterrupt):
        run_job(job("out"))
    assert not list((tmp_path / "out" / "_manifests").glob("*.json"))
    web.start()
    assert run_job(job("out")).n_kept == N_ROWS * N_SHARDS
    assert json.loads((tmp_path / "out" / "stats.json").read_text())["rows"]["dropped"] == {}
    assert run_job(job("plain")).n_failures == 0
    assert hash_output(tmp_path / "out") == hash_output(tmp_path / "plain")
