"""Chromium for the tests of pages; the fixture `browser` is in conftest.py."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine: install the package `chromium`"
)


@contextmanager
def started_browser() -> Iterator[Any]:
    """A running Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=120_000)
        yield browser
        browser.close()
