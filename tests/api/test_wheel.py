"""The wheel: it holds the packages and the miniature models, and works outside the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.rest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("schemas", "hypergrit", "hypergrit_common", "pipeline", "trainer", "demo/weights")


def build(folder: Path) -> Path:
    """Build the wheel from a copy of the sources: setuptools writes into its source tree."""
    source = folder / "source"
    for name in (*PACKAGES, "pyproject.toml", "README.md", "LICENSE"):
        target = source / name
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__", "state.*", "metrics.jsonl")
            )
        else:
            shutil.copy(ROOT / name, target)
    command = [sys.executable, "-m", "pip", "wheel", str(source), "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, "--wheel-dir", str(folder)], check=True, env={**os.environ, "PIP_NO_INDEX": "1"})
    (wheel,) = folder.glob("hypergrit-*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site-packages of a fresh environment, with the wheel and access to the packages of this one.

    pip checks the requirements of the wheel against the packages of this environment and downloads nothing.
    """
    folder = tmp_path_factory.mktemp("wheel")
    venv.create(folder / "environment", with_pip=True)
    (site,) = (folder / "environment").glob("lib/python*/site-packages")
    (site / "locked.pth").write_text(sysconfig.get_path("purelib"))
    pip = [folder / "environment/bin/python", "-m", "pip"]
    subprocess.run([*pip, "uninstall", "--quiet", "--yes", "setuptools"], check=True)  # older than torch requires
    subprocess.run([*pip, "install", "--no-index", "--quiet", build(folder)], check=True)
    return site


def test_the_wheel_holds_the_packages_and_the_miniature_models(installed: Path) -> None:
    names = {path.relative_to(installed).as_posix() for path in installed.rglob("*")}
    assert {
        "trainer/inference/model.py",
        "pipeline/report/template.html",
        "schemas/rows.py",
        "hypergrit_common/config.py",
    } <= names
    assert {f"demo/weights/{model}/model.safetensors" for model in ("clip", "glip")} <= names
    assert not any(name.startswith(("tests", "benchmarks", "docs", "jobs", "demo/weights/hycoclip")) for name in names)


def run(code: str, installed: Path, folder: Path) -> str:
    """The output of Python code, run in `folder` with the installed packages and without the checkout."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [installed.parents[2] / "bin/python", "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_of_the_readme_runs_with_the_wheel_from_another_folder(installed: Path, tmp_path: Path) -> None:
    from tests.docs.test_readme import prepare, python_example

    prepare(tmp_path)
    code = f"import trainer; assert trainer.__file__.startswith({str(installed)!r}), trainer.__file__\n"
    printed = run(code + python_example("README.md"), installed, tmp_path)
    assert printed.count("tensor(") == 3


def test_the_pipeline_runs_with_the_wheel_from_another_folder(installed: Path, tmp_path: Path) -> None:
    code = """
import sys
from pipeline.run.provenance import hypergrit_version
from pipeline.stages.ground.load import grounder_path
from pipeline.stages.score.filters import scorer_path
from pathlib import Path
print(hypergrit_version(), Path(grounder_path("miniature")).is_dir(), Path(scorer_path("miniature")).is_dir())
from pipeline.grit import main
sys.exit(main(["input=nothing.parquet", "output=out", "ray.runner=local"]) - 2)
"""
    assert run(code, installed, tmp_path).split()[1:3] == ["True", "True"]
