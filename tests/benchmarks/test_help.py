"""The help of every benchmark."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if "def main(" in path.read_text())


@pytest.mark.rest
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_prints_its_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{name}").main()
    assert not ended.value.code
    assert f"usage: {name}.py" in capsys.readouterr().out
