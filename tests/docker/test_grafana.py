"""docker/grafana.json shows the metrics that a job exports, and no others."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.run import ray as module

FILE = Path(__file__).resolve().parents[2] / "docker" / "grafana.json"


class Recorder:
    """Stands for a metric of Ray: keeps its name as Ray exports it, with its labels."""

    found: dict[str, tuple[str, ...]]

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...] = ()) -> None:
        self.found[f"ray_{name}{self.suffix}"] = tag_keys

    suffix = ""


class RecordedCounter(Recorder):
    suffix = "_total"


def test_the_dashboard_shows_every_metric_of_a_job_with_its_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "found", {}, raising=False)
    monkeypatch.setattr(module, "Counter", RecordedCounter)
    monkeypatch.setattr(module, "Gauge", Recorder)
    module.Metrics()
    panels: list[dict[str, Any]] = json.loads(FILE.read_text())["panels"]
    shown = dict[str, tuple[str, ...]]()
    for target in (target for panel in panels for target in panel["targets"]):
        (name,) = re.findall(r"ray_\w+", target["expr"])
        labels = re.findall(r"by \((.*?)\)", target["expr"])
        shown[name] = tuple(labels[0].split(", ")) if labels else ()
        assert re.findall(r"{{(\w+)}}", target["legendFormat"]) == [*shown[name]]
    assert shown == Recorder.found
    assert len({panel["id"] for panel in panels}) == len(panels)
