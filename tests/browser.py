"""Chromium for the tests of pages; the fixture `browser` is in conftest.py."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S, wait_until

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding", "--remote-debugging-port=0",
]  # fmt: skip
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine: install the package `chromium`"
)
PATIENCE_MS = PATIENCE_S * 1000


class PatientBrowser:
    """A browser whose pages wait for PATIENCE_MS."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser

    def new_context(self, **options: Any) -> Any:
        context = self.browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        return context

    def new_page(self, **options: Any) -> Any:
        page = self.browser.new_page(**options)
        page.set_default_timeout(PATIENCE_MS)
        return page


@contextmanager
def started_chromium() -> Iterator[str]:
    """A running Chromium; yields its address for `connected`."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        place, quiet = Path(profile, "DevToolsActivePort"), subprocess.DEVNULL
        process = subprocess.Popen([str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}"], stdout=quiet, stderr=quiet)
        try:
            wait_until(lambda: place.is_file() and len(place.read_text().split()) == 2)
            port, path = place.read_text().split()
            yield f"ws://127.0.0.1:{port}{path}"
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


@contextmanager
def connected(address: str) -> Iterator[PatientBrowser]:
    """A running Chromium through Playwright, which meanwhile holds the event loop of this thread."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = p.chromium.connect_over_cdp(address, timeout=PATIENCE_MS)
        yield PatientBrowser(browser)
        browser.close()
