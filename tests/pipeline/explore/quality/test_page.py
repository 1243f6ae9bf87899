"""The audit page: hostile captions are escaped, and in a browser its marks become a CSV that the command reads."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.explore.quality.marks import COLUMNS, choose, render
from tests.patience import wait_until
from tests.pipeline.browser import needs_browser
from tests.pipeline.report.make_output import HOSTILE, make_tables, with_markup, write_output


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of an output whose captions contain markup."""
    folder = tmp_path_factory.mktemp("hostile")
    output = write_output(folder, [with_markup(table) for table in make_tables(1, 12)])
    return render(choose(output, 8, 0), f"out/{HOSTILE}</title>")


def test_markup_in_captions_and_names_is_escaped(page: str) -> None:
    assert HOSTILE not in page
    assert page.count("<script") == page.count("</script>") == 2
    assert page.count("</title>") == 1
    assert "&lt;script&gt;alert" in page
    assert "\\u003cscript\\u003e" in page


def test_data_of_captions_with_control_characters_can_be_parsed(tmp_path: Path) -> None:
    (question, *_) = choose(write_output(tmp_path, make_tables(1, 12)), 1, 0)
    row = replace(question.candidate.row, caption="a \x1b dog\x7f")
    page = render([replace(question, candidate=replace(question.candidate, row=row))], "out")
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert "a \x1b dog\x7f" in data["rows"][0]
    assert not {"\x1b", "\x7f"} & set(page)


@pytest.mark.browser
@needs_browser
def test_marks_survive_a_reload_and_are_downloaded_as_csv(browser: Any, page: str, tmp_path: Path) -> None:
    (tmp_path / "audit.html").write_text(page, encoding="utf-8")
    tab, messages = browser.new_page(viewport={"width": 390, "height": 900}), []
    tab.on("console", lambda message: messages.append(message.text))
    tab.on("pageerror", lambda error: messages.append(str(error)))
    tab.on("dialog", lambda dialog: messages.append("dialog"))
    tab.goto(f"file://{tmp_path}/audit.html")
    tab.keyboard.press("r")
    tab.keyboard.press("w")
    tab.locator("article").nth(3).locator("button[value=unsure]").click()
    tab.locator("article").nth(0).locator("button[value=right]").click()  # a second click removes the mark
    tab.locator("article").nth(0).locator("button[value=wrong]").click()
    marked = "3 of 8 marked: 0 right, 2 wrong, 1 unsure"
    assert marked in tab.locator("#count").inner_text()

    def is_marked() -> bool:
        tab.reload()
        return marked in tab.locator("#count").inner_text()

    wait_until(is_marked)  # Chromium stores the marks in the background
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    with tab.expect_download() as download:
        tab.locator("#save").click()
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_bytes().decode(), newline="")))
    assert tuple(rows[0]) == COLUMNS
    assert [row["mark"] for row in rows] == ["wrong", "wrong", "", "unsure", "", "", "", ""]
    assert all(HOSTILE in row["caption"] for row in rows)
    assert messages == []
    tab.close()
