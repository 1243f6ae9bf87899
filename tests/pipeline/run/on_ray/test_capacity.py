"""The workers of a job on clusters of several kinds."""

from typing import Any

import pytest
import ray

from pipeline.config import PipelineConfig, load_config
from pipeline.run.ray_workers import cluster_capacity


def capacity(monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, float]], *arguments: str) -> tuple[float, ...]:
    found: list[dict[str, Any]] = [{"NodeID": str(i), "Alive": True, "Resources": node} for i, node in enumerate(nodes)]
    monkeypatch.setattr(ray, "nodes", lambda: found)
    config: PipelineConfig = load_config(["input=a.csv", "output=out", *arguments])
    result = cluster_capacity(config)
    return result.cpus, result.tasks, result.models, result.gpus_per_model


@pytest.mark.parametrize(
    ("nodes", "arguments", "expected"),
    [
        ([{"CPU": 8}], [], (8, 16, 8, 0)),
        ([{"CPU": 8}, {"CPU": 16, "GPU": 4}], [], (24, 24, 4, 1)),
        ([{"CPU": 16, "GPU": 4}], ["ray.gpus_per_model_worker=0.5"], (16, 16, 8, 0.5)),
        ([{"CPU": 16, "GPU": 4}], ["ray.gpus_per_model_worker=0"], (16, 32, 16, 0)),
        ([{"CPU": 16, "GPU": 4}], ["ray.cpu_workers=3", "ray.model_workers=2"], (16, 3, 2, 1)),
        ([{"CPU": 1}], [], (1, 2, 1, 0)),
        ([], [], (0, 0, 1, 0)),
    ],
)
def test_workers_follow_from_the_nodes_and_the_limits(
    monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, float]], arguments: list[str], expected: tuple[float, ...]
) -> None:
    assert capacity(monkeypatch, nodes, *arguments) == expected
