"""The predictions on samples of known populations: values, intervals, and what they depend on."""

import dataclasses
from random import Random

import pyarrow as pa
import pytest

from hypergrit_common.text import duration_text
from pipeline.commands.dry_run import Job, Measured, Prediction, predict, prediction_lines
from pipeline.run.progress import DOWNLOAD_CPU, Capacity, local_capacity
from schemas.manifest import Timings

TAR = "train/NNNNN.tar"
N_SHARDS = 4


def measured(rng: Random, n: int, kept_share: float, requests: bool = True, n_hosts: int = 50) -> Measured:
    """A sample shard: kept rows with 10,000 bytes on average, or rows that `download` dropped."""
    is_kept = [rng.random() < kept_share for _ in range(n)]
    rows = pa.table(
        {
            "key": [f"{i}" for i in range(n)],
            "status": ["kept" if kept else "dropped" for kept in is_kept],
            "stage": pa.array([None if kept else "download" for kept in is_kept], pa.string()),
            "reason": pa.array([None if kept else "http_error" for kept in is_kept], pa.string()),
            "requests": [float(requests) for _ in range(n)],
            "seconds": [rng.uniform(0.1, 0.3) for _ in range(n)],
            "busy": [rng.uniform(0.1, 0.3) for _ in range(n)],
            "host": [f"host{i % n_hosts}" for i in range(n)],
            f"bytes {TAR}": [rng.gauss(10_000, 2_000) if kept else 0.0 for kept in is_kept],
        }
    )
    n_kept = sum(is_kept)
    timings: Timings = {
        "download": {"seconds": 0.3, "rows": float(n)},
        DOWNLOAD_CPU: {"seconds": 0.001 * n, "rows": float(n)},
        "ground": {"seconds": 0.5 * n_kept * rng.uniform(0.9, 1.1), "rows": float(n_kept)},
        "score": {"seconds": 0.1 * n_kept, "rows": float(n_kept)},
        "write": {"seconds": 0.01 * n_kept, "rows": float(n_kept)},
    }
    return Measured({"shard": 0}, (), rows, rows, timings, {TAR: 1024})  # type: ignore[typeddict-item]


def job(n_rows: int = 100_000, capacity: Capacity | None = None) -> Job:
    return Job(
        n_rows=n_rows,
        n_shards=n_rows // 1000,
        capacity=capacity or local_capacity(),
        concurrency=64,
        host_concurrency=16,
        read_rates=[0.0001],
    )


def sample(
    seed: int, n: int = 200, kept_share: float = 0.7, requests: bool = True, n_hosts: int = 50
) -> list[Measured]:
    rng = Random(seed)
    return [measured(rng, n // N_SHARDS, kept_share, requests, n_hosts) for _ in range(N_SHARDS)]


def test_intervals_hold_the_truth_in_nearly_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.commands.dry_run.N_DRAWS", 100)
    n_right = {"kept": 0, "bytes": 0}
    for seed in range(40):
        found = predict(sample(seed), job())
        n_right["kept"] += found.kept.low <= 70_000 <= found.kept.high
        n_right["bytes"] += found.n_bytes[TAR].low <= 70_000 * 10_000 + 100 * 1024 <= found.n_bytes[TAR].high
    assert n_right["kept"] >= 35
    assert n_right["bytes"] >= 35


def test_a_larger_sample_has_narrower_intervals() -> None:
    small, large = (predict(sample(0, n), job()) for n in (80, 2000))
    for name in ("kept", "hours", "model_hours"):
        (_, low, high), (_, lower, higher) = getattr(large, name), getattr(small, name)
        assert high - low < 0.6 * (higher - lower)


def test_a_sample_of_all_rows_leaves_no_doubt_about_the_rows() -> None:
    samples = [
        dataclasses.replace(shard, sizes={TAR: 5_000}) for shard in sample(0, 2000)
    ]  # of the files, as they were written
    found = predict(samples, job(2000))
    n_kept = sum(shard.rows["status"].to_pylist().count("kept") for shard in samples)
    assert found.kept == pytest.approx((n_kept,) * 3)
    assert found.n_bytes[TAR] == pytest.approx((5_000 * len(samples),) * 3)
    assert found.requests == pytest.approx((2000,) * 3)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_no_row_and_every_row_kept_leave_doubt(share: float) -> None:
    found = predict(sample(0, kept_share=share), job())
    assert found.kept.value == 100_000 * share
    assert 1000 < found.kept.high - found.kept.low < 5000


def test_model_hours_are_the_time_of_the_kept_rows_in_the_models() -> None:
    found = predict(sample(0, 2000), job())
    assert found.model_hours.value == pytest.approx(70_000 * 0.6 / 3600, rel=0.06)
    assert found.model_hours.low < found.model_hours.value < found.model_hours.high


def test_the_requests_to_one_host_take_their_time_however_many_workers_there_are() -> None:
    cluster = Capacity(description="", cpus=1000, tasks=1000, models=1000, gpus_per_model=1)
    many, one = (predict(sample(0, n_hosts=n), job(capacity=cluster)).hours.value for n in (50, 1))
    assert one == pytest.approx(100_000 * 0.2 / 16 / 3600, rel=0.1)
    assert many < 0.5 * one


def test_a_full_shard_waits_for_its_slowest_row_or_for_its_turns() -> None:
    seconds = predict(sample(0), job()).stage_seconds["download"]
    assert seconds == pytest.approx(100 * 1000 * 0.2 / 64, rel=0.1)  # not 100 * 20 * 0.3 s
    without = predict(sample(0, requests=False), job())
    assert without.stage_seconds["download"] == pytest.approx(4 * 0.3 * 100_000 / 200)
    assert without.requests == (0, 0, 0)


SECONDS = {DOWNLOAD_CPU: 50.0, "read": 10.0, "download": 400.0, "ground": 900.0, "score": 100.0, "write": 90.0}


@pytest.mark.parametrize(
    ("capacity", "n_shards", "expected"),
    [
        (local_capacity(), 100, 1500),
        (Capacity(description="", cpus=16, tasks=16, models=2, gpus_per_model=1), 100, 500),
        (Capacity(description="", cpus=1, tasks=1, models=64, gpus_per_model=1), 100, 500),
        (Capacity(description="", cpus=4, tasks=8, models=4), 100, 1150 / 4),
        (Capacity(description="", cpus=64, tasks=64, models=64, gpus_per_model=1), 2, 750),
    ],
)
def test_the_busiest_resource_decides_the_hours(capacity: Capacity, n_shards: int, expected: float) -> None:
    assert capacity.wall_seconds(SECONDS, n_shards, ("ground", "score")) == pytest.approx(expected)


def test_the_text_names_every_figure_with_its_interval_and_the_reasons() -> None:
    gpu = Capacity(description="a cluster with 8 CPUs and 2 GPUs", cpus=8, tasks=8, models=4, gpus_per_model=0.5)
    plan = job(capacity=gpu)
    found: Prediction = predict(sample(0), plan)
    text = "\n".join(prediction_lines(found, plan, 120, 1234.0))
    assert "sample: 200 of 100,000 rows in 100 shards (seed 0); 20 of 120 are finished already" in text
    assert "download: http_error" in text
    assert "a cluster with 8 CPUs and 2 GPUs" in text
    assert f"{duration_text(1800 * found.model_hours.value)}  [" in text
    for name in ("rows kept", "bytes of train/", "duration", "GPU time", "requests to hosts"):
        (line,) = [line for line in text.splitlines() if line.startswith(name)]
        assert "[" in line
    assert "1,234" in text
