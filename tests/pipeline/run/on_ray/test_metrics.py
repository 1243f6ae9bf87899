"""The metrics of a job, from its events."""

from typing import Any, ClassVar

import pytest

from pipeline.output.manifest import failed_shard
from pipeline.run import ray as module
from pipeline.run.ray import Metrics
from pipeline.run.steps import Done, Failed
from tests.pipeline.output.write.shards import plan


class Recorder:
    """Stands for a metric of Ray: a cluster exports them after ten seconds."""

    found: ClassVar[dict[tuple[str, ...], float]] = {}

    def __init__(self, name: str, description: str = "", tag_keys: tuple[str, ...] = ()) -> None:
        assert description
        self.name, self.tag_keys = name, tag_keys

    def inc(self, n: float, tags: dict[str, str]) -> None:
        assert n > 0
        assert tuple(tags) == self.tag_keys
        key = (self.name, *tags.values())
        self.found[key] = self.found.get(key, 0) + n

    def set(self, value: float) -> None:
        self.found[self.name,] = value


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, ...], float]:
    values: dict[tuple[str, ...], float] = {}
    monkeypatch.setattr(Recorder, "found", values)
    for name in ("Counter", "Gauge"):
        monkeypatch.setattr(module, name, Recorder)
    return values


def test_rows_drops_rates_and_busy_shares_are_those_of_the_events(found: dict[tuple[str, ...], float]) -> None:
    now = 0.0
    metrics = Metrics(clock=lambda: now)
    for index in range(3):
        for step in ("prepare", "infer"):
            metrics.begun(index, step, 4)
            metrics.ended(index, step, 1.0)
    for n_busy in (2, 1, 0):
        now += 10
        metrics.models(2, n_busy)
    assert found["hypergrit_model_busy_share",] == 0.5
    assert found["hypergrit_images_per_second",] == pytest.approx(12 / 30)
    manifest: Any = {"shard": 0, "counts": {"read": 4, "kept": 3, "dropped": {"download": {"timeout": 1}}}}
    metrics.finished(Done(manifest, ()))
    metrics.finished(Failed(failed_shard(plan(1, 4), "write", "x", "", 1)))
    now += 30
    metrics.models(0, 0)
    assert found == {
        ("hypergrit_step_rows", "prepare"): 12,
        ("hypergrit_step_rows", "infer"): 12,
        ("hypergrit_shards", "finished"): 1,
        ("hypergrit_shards", "failed"): 1,
        ("hypergrit_rows", "kept"): 3,
        ("hypergrit_rows", "dropped"): 1,
        ("hypergrit_rows", "unfinished"): 4,
        ("hypergrit_dropped_rows", "download", "timeout"): 1,
        ("hypergrit_model_workers",): 0,
        ("hypergrit_images_per_second",): 0,
        ("hypergrit_model_busy_share",): 0,
    }
