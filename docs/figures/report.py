"""Take docs/report.png: the sample images of a report, in full color.

    python docs/figures/report.py out/demo/report.html

Needs playwright and Chromium.
"""

import io
import shutil
import sys
from pathlib import Path
from typing import Final

from PIL import Image

TARGET: Final = Path(__file__).resolve().parent.parent / "report.png"
WIDTH: Final = 1240
HEIGHT: Final = 800


def main() -> None:
    """Take the picture of the report that is the first argument."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--headless", "--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(Path(sys.argv[1]).resolve().as_uri())
        top = page.locator("#samples").bounding_box()
        assert top is not None
        clip = {"x": 0, "y": top["y"] - 24, "width": WIDTH, "height": HEIGHT}
        data = page.screenshot(full_page=True, clip=clip)
        browser.close()
    Image.open(io.BytesIO(data)).convert("RGB").save(TARGET, optimize=True)  # a palette would draw bands or dots


if __name__ == "__main__":
    main()
