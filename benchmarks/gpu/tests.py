"""Run the tests that need a GPU, those with the marker `gpu`.

    python -m benchmarks.gpu.tests [PATHS]

Only the files that contain such tests are collected, since the others may need packages that a GPU machine lacks.
OUT/tests.json has a row per test that did not pass, with the end of its message, and the slowest tests. Without a GPU,
all of them are skipped; with --device cpu the same tests run on the CPU where they have such a form.
"""

import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.gpu.session import Session, parser_of, run

ROOT = Path(__file__).parents[2]
MARKED = re.compile(r"mark\.gpu|tests\.devices")
RESULT = re.compile(r"^tests/\S+::.*? (PASSED|FAILED|SKIPPED)\b", re.MULTILINE)
TINY_FILE = "tests/trainer/encoders/test_devices.py"
MESSAGE = 1500
RESERVE_S = 20.0  # for pytest to write its results
SLOWEST = 10


def main() -> None:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("paths", nargs="*", help="test files; default: all with tests for GPUs")
    run("tests", parser.parse_args(), measure)


def measure(session: Session) -> None:
    """Run pytest in a process of its own, and read its results."""
    options = session.options
    paths = options.paths or ([TINY_FILE] if options.tiny else marked_files())
    results = session.path("junit.xml").resolve()
    selected = ["-m", "gpu"] if session.device.type == "cuda" else ["-k", "cpu"]
    command = [sys.executable, "-m", "pytest", *paths, *selected, "-p", "no:cacheprovider", "-o"]
    command += ["junit_family=xunit2", "--junitxml", str(results), "--continue-on-collection-errors", "-vv"]
    not_passed: list[dict[str, str]] = []
    with session.measure(part="pytest") as row, session.path("pytest.txt").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        try:
            row["exit"] = process.wait(max(1.0, session.seconds_left - RESERVE_S))
        except subprocess.TimeoutExpired:
            row["exit"] = "out of time"
        finally:
            end(process)
        row |= read_results(results) if results.is_file() else read_log(session.path("pytest.txt"))
        not_passed = row.pop("not_passed", [])
    for test in not_passed:
        with session.measure(**test):
            pass


def marked_files() -> list[str]:
    """Return the test files that contain the marker, or import the list of devices."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in files if MARKED.search(path.read_text(encoding="utf-8"))]


def end(process: subprocess.Popen[bytes]) -> None:
    """End pytest: first as by Ctrl-C, with which it writes its results."""
    for stop in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(stop)
            time.sleep(0.1)
            try:
                process.wait(RESERVE_S / 2)
            except subprocess.TimeoutExpired:
                continue


def read_results(path: Path) -> dict[str, Any]:
    """Return the counts of a JUnit file, the slowest tests, and those that did not pass."""
    cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    outcomes = [outcome(case) for case in cases]
    slowest = sorted(cases, key=lambda case: -float(case.get("time", 0)))[:SLOWEST]
    found: dict[str, Any] = {
        kind: sum(item[0] == kind for item in outcomes) for kind in ("passed", "failed", "skipped")
    }
    found["slowest"] = {name_of(case): float(case.get("time", 0)) for case in slowest}
    found["not_passed"] = [
        {"test": name_of(case), "error" if kind == "failed" else "skipped": message}
        for case, (kind, message) in zip(cases, outcomes, strict=True)
        if kind != "passed"
    ]
    return found


def read_log(path: Path) -> dict[str, Any]:
    """Return the counts of the log of a pytest that has written no JUnit file. Raises ValueError if it ran no test."""
    text = path.read_text(encoding="utf-8", errors="replace")
    found = Counter(match[1].lower() for match in RESULT.finditer(text))
    if not found:
        raise ValueError(f"pytest ran no test: {text[-MESSAGE:]}")
    return {kind: found[kind] for kind in ("passed", "failed", "skipped")}


def outcome(case: ElementTree.Element) -> tuple[str, str]:
    """Return "passed", "failed" or "skipped", and the end of the message."""
    for tag, kind in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        if (found := case.find(tag)) is not None:
            return kind, f"{found.get('message', '')}\n{found.text or ''}"[-MESSAGE:]
    return "passed", ""


def name_of(case: ElementTree.Element) -> str:
    """Return the module and the name of a test."""
    return f"{case.get('classname')}::{case.get('name')}"


if __name__ == "__main__":
    main()
