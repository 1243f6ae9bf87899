"""Pictures of pages: the demo's report and its explorer. They need Chromium."""

import io
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from PIL import Image

from docs.figures.paths import DEMO, PHOTOGRAPHS, ROOT
from hypergrit_common.errors import UserError

REPORT_SIZE: Final = (1240, 800)
PHOTOGRAPHS_SIZE: Final = (1240, 640)
EXPLORER_SIZE: Final = (1280, 960)
THRESHOLD: Final = 0.7
"""The grounding score at which the explorer's slider stands, so that boxes are shown on both sides."""


@contextmanager
def opened(address: str, width: int, height: int) -> Iterator[Any]:
    """Open a page in Chromium, in light colors. Raises UserError if there is no Chromium."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise UserError("pictures of pages need Chromium: install the package `chromium`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--headless", "--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        page.goto(address)
        yield page
        browser.close()


def save(screenshot: bytes, target: Path) -> None:
    """Write a screenshot as PNG, or as JPEG, in full color; a palette would draw bands or dots."""
    Image.open(io.BytesIO(screenshot)).convert("RGB").save(target, optimize=True, quality=90)


def picture_from(address: str, selector: str, size: tuple[int, int], target: Path) -> None:
    """Take the part of a page that begins at the element `selector`, of `size` (width, height) px."""
    width, height = size
    with opened(address, width, height) as page:
        top = page.locator(selector).first.bounding_box()
        clip = {"x": 0, "y": max(top["y"] - 12, 0), "width": width, "height": height}
        save(page.screenshot(full_page=True, clip=clip), target)


def report(target: Path) -> None:
    """Take the sample images of the demo's report."""
    picture_from((DEMO / "report.html").as_uri(), "#samples", REPORT_SIZE, target)


def photographs(target: Path) -> None:
    """Run the pipeline on photographs with boxes made by hand, and take the sample images of its report."""
    with tempfile.TemporaryDirectory() as folder:
        job = [f"input={PHOTOGRAPHS}", f"output={folder}/out", "grounder=none", "scorer=none", "ray.runner=local"]
        subprocess.run([sys.executable, "-m", "hypergrit", "run", *job], cwd=ROOT, check=True)
        picture_from((Path(folder) / "out" / "report.html").as_uri(), ".pictures", PHOTOGRAPHS_SIZE, target)


def explorer(target: Path) -> None:
    """Take the explorer of the demo's output with another threshold."""
    command = [sys.executable, "-m", "hypergrit", "explore", str(DEMO.relative_to(ROOT))]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = next((found for line in server.stdout if (found := re.search(r"http://\S+", line))), None)
        if address is None:
            raise UserError(f"{' '.join(command[1:])} ended without an address; its error is above")
        with opened(f"{address[0]}#min_score={THRESHOLD}&status=kept", *EXPLORER_SIZE) as page:
            page.wait_for_selector("#count")
            page.wait_for_load_state("networkidle")
            save(page.screenshot(), target)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
