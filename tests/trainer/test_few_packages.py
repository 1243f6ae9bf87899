"""Trainer, GLIP and the GPU benchmarks run without the packages that only the pipeline needs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.small_run import overrides, write_data

ROOT = Path(__file__).resolve().parents[2]
BLOCK = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"ray", "spacy", "open_clip", "webdataset", "img2dataset"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def run_without(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process in which these packages cannot be imported."""
    command = [sys.executable, "-c", BLOCK + script, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


def test_training_runs(tmp_path: Path) -> None:
    write_data(tmp_path / "run")
    script = "from trainer.train import main\nsys.exit(main(sys.argv[1:]))"
    result = run_without(script, *overrides(tmp_path / "run", "steps=2", "optim.warmup_steps=0", "save.every=1"))
    assert result.returncode == 0, result.stderr[-3000:]
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


def test_glip_grounds_images_and_its_benchmark_runs() -> None:
    script = "from benchmarks.glip_throughput import main\nsys.argv = ['x', '--device', 'cpu', *sys.argv[1:]]\nmain()"
    result = run_without(script, "--tiny", "--batch-sizes", "1")
    assert result.returncode == 0, result.stderr[-3000:]
    waiting = json.loads(result.stdout.splitlines()[-1])
    assert waiting["name"] == "glip_waiting"
    assert waiting["images_per_s"] > 0


@pytest.mark.parametrize("name", ["step", "loss", "glip_throughput", "train_throughput", "evaluate"])
def test_benchmarks_start(name: str) -> None:
    script = f"import benchmarks.{name} as benchmark\nsys.argv = ['x', '--help']\nbenchmark.main()"
    result = run_without(script)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "usage" in result.stdout
