"""The page of a comparison in a browser; skipped if no browser is installed."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.explore.compare import differences, read_contents, render, sections
from tests.pipeline.browser import needs_browser
from tests.pipeline.explore.compare.outputs import write_a, write_b

pytestmark = [pytest.mark.browser, needs_browser]


def test_the_page_fits_the_window_and_sends_no_requests(browser: Any, tmp_path: Path) -> None:
    a, b = (read_contents(str(write(tmp_path / name))) for name, write in (("a", write_a), ("b", write_b)))
    page_file = tmp_path / "compare.html"
    page_file.write_text(render(a, b, sections(a, b), *differences((a.stats, b.stats))))
    for width in (1200, 390):
        messages, requests = [], []
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("console", lambda message: messages.append(message.text))  # noqa: B023
        page.on("request", lambda request: requests.append(request.url))  # noqa: B023
        page.goto(f"file://{page_file}")
        assert messages == []
        assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        sizes = page.eval_on_selector_all(
            "svg path.a, svg path.b", "all => all.map(p => [p.getBBox().width, p.getBBox().height])"
        )
        assert len(sizes) >= 8
        assert all(w > 100 and h > 10 for w, h in sizes)
        assert page.eval_on_selector_all("script", "all => all.length") == 0
        page.close()
