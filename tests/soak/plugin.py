"""Pytest plugin for soak tests: `make soak` runs the tests marked `soak`, `make test` deselects them.

Passed soak tests are recorded in out/soak/passed.json with the commit and the seed. The next run with the same commit
and seed skips them, so an interrupted soak resumes. `--fresh` deletes the record.
"""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from hypergrit_common.disk import atomic_write

RECORD = Path("out/soak/passed.json")  # below the root of the repository


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("soak")
    group.addoption("--soak", action="store_true", help="run the tests marked `soak` instead of the others")
    group.addoption("--fresh", action="store_true", help="with --soak: also run the soak tests that passed before")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--soak"):
        config.pluginmanager.register(PassedTests(config), "passed-soak-tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the soak tests if `--soak` is given, otherwise all other tests."""
    groups: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        is_soak = item.get_closest_marker("soak") is not None
        groups[is_soak == config.getoption("--soak")].append(item)
    config.hook.pytest_deselected(items=groups[False])
    items[:] = groups[True]


@pytest.fixture(scope="session")
def soak_seed() -> int:
    """The seed of the soak tests."""
    return seed()


def seed() -> int:
    """Return SOAK_SEED; 0 if it is not set."""
    return int(os.environ.get("SOAK_SEED", "0"))


class PassedTests:
    """Records passed soak tests and skips them in later runs."""

    def __init__(self, config: pytest.Config) -> None:
        self.path = config.rootpath / RECORD
        self.commit = describe_commit(config.rootpath)
        self.is_worker = hasattr(config, "workerinput")  # of pytest-xdist; only its controller writes the record
        self.not_passed: set[str] = set()
        if config.getoption("--fresh") and not self.is_worker:
            self.path.unlink(missing_ok=True)

    def read(self) -> list[dict[str, str | int]]:
        """Return the recorded passes."""
        rows: list[dict[str, str | int]] = json.loads(self.path.read_text("utf-8")) if self.path.is_file() else []
        return rows

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Skip the tests that passed before at this commit with this seed."""
        passed = {row["test"] for row in self.read() if (row["commit"], row["seed"]) == (self.commit, seed())}
        reason = f"passed before at this commit with SOAK_SEED={seed()}; --fresh runs it again"
        for item in items:
            if item.nodeid in passed:
                item.add_marker(pytest.mark.skip(reason=reason))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test after its teardown, if setup, call and teardown passed."""
        if not report.passed:
            self.not_passed.add(report.nodeid)
        if report.when == "teardown" and report.nodeid not in self.not_passed and self.commit and not self.is_worker:
            rows = [*self.read(), {"test": report.nodeid, "commit": self.commit, "seed": seed()}]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.path) as draft:
                draft.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def describe_commit(root: Path) -> str | None:
    """Return the hash of HEAD, followed by a hash of uncommitted changes if there are any.

    Returns None outside a git checkout. Passed tests are not recorded there.
    """
    try:
        head = git(root, "rev-parse", "HEAD").decode().strip()
        changes = git(root, "diff", "--binary", "HEAD")
        untracked = git(root, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    except (OSError, subprocess.CalledProcessError):
        return None
    contents = [changes, *(name + (root / name.decode()).read_bytes() for name in untracked if name)]
    return f"{head}+{hashlib.sha256(b''.join(contents)).hexdigest()[:12]}" if any(contents) else head


def git(root: Path, *arguments: str) -> bytes:
    """Return the output of a git command. Raises CalledProcessError if it fails."""
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True).stdout
