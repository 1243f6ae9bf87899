"""Pytest plugin: prints the tests that took more than LIMIT_S of CPU time, in their process and its children."""

import resource
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest

LIMIT_S: Final = 20.0
START: Final = pytest.StashKey[float]()
"""CPU seconds of the process before a test."""


def used_s() -> float:
    """Return the CPU seconds of this process and its children that have ended, forked ones of jobs too."""
    usages = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    forked = getattr(sys.modules.get("tests.pipeline.children"), "used", {"seconds": 0.0})
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + float(forked["seconds"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[START] = used_s()  # a fixture counts for the first test that needs it
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[pytest.TestReport]:
    report = yield
    if report.when == "teardown":
        report.cpu_s = used_s() - item.stash.get(START, used_s())
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    found = {report.nodeid: report.cpu_s for report in reports if getattr(report, "cpu_s", 0.0) > LIMIT_S}
    for name, seconds in sorted(found.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{seconds:.0f} s of CPU time: {name}")
