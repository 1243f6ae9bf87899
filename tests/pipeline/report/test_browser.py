"""The page in a browser; skipped if no browser is installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browser import needs_browser

pytestmark = [pytest.mark.browser, needs_browser]
BOXES = """all => all.map(frame => ["img", "svg"].map(name => {
  const { left, top, width, height } = frame.querySelector(name).getBoundingClientRect();
  return [left, top, width, height];
}))"""


@contextmanager
def opened(browser: Any, output: Path, width: int, scheme: str) -> Iterator[Any]:
    """A tab with the report, which must be complete, not wider than the window, without messages and requests."""
    tab, messages, requests = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme), [], []
    tab.on("console", lambda message: messages.append(message.text))
    tab.on("pageerror", lambda error: messages.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto((output / "report.html").absolute().as_uri())
    images = tab.eval_on_selector_all("img", "all => all.map(i => i.complete && i.naturalWidth)")
    assert len(images) >= 10
    assert all(images)
    for selector, least in (("svg[data-chart]", 7), ("svg.displacy", 4), (".frame svg", 10)):
        sizes = tab.eval_on_selector_all(
            selector, "all => all.map(s => [s.getBoundingClientRect().width, s.getBoundingClientRect().height])"
        )
        assert len(sizes) >= least
        assert all(w > 0 and h > 0 for w, h in sizes)
    yield tab
    tab.eval_on_selector_all("details", "all => all.forEach(d => d.open = true)")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert messages == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    tab.close()


def test_boxes_are_over_their_image_and_a_click_sorts_a_table_and_enlarges_a_picture(
    browser: Any, output: Path
) -> None:
    with opened(browser, output, 1280, "light") as tab:
        for image, overlay in tab.eval_on_selector_all(".frame", BOXES):
            assert image == pytest.approx(overlay, abs=1)
        table, cell = tab.locator("#speed ~ div table"), "rows => rows.map(r => r.cells[2].textContent)"
        before = table.locator("tbody tr").evaluate_all(cell)
        table.get_by_role("button", name="seconds").click()
        once = table.locator("tbody tr").evaluate_all(cell)
        assert once == sorted(before, key=float, reverse=True) != before
        table.get_by_role("button", name="seconds").click()
        assert table.locator("tbody tr").evaluate_all(cell) == sorted(before, key=float)
        picture = tab.locator("#samples ~ div .frame").first
        width = picture.bounding_box()["width"]
        picture.press("Enter")
        assert tab.locator("dialog .frame").bounding_box()["width"] > 2 * width
        tab.keyboard.press("Escape")
        assert tab.locator("dialog").is_hidden()


def test_in_a_narrow_window_cells_are_below_each_other_and_a_wide_tree_scrolls(browser: Any, output: Path) -> None:
    with opened(browser, output, 390, "dark") as tab:
        panel = tab.locator("#hosts ~ .panel")
        assert panel.evaluate("p => p.scrollWidth - p.clientWidth") == 0
        tops = panel.locator("tr:first-child td").evaluate_all(
            "all => all.map(cell => cell.getBoundingClientRect().top)"
        )
        assert tops == sorted(set(tops))
        widths = tab.eval_on_selector_all(".trees .scroll", "all => all.map(s => [s.scrollWidth, s.clientWidth])")
        assert any(scroll > client for scroll, client in widths)
