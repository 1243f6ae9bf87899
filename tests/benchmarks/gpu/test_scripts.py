"""Each script runs to its end on a CPU with very small networks, and saves its results."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import all as every
from benchmarks.gpu import tests
from tests.patience import COMMAND_S

pytestmark = pytest.mark.rest

ROOT = Path(__file__).resolve().parents[3]
TEST = """
import pytest

def test_cpu_passes(): pass
def test_cpu_fails(): raise ValueError("cause of the failure")
@pytest.mark.skip(reason="not here")
def test_cpu_skips(): pass
def test_cuda(): raise AssertionError
"""


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, *arguments: str) -> dict[str, Any]:
    """Run a script in this process; return its results."""
    options = ["--tiny", "--device", "cpu", "--out", str(folder)]
    monkeypatch.setattr(sys, "argv", [name, *options, *arguments])
    importlib.import_module(f"benchmarks.gpu.{name}").main()
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return found


def test_trainer_step_measures_the_trainer_and_the_plain_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, tmp_path, "trainer_step", "--models", "hycoclip", "--batches", "8")
    _, ours, *others, plain = found["cases"]
    assert found["errors"] == 0
    assert [row["side"] for row in (ours, *others, plain)] == ["ours", "bf16_parameters", "eager", "plain"]
    assert 0 <= ours["data_wait_share"] <= 1
    assert ours["pairs_per_s_with_loader"] > 0
    # The plain form runs the last block of the image tower for all tokens, and images and boxes alone.
    assert 0.5 < (ours["tflop_s"] / ours["pairs_per_s"]) / (plain["tflop_s"] / plain["pairs_per_s"]) < 1
    assert (tmp_path / "trainer_step_hycoclip_8.json.gz").is_file()


def test_glip_measures_parts_and_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (_, row) = run(monkeypatch, tmp_path, "glip", "--batches", "1")["cases"]
    assert row["images_per_s"] > 0
    assert row["parts"].keys() == {"image_tower", "text_tower", "head"}
    assert 0.5 < sum(row["profile"]["kinds"].values()) < 1.001
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["name"], last["complete"], last["errors"]) == ("gpu_glip", True, 0)


def test_decode_compares_its_rate_with_that_of_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trainer_step.json").write_text(json.dumps({"cases": [{"side": "ours", "pairs_per_s": 100.0}]}))
    decoded, needed = run(monkeypatch, tmp_path, "decode", "--workers", "1")["cases"]
    assert needed["decoded_over_computed"] == pytest.approx(decoded["pairs_per_s"] / 100, rel=1e-3)


def test_all_gives_the_minutes_that_a_part_leaves_to_the_next_and_collects_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(every.PARTS, "tests", every.Part(0.1, "no_script"))
    found = run(monkeypatch, tmp_path, "all", "--parts", "tests", "decode", "--minutes", "4")
    assert (found["tests"]["cases"], found["tests"]["exit"]) == ([], 1)
    assert (found["decode"]["exit"], found["decode"]["errors"]) == (0, 0)
    printed = capfd.readouterr().out.splitlines()
    assert [x for x in printed if "at most" in x] == ["tests: 3.0 minutes at most", "decode: 4.0 minutes at most"]
    assert json.loads(printed[-1]) == {"name": "gpu_all", "parts": ["tests", "decode"], "without_results": ["tests"]}


def test_tests_reports_failures_with_their_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "test_example.py"
    path.write_text(TEST)
    found = run(monkeypatch, tmp_path, "tests", str(path))
    summary, failed, skipped = found["cases"]
    assert found["errors"] == 1
    assert (summary["passed"], summary["failed"], summary["skipped"]) == (1, 1, 1)
    assert failed["test"].endswith("test_cpu_fails")
    assert "cause of the failure" in failed["error"]
    assert "not here" in skipped["skipped"]


def test_tests_counts_in_its_log_if_pytest_was_killed(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("tests/a/test_b.py::test_c[cpu] PASSED [ 1%]\ntests/a/test_b.py::test_d FAILED [ 2%]\ntests/a/te")
    assert tests.read_log(log) == {"passed": 1, "failed": 1, "skipped": 0}
    log.write_text("ImportError: no module")
    with pytest.raises(ValueError, match="ran no test: ImportError"):
        tests.read_log(log)


def test_a_script_stops_at_its_time_and_saves_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, tmp_path, "glip", "--minutes", "0.001")
    assert not found["complete"]
    assert sum("error" not in row for row in found["cases"]) < 2
    assert all(row["error"] == "out of time" for row in found["cases"] if "error" in row)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["tests", "trainer_step", "glip", "stages", "decode"])
def test_a_script_runs_in_a_process_of_its_own(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.gpu.{name}", "--tiny", "--device", "cpu", "--out", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=COMMAND_S)
    assert result.returncode == 0, result.stderr[-3000:]
    last = json.loads(result.stdout.splitlines()[-1])
    assert (last["complete"], last["errors"]) == (True, 0)
    assert len(list(tmp_path.iterdir())) <= 8
