"""The page in a browser; skipped if no browser is installed."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.browser import needs_browser

pytestmark = [
    pytest.mark.browser,
    needs_browser,
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_page_is_complete_without_messages_or_requests(browser: Any, output: Path, width: int, scheme: str) -> None:
    messages, requests = [], []
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"file://{os.path.abspath(output)}/report.html")
    assert messages == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    images = page.eval_on_selector_all("img", "all => all.map(i => i.complete && i.naturalWidth)")
    assert len(images) >= 10
    assert all(images)
    for selector, minimum in (("svg[data-chart]", 7), ("svg.displacy", 4), (".frame svg", 10)):
        sizes = page.eval_on_selector_all(
            selector, "all => all.map(s => [s.getBoundingClientRect().width, s.getBoundingClientRect().height])"
        )
        assert len(sizes) >= minimum
        assert all(w > 0 and h > 0 for w, h in sizes)
    page.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_page_is_not_wider_than_the_window(browser: Any, output: Path, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(f"file://{os.path.abspath(output)}/report.html")
    page.eval_on_selector_all("details", "all => all.forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_the_reasons_of_a_host_are_in_a_narrow_window(browser: Any, output: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.goto(f"file://{os.path.abspath(output)}/report.html")
    panel = page.locator("#hosts ~ .panel")
    assert panel.evaluate("p => p.scrollWidth - p.clientWidth") == 0
    cells = panel.locator("tr:first-child td").evaluate_all("all => all.map(cell => cell.getBoundingClientRect().top)")
    assert cells == sorted(set(cells))  # one below the other
    page.close()


def test_boxes_are_drawn_over_their_image(browser: Any, output: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"file://{os.path.abspath(output)}/report.html")
    pairs = page.eval_on_selector_all(
        ".frame",
        "all => all.map(f => [f.querySelector('img'), f.querySelector('svg')].map(e => e.getBoundingClientRect().toJSON()))",
    )
    for image, overlay in pairs:
        for side in ("left", "top", "width", "height"):
            assert image[side] == pytest.approx(overlay[side], abs=1)
    page.close()


def test_a_click_sorts_a_table_and_enlarges_a_picture(browser: Any, output: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"file://{os.path.abspath(output)}/report.html")
    table, cell = page.locator("#speed ~ div table"), "rows => rows.map(r => r.cells[2].textContent)"
    before = table.locator("tbody tr").evaluate_all(cell)
    table.get_by_role("button", name="seconds").click()
    once = table.locator("tbody tr").evaluate_all(cell)
    assert once == sorted(before, key=float, reverse=True) != before
    table.get_by_role("button", name="seconds").click()
    assert table.locator("tbody tr").evaluate_all(cell) == sorted(before, key=float)
    picture = page.locator("#samples ~ div .frame").first
    width = picture.bounding_box()["width"]
    picture.press("Enter")
    assert page.locator("dialog .frame").bounding_box()["width"] > 2 * width
    page.keyboard.press("Escape")
    assert page.locator("dialog").is_hidden()
    page.close()


def test_a_wide_tree_scrolls_within_its_panel(browser: Any, output: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.goto(f"file://{os.path.abspath(output)}/report.html")
    widths = page.eval_on_selector_all(".trees .scroll", "all => all.map(s => [s.scrollWidth, s.clientWidth])")
    assert any(scroll > client for scroll, client in widths)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()
