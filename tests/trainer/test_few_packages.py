"""Trainer, GLIP and the GPU benchmarks run with the packages of a GPU machine and the few that are packed for it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.pack import PACKED
from tests.docs.test_dependencies import declared
from tests.trainer.small_run import overrides, write_data

pytestmark = pytest.mark.rest

ROOT = Path(__file__).resolve().parents[2]
LISTED = (ROOT / "benchmarks" / "gpu" / "installed.txt").read_text(encoding="utf-8").splitlines()
SCRIPTS = (
    *("step", "loss"),
    *(f"gpu.{name}" for name in ("all", "decode", "glip", "stages", "tests", "trainer_step")),
)
INSTALLED = [line for line in LISTED if not line.startswith("#")]
BLOCK = f"""
import re, sys
from importlib.metadata import distributions

HERE, DECLARED = {[*INSTALLED, *PACKED]!r}, {declared("models", "train")!r}

def normal(name):
    return re.sub("[-_.]+", "-", name).lower()

def names_of(item):  # of the modules at the top of a distribution
    return {{str(path).split("/")[0].removesuffix(".py").split(".")[0] for path in item.files or []}}

found = {{normal(item.metadata["Name"]): item for item in distributions()}}
needed, left = set(), list(HERE)
while left:  # with the packages that they need; what this project imports itself must be listed or packed
    name = left.pop()
    if name in found and name not in needed:
        needed.add(name)
        texts = [text for text in found[name].requires or [] if "extra ==" not in text]
        left += {{normal(re.match(r"[\\w.-]+", text)[0]) for text in texts}} - DECLARED
allowed = set().union(*(names_of(found[name]) for name in needed))
blocked = set().union(*(names_of(item) for name, item in found.items() if name not in needed)) - allowed
blocked -= sys.stdlib_module_names

class Only:  # finds nothing blocked, also for find_spec of importlib
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in blocked else self.finder.find_spec(name, path, target)

assert {{"ray", "spacy", "webdataset", "img2dataset", "duckdb", "resvg_py"}} <= blocked, blocked
sys.meta_path[:] = [Only(finder) for finder in sys.meta_path]
"""


def run_without(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process in which other packages cannot be imported."""
    command = [sys.executable, "-c", BLOCK + script, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


def test_training_runs(tmp_path: Path) -> None:
    write_data(tmp_path / "run")
    script = "from trainer.train import main\nsys.exit(main(sys.argv[1:]))"
    result = run_without(script, *overrides(tmp_path / "run", "steps=2", "optim.warmup_steps=0", "save.every=1"))
    assert result.returncode == 0, result.stderr[-3000:]
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


def test_glip_and_llmdet_ground_images(tmp_path: Path) -> None:
    script = "from benchmarks.gpu.stages import main\nmain()"
    arguments = ("--tiny", "--device", "cpu", "--rows", "2", "--out", str(tmp_path))
    result = run_without(script, *arguments)
    assert result.returncode == 0, result.stderr[-3000:]
    last = json.loads(result.stdout.splitlines()[-1])
    assert (last["name"], last["errors"]) == ("gpu_stages", 0)
    rows = json.loads((tmp_path / "stages.json").read_text(encoding="utf-8"))["cases"]
    stages = [(grounder, stage) for grounder in ("glip_t", "llmdet_t") for stage in ("ground", "score", "both")]
    assert [(row["grounder"], row["stage"]) for row in rows] == stages
    assert all(row["images_per_s"] > 0 and 0 < row["busy"] <= 1 and row["boxes_per_image"] > 0 for row in rows)


def test_the_tests_for_gpus_are_found() -> None:
    script = (
        "import pytest\nfrom benchmarks.gpu.tests import marked_files\n"
        "sys.exit(pytest.main(['--collect-only', '-m', 'gpu', *marked_files()]))"
    )
    result = run_without(script)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]


def test_benchmarks_start() -> None:
    lines = [
        f"import benchmarks.{name} as benchmark\nsys.argv = ['x', '--help']\n"
        f"try:\n    benchmark.main()\nexcept SystemExit as ended:\n    assert ended.code == 0\n"
        for name in SCRIPTS
    ]
    result = run_without("".join(lines))
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("usage:") == len(SCRIPTS)
