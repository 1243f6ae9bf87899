"""The benchmark of grounders runs on a CPU with very small networks."""

import json
import sys

import pytest

from benchmarks import glip_throughput


def test_each_network_and_the_stage_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--device", "cpu", "--tiny", "--batch-sizes", "1"])
    glip_throughput.main()
    *networks, waiting = map(json.loads, capsys.readouterr().out.splitlines())
    assert {row["network"] for row in networks} == {"glip_t", "grounding_dino_tiny"}
    assert waiting["name"] == "glip_waiting"
    assert waiting["images_per_s"] > 0
