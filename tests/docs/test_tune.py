"""A trial of docs/examples/tune.py trains and reports its evaluation."""

import runpy
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.trainer.small_run import overrides, write_data

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "tune.py"


def test_a_trial_trains_with_its_settings_and_reports_its_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr(tune, "report", reports.append)
    write_data(tmp_path / "run")
    arguments = overrides(tmp_path / "run", "steps=3", f"evaluation.shards={tmp_path / 'shards'}")
    runpy.run_path(str(EXAMPLE))["trial"]({"lr": 0.001, "optim.weight_decay": 0.1}, arguments, str(tmp_path))
    assert "lr: 0.001" in (tmp_path / "lr=0.001-optim.weight_decay=0.1" / "config.yaml").read_text()
    (results,) = reports
    assert 0 <= results["retrieval/text_to_image/recall@1"] <= 1
