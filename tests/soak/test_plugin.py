"""Tests of the soak plugin in a temporary git repository."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pathlib
import pytest

def test_short(): pass

@pytest.mark.soak
def test_long(): pass

@pytest.mark.soak
def test_failing_until_fixed(soak_seed): assert pathlib.Path("fixed").exists()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A git repository with one ordinary test and two soak tests."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = soak: takes long\n")
    (tmp_path / "test_project.py").write_text(TESTS)
    (tmp_path / ".gitignore").write_text("out/\nfixed\n__pycache__/\n.pytest_cache/\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(project: Path, *arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=project, check=True)


def commit(project: Path) -> None:
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "state")


def run(project: Path, *arguments: str, seed: int = 0) -> dict[str, str]:
    """Run pytest in the project. Returns the outcome of each selected test."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.soak.plugin", "-p", "no:cacheprovider", "-rA", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SOAK_SEED": str(seed)}
    out = subprocess.run(command, cwd=project, capture_output=True, text=True, env=environment, check=False).stdout
    words = [line.split() for line in out.splitlines() if line.startswith(("PASSED", "FAILED"))]
    outcomes = {line[1].rpartition("::")[2]: line[0].lower() for line in words}
    return outcomes | ({"skipped": "passed before"} if "passed before at this commit" in out else {})


def record(project: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((project / "out" / "soak" / "passed.json").read_text())
    return rows


def test_soak_tests_run_only_with_the_soak_option(project: Path) -> None:
    assert run(project) == {"test_short": "passed"}
    assert run(project, "--soak") == {"test_long": "passed", "test_failing_until_fixed": "failed"}


def test_passed_soak_tests_are_skipped_in_the_next_run(project: Path) -> None:
    run(project, "--soak")
    assert [(row["test"], row["seed"]) for row in record(project)] == [("test_project.py::test_long", 0)]
    (project / "fixed").touch()
    assert run(project, "--soak") == {"test_failing_until_fixed": "passed", "skipped": "passed before"}
    assert len(record(project)) == 2


def test_another_seed_another_commit_and_the_fresh_option_run_passed_tests_again(project: Path) -> None:
    (project / "fixed").touch()
    both = {"test_long": "passed", "test_failing_until_fixed": "passed"}
    assert run(project, "--soak") == both
    assert run(project, "--soak", seed=1) == both
    (project / "new.py").write_text("")
    assert run(project, "--soak") == both  # an uncommitted file changes the version
    commit(project)
    assert run(project, "--soak") == both
    assert run(project, "--soak") == {"skipped": "passed before"}
    assert len(record(project)) == 8
    assert run(project, "--soak", "--fresh") == both
    assert len(record(project)) == 2
