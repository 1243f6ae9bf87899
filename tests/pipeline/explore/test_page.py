"""The page in a browser: filters, thresholds, links, marks, hostile texts, two outputs, static pages, narrow windows."""

import dataclasses
import functools
import http.server
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hypergrit_common.cli import NOTHING_KEPT
from pipeline.commands import rewrite
from pipeline.commands.explore import main
from pipeline.explore.quality.marks import marked_boxes, read_marks
from pipeline.output.ledger import read_manifests
from pipeline.output.store import Store
from pipeline.stages.parse.stage import Parse
from pipeline.stages.score.filters import clip_score
from schemas.disk import KINDS
from tests.patience import PATIENCE_S
from tests.pipeline.browser import needs_browser
from tests.pipeline.explore.conftest import Server
from tests.pipeline.explore.outputs import THRESHOLDS, Row, make_rows, write_output
from tests.pipeline.report.make_output import HOSTILE

pytestmark = [
    pytest.mark.browser,
    needs_browser,
]
Box = dict[str, Any]


@contextmanager
def opened(browser: Any, url: str, width: int = 1280, scheme: str = "light") -> Iterator[Any]:
    """A tab with the loaded page. At its end there must be no message, no dialog and no request to another server."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab, messages = context.new_page(), list[str]()
    origin = url.split("/?")[0].split("/index")[0]
    tab.on("console", lambda message: messages.append(message.text))
    tab.on("pageerror", lambda error: messages.append(str(error)))
    tab.on("dialog", lambda dialog: messages.append("dialog"))
    tab.on(
        "request", lambda request: None if request.url.startswith((origin, "blob:")) else messages.append(request.url)
    )
    tab.goto(url)
    tab.wait_for_selector("#count")
    yield tab
    context.close()
    assert messages == []


def until(tab: Any, condition: str) -> None:
    """Wait until an expression is true. wait_for_function needs eval, which the page forbids."""
    end = time.monotonic() + PATIENCE_S
    while not tab.evaluate(condition):
        assert time.monotonic() < end, f"still not true: {condition}"
        tab.wait_for_timeout(25)


def rows_of(output: str) -> list[Row]:
    """All rows of an output, each box joined with its measurements."""
    files = sorted(Path(output, "arrow").iterdir())
    rows = [row for path in files for row in pa.ipc.open_file(pa.memory_map(str(path))).read_all().to_pylist()]
    for row in rows:
        pairs = zip(row["boxes"] or (), row["box_scores"] or (), strict=True)
        row["found"] = [box | measured | {"chunk": row["noun_chunks"][box["phrase"]]} for box, measured in pairs]
    return rows


def phrase(row: Row, box: Box) -> str:
    return str(row["caption"][box["chunk"]["start"] : box["chunk"]["end"]]).lower()


def label(row: Row, box: Box) -> str:
    return str(row["tokens"][box["chunk"]["root"]]["lemma"]).lower()


def text(row: Row) -> str:
    return str(row["caption"] or row["caption_original"]).lower()


def any_box(test: Callable[[Row, Box], bool]) -> Callable[[Row], bool]:
    return lambda row: any(test(row, box) for box in row["found"])


def neighbours(rows: list[Row], row: Row, is_selected: Callable[[Row], bool]) -> tuple[Row, Row]:
    """The selected rows nearest to a row."""
    keys = [item["key"] for item in rows]
    place = keys.index(row["key"])
    return (
        next(item for item in reversed(rows[:place]) if is_selected(item)),
        next(item for item in rows[place:] if is_selected(item)),
    )


def are_labels_inside(tab: Any) -> bool:
    """True if the labels of missing pictures are there, and inside the frames of the pictures."""
    return bool(
        tab.evaluate("""() => {
      const labels = [...document.querySelectorAll(".dialog .no-image")].map((label) => {
        const [inner, outer] = [label, label.parentElement].map((element) => element.getBoundingClientRect());
        return inner.top >= outer.top && inner.bottom <= outer.bottom && inner.right <= outer.right + 1;
      });
      return labels.length > 0 && labels.every(Boolean);
    }""")
    )


FILTERS: list[tuple[dict[str, str], Callable[[Row], bool]]] = [
    ({"status": "kept"}, lambda row: row["status"] == "kept"),
    ({"status": "dropped"}, lambda row: row["status"] == "dropped"),
    ({"reason": "download:http_error"}, lambda row: row["reason"] == "http_error"),
    ({"reason": "score:low_clip_score"}, lambda row: row["reason"] == "low_clip_score"),
    ({"q": "red"}, lambda row: "red" in text(row)),
    ({"q": "A RED"}, lambda row: "red" in text(row) and "a" in text(row)),
    ({"q": '"a red'}, lambda row: "a red" in text(row)),
    ({"q": "zebra crossing"}, lambda row: False),
    ({"host": "images3.example.org"}, lambda row: "images3.example.org" in row["url"]),
    ({"host": "example"}, lambda row: True),
    ({"source": "pairs.parquet"}, lambda row: True),
    ({"source": "other.csv"}, lambda row: False),
    ({"image_min": "500", "image_max": "900"}, lambda row: 500 <= min(row["original_width"] or 0, row["original_height"] or 0) <= 900),
    ({"phrase": "red"}, any_box(lambda row, box: "red" in phrase(row, box))),
    ({"box": "kept"}, any_box(lambda _, box: box["removed"] is None)),
    ({"box": "low_score"}, any_box(lambda _, box: box["removed"] == "low_score")),
    ({"box": "removed", "score_min": "0.9"}, any_box(lambda _, box: box["removed"] is not None and box["score"] >= 0.9)),
    ({"score_min": "0.9"}, any_box(lambda _, box: box["score"] >= 0.9)),
    ({"score_min": "0.6", "score_max": "0.65"}, any_box(lambda _, box: 0.6 <= box["score"] <= 0.65)),
    ({"clip_min": "0.9"}, any_box(lambda _, box: box["clip_cosine"] is not None and clip_score(box["clip_cosine"]) >= 0.9)),
    ({"side_min": "100"}, any_box(lambda _, box: box["area_px"] >= 10000)),
    ({"side_max": "31"}, any_box(lambda _, box: box["removed"] == "box_too_small")),
    ({"status": "kept", "phrase": "red", "score_min": "0.8"},
     lambda row: row["status"] == "kept" and any("red" in phrase(row, box) and box["score"] >= 0.8 for box in row["found"])),
]  # fmt: skip


def test_each_filter_selects_the_rows_that_it_names(browser: Any, server: Server, output: str) -> None:
    rows = rows_of(output)
    words = [label(row, box) for row in rows for box in row["found"]]
    most = max(sorted(set(words)), key=words.count)
    with_label = ({"label": most}, any_box(lambda row, box: label(row, box) == most))
    counts = set()
    with opened(browser, server.url) as tab:
        for fields, is_selected in [*FILTERS, with_label]:
            for name, value in fields.items():
                field = tab.locator(f"[name={name}]")
                field.select_option(value) if name in ("status", "reason", "box") else field.fill(value)
            n = sum(map(is_selected, rows))
            until(tab, f"document.querySelector('#count').dataset.n === '{n}' && location.hash.length > 1")
            assert tab.locator("article").count() == min(n, 60), fields
            counts.add(n)
            tab.locator("button[name=reset]").click()
            tab.wait_for_selector(f"#count[data-n='{len(rows)}']")
            assert tab.locator("[name=q]").input_value() == ""
    assert len(counts) > 8


HIGHER = [{"min_score": "0.9", "min_clip_score": "0.8"}, {"min_clip_score": "0.7777", "min_side_px": "60"}]
LOWER = [{}, {"min_score": "0.4"}, {"min_score": "0", "min_clip_score": "0", "min_side_px": "1"}]
ROWS = [
    {},
    {"min_image_similarity": "0.3"},
    {"min_score": "0.9", "min_image_similarity": "0.28", "min_head_score": "5"},
]


@pytest.mark.parametrize(
    ("keep_all", "rule", "settings", "with_rows"),
    [
        (False, "area", HIGHER, False),
        pytest.param(True, "released", LOWER, False, marks=pytest.mark.rest),
        pytest.param(False, "area", ROWS, True, marks=pytest.mark.rest),
    ],
)
def test_slider_keeps_what_refilter_keeps(
    browser: Any, start: Callable[..., Server], parse: Parse, tmp_path: Path,
    keep_all: bool, rule: Any, settings: list[dict[str, str]], with_rows: bool,
) -> None:  # fmt: skip
    thresholds = dataclasses.replace(THRESHOLDS, size_rule=rule)
    rows = make_rows(parse, 40, thresholds, keep_all, has_head=with_rows, keeps_pairs=with_rows)
    (tmp_path / "head").write_bytes(b"")
    scores = [f"score.head={tmp_path / 'head'}", "ground.keep_pairs=true"] if with_rows else []
    output = write_output(tmp_path / "out", [rows[:25], rows[25:]], f"score.keep_all={json.dumps(keep_all)}",
                          "formats=[arrow,grit]", *scores, thresholds=thresholds)  # fmt: skip
    found = set()
    with opened(browser, start(output, marks=str(tmp_path / "m.csv")).url) as tab:
        tab.locator("details.thresholds > summary").click()
        for number, changed in enumerate(settings):
            for name, value in changed.items():
                tab.locator(f"[name={name}_value]").fill(value)
                tab.locator(f"[name={name}_value]").press("Tab")
            new, keys = tmp_path / str(number), [f"score.{name}={value}" for name, value in changed.items()]
            arguments = [f"source={output}", f"output={new}", "formats=[arrow]", *keys]
            code = rewrite.main([*arguments, "ray.runner=local", "ray.cpu_workers=1"])
            manifests = read_manifests(Store(str(new)))
            kept = sum(m["counts"]["kept"] for m in manifests), sum(m["boxes"] for m in manifests)
            assert code == (0 if kept[0] else NOTHING_KEPT)
            stats = json.loads((new / "stats.json").read_text())
            assert stats.get("pairs", 0) == sum(m.get("pairs", 0) for m in manifests)
            assert ("head_score" in stats["histograms"]) == with_rows
            shown = tab.locator("#kept")
            assert (int(shown.get_attribute("data-rows")), int(shown.get_attribute("data-boxes"))) == kept, changed
            found.add(kept)
            if changed:
                assert tab.locator("#command").inner_text() == (
                    f"hypergrit rewrite source={output} output={output}_refiltered {' '.join(keys)}"
                )
            tab.locator("button[name=thresholds]").click()
        assert len(found) == len(settings)
        tab.locator("[name=min_score]").evaluate(
            "field => { field.value = 0.8; field.dispatchEvent(new Event('input', { bubbles: true })); }"
        )
        strips = [tab.locator(".strip").nth(i).locator(".example span").all_inner_texts() for i in (0, 1)]
        examples = [[float(label.split()[0]) for label in labels] for labels in strips]
        assert examples[0]
        assert examples[1]
        assert max(examples[0]) <= 0.8 <= min(examples[1])
        assert sorted(examples[0], reverse=True) == examples[0]
        tab.locator(".example").first.click()
        tab.wait_for_selector(".dialog li.current, .dialog li")
        tab.keyboard.press("Escape")
        if not keep_all:
            tab.locator("[name=min_score_value]").fill("0.2")
            tab.locator("[name=min_score_value]").press("Tab")
            assert "score.keep_all=true" in tab.locator(".sliders .warning").inner_text()
            assert tab.locator("#kept, #command").count() == 0


def test_a_row_without_kept_boxes_shows_the_removed_ones_and_small_pictures_have_a_margin(
    browser: Any, server: Server, output: str
) -> None:
    boxes = "[...document.querySelectorAll('.dialog .picture .box')].map(box => box.classList.contains('removed'))"
    rows = [row for row in rows_of(output)[30:60] if row["found"] and row["width"]]
    bare = next(row for row in rows if all(box["removed"] for box in row["found"]))
    mixed = next(row for row in rows if {box["removed"] is None for box in row["found"]} == {True, False})
    for row in (bare, mixed):
        with opened(browser, f"{server.url}#row=a/1/{row['key']}") as tab:
            tab.wait_for_selector(".dialog .facts")
            n = len(row["found"]) if row is bare else sum(box["removed"] is None for box in row["found"])
            assert tab.evaluate(boxes) == [row is bare] * n
            x, y, width, _ = map(float, tab.locator(".dialog .picture svg").get_attribute("viewBox").split())
            assert width == pytest.approx(row["width"] - 2 * x)
            assert x == y == min(0, -(400 - max(row["width"], row["height"])) / 2)


def test_a_card_names_its_cosine_if_the_row_has_one(browser: Any, server: Server, output: str) -> None:
    cosines = [row["clip_similarity"] for row in rows_of(output)[:60]]
    assert None in cosines
    with opened(browser, server.url) as tab:
        tab.wait_for_selector(".card")
        shown = tab.locator(".card .chips .soft").all_inner_texts()
        assert shown == [f"cos {cosine:.2f}" for cosine in cosines if cosine is not None]


def test_link_opens_the_same_row_and_filters(browser: Any, server: Server, output: str) -> None:
    row = next(row for row in rows_of(output)[30:60] if row["status"] == "kept")
    with opened(browser, server.url) as tab:
        tab.keyboard.press("/")
        tab.keyboard.type("a")
        tab.keyboard.press("Escape")
        tab.locator("[name=status]").select_option("kept")
        until(tab, "location.hash === '#q=a&status=kept'")
        tab.keyboard.press("j")
        tab.keyboard.press("j")
        tab.keyboard.press("k")
        tab.keyboard.press("Enter")
        tab.wait_for_selector(".dialog .facts")
        with opened(browser, f"{server.url}{tab.evaluate('location.hash')}") as other:
            other.wait_for_selector(".dialog .facts")
            assert other.locator(".dialog .text").inner_text() == tab.locator(".dialog .text").inner_text()
            assert other.locator("#count").inner_text() == tab.locator("#count").inner_text()
            assert other.locator("[name=q]").input_value() == "a"
        before = tab.locator(".dialog header .soft").inner_text()
        tab.keyboard.press("ArrowRight")
        until(tab, f"document.querySelector('.dialog header .soft').innerText !== {json.dumps(before)}")
        tab.go_back()
        tab.wait_for_selector(".dialog", state="detached")
    with opened(browser, f"{server.url}#row=a/1/{row['key']}") as tab:
        tab.wait_for_selector(".dialog .facts")
        assert tab.locator(".dialog .text").inner_text() == row["caption"]
        assert tab.locator(".tree .word").all_text_contents() == [
            row["caption"][t["start"] : t["end"]] for t in row["tokens"]
        ]
        assert tab.locator(".tree .arc").count() == sum(t["head"] != i for i, t in enumerate(row["tokens"]))
        assert tab.locator(".boxes li").count() == sum(box["removed"] is None for box in row["found"])
        tab.locator("button[name=share]").click()
        link = tab.locator("input.link").input_value()
        assert link == f"{server.url}#row=a/1/{row['key']}"
        image = tab.evaluate(
            "async () => (await fetch(document.querySelector('.dialog image').getAttribute('href'))).status"
        )
        assert image == 200
    with opened(browser, f"{server.url}#row={row['key']}") as tab:  # as in the report
        tab.wait_for_selector(".dialog .facts")
        assert tab.locator(".dialog .text").inner_text() == row["caption"]
        number = int(row["key"])
        for key, step in (("ArrowRight", 1), ("k", 0), ("k", -1)):
            tab.keyboard.press(key)
            until(tab, f"location.hash.endsWith('{number + step:012d}')")
        before, after = neighbours(rows_of(output), row, lambda item: item["reason"] == "http_error")
        for key, neighbour in (("ArrowRight", after), ("ArrowLeft", before)):  # the filters do not select the row
            tab.goto(f"{server.url}#reason=download:http_error&row={row['key']}")
            tab.wait_for_selector(".dialog .facts")
            tab.keyboard.press(key)
            until(tab, f"location.hash.endsWith('{neighbour['key']}')")
    with opened(browser, f"{server.url}#row=a/7/none") as tab:
        assert "is not in this output" in tab.locator(".toast").inner_text()


def test_values_that_a_job_refuses_become_those_that_it_accepts(browser: Any, server: Server) -> None:
    with opened(browser, f"{server.url}#min_score=abc&min_side_px=40.5&page=-3") as tab:
        assert tab.locator("#command").inner_text().endswith("_refiltered score.min_side_px=41")
        assert "NaN" not in tab.locator(".sliders").inner_text()
        assert tab.locator("article").count() == 60
        for text, value in (("77.5", "78"), ("1e9", "1000000000"), ("-4", "0")):
            tab.locator("[name=min_side_px_value]").fill(text)
            tab.locator("[name=min_side_px_value]").press("Tab")
            until(tab, f"document.querySelector('[name=min_side_px_value]').value === '{value}'")
        tab.locator("button[name=thresholds]").click()
        tab.locator("[name=min_score_value]").fill("7")
        tab.locator("[name=min_score_value]").press("Tab")
        assert tab.locator("#command").inner_text().endswith(" score.min_score=1")
        for text, page, n in (("1.9", "1", 60), ("2.5", "2", 12), ("99", "2", 12)):
            field = tab.locator(".pages input").first
            field.fill(text)
            field.press("Enter")
            until(tab, f"document.querySelector('.pages input').value === '{page}'")
            assert tab.locator("article").count() == n
    with opened(browser, f"{server.url}#page=0.5&min_clip_score=Infinity") as tab:
        assert tab.locator("article").count() == 60
        assert tab.locator("#command").inner_text().endswith(" score.min_clip_score=2.5")


def test_marks_of_the_keyboard_reach_the_file(
    browser: Any, start: Callable[..., Server], output: str, tmp_path: Path
) -> None:
    path = tmp_path / "marks.csv"
    row = next(row for row in rows_of(output) if sum(box["removed"] is None for box in row["found"]) >= 3)
    order = sorted(range(len(row["found"])), key=lambda number: row["found"][number]["removed"] is not None)
    server = start(output, marks=str(path))
    with opened(browser, f"{server.url}#row=a/0/{row['key']}") as tab:
        tab.wait_for_selector(".dialog .facts")
        for key, n in (("r", 1), ("w", 2), ("u", 3)):
            tab.keyboard.press(key)
            until(tab, f"document.querySelectorAll('[aria-pressed=true]').length === {n}")
        tab.locator(f"li[data-box='{order[1]}'] button[value=wrong]").click()  # a second click removes the mark
        until(tab, "document.querySelectorAll('[aria-pressed=true]').length === 2")
        tab.locator(f"li[data-box='{order[1]}'] button[value=right]").click()
        until(tab, "document.querySelectorAll('[aria-pressed=true]').length === 3")
        tab.reload()
        tab.wait_for_selector(".dialog .facts")
        assert tab.locator("[aria-pressed=true]").count() == 3
        tab.keyboard.press("Escape")
        assert tab.locator("#marked").inner_text().startswith("2 right, 0 wrong, 1 unsure")
    marks = read_marks(path)
    assert sorted(mark.box for mark in marks) == sorted(order[:2])
    assert len(marked_boxes(output, path, marks)) == 2


def test_hostile_texts_are_shown_as_text(
    browser: Any, start: Callable[..., Server], hostile_output: str, tmp_path: Path
) -> None:
    rows = rows_of(hostile_output)
    number, row = next((i, row) for i, row in enumerate(rows) if row["status"] == "kept")
    with opened(browser, start(hostile_output, marks=str(tmp_path / "marks.csv")).url) as tab:
        assert tab.evaluate("document.querySelectorAll('#app script, #app img').length") == 0
        tab.locator("[name=q]").fill("<script>alert")
        until(tab, "location.hash.startsWith('#q=')")
        assert int(tab.locator("#count").get_attribute("data-n")) == len(rows)
        tab.locator("article").nth(number).click()
        tab.wait_for_selector(".dialog .facts")
        shown = tab.locator(".dialog .text").evaluate("e => e.textContent")
        assert shown == row["caption"]
        tab.keyboard.press("ArrowDown")
        box = next(box for box in row["found"] if box["removed"] is None)
        assert tab.locator(".dialog mark").inner_text().lower() == phrase(row, box)
        assert HOSTILE[:20] in tab.locator(".tree").evaluate("e => e.textContent")
        assert tab.evaluate("document.querySelectorAll('#app script, #app img').length") == 0
        tab.keyboard.press("r")
        tab.wait_for_selector("[aria-pressed=true]")
    marks = read_marks(tmp_path / "marks.csv")
    assert len(marked_boxes(hostile_output, tmp_path / "marks.csv", marks)) == 1


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_page_fits_the_window(browser: Any, server: Server, width: int, scheme: str) -> None:
    with opened(browser, f"{server.url}#min_score=0.8", width, scheme) as tab:
        tab.wait_for_selector("#command")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.keyboard.press("?")
        assert "search captions" in tab.locator(".help").inner_text()
        tab.keyboard.press("Escape")
        tab.locator("article").first.click()
        tab.wait_for_selector(".dialog .facts")
        assert tab.evaluate("document.querySelector('.dialog').scrollWidth") <= width
        tab.goto(f"{server.url}#row=000000000002")
        tab.wait_for_selector(".dialog .no-image")
        assert are_labels_inside(tab)
        colour = "getComputedStyle(document.body).backgroundColor"
        dark = "rgb(17, 20, 26)"
        assert (tab.evaluate(colour) == dark) == (scheme == "dark")
        tab.keyboard.press("Escape")
        tab.locator("button[name=theme]").click()
        assert tab.evaluate(colour) != dark
        tab.locator("button[name=theme]").click()
        assert tab.evaluate(colour) == dark


@contextmanager
def file_server(folder: Path) -> Iterator[str]:
    """The address of a plain file server of a folder."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_static_page_of_two_outputs_compares_them_and_downloads_marks(
    browser: Any, output: str, cache: str, tmp_path: Path
) -> None:
    strict, site = tmp_path / "strict", tmp_path / "site"
    arguments = [f"source={output}", f"output={strict}", "score.min_score=0.85", "formats=[arrow,grit]"]
    assert rewrite.main([*arguments, "ray.runner=local", "ray.cpu_workers=1"]) == 0
    assert main([output, str(strict), f"static={site}", "images=20", f"cache={cache}"]) == 0
    a, b = rows_of(output), rows_of(str(strict))
    kept = [sum(box["removed"] is None for box in row["found"]) * (row["status"] == "kept") for row in a]
    kept_b = [sum(box["removed"] is None for box in row["found"]) * (row["status"] == "kept") for row in b]
    expected = {
        "both": sum(x > 0 and y > 0 for x, y in zip(kept, kept_b, strict=True)),
        "a": sum(x > 0 and y == 0 for x, y in zip(kept, kept_b, strict=True)),
        "b": 0,
        "boxes": sum(x > 0 and y > 0 and x != y for x, y in zip(kept, kept_b, strict=True)),
        "missing": 0,
    }
    assert expected["a"] > 5 < expected["boxes"]
    with file_server(site) as url, opened(browser, f"{url}/index.html") as tab:
        for name, n in expected.items():
            tab.locator("[name=pair]").select_option(name)
            tab.wait_for_selector(f"#count[data-n='{n}']")
        tab.locator("[name=pair]").select_option("both")
        tab.wait_for_selector(f"#count[data-n='{expected['both']}']")
        assert "a random sample of 20 of" in tab.locator(".bar").inner_text()
        tab.locator("article").first.click()
        tab.wait_for_selector(".columns.two .column:nth-child(2) .facts")
        assert tab.locator(".columns .column").count() == 2
        tab.keyboard.press("Escape")
        tab.goto(f"{url}/index.html#row=000000000002")
        tab.wait_for_selector(".dialog .no-image")
        assert are_labels_inside(tab)
        tab.keyboard.press("Escape")
        tab.goto(f"{url}/index.html#pair=both")
        tab.locator("article").first.click()
        tab.wait_for_selector(".columns.two .column:nth-child(2) .facts")
        tab.keyboard.press("r")
        tab.wait_for_selector("[aria-pressed=true]")
        tab.keyboard.press("Escape")
        tab.reload()
        tab.wait_for_selector("button[name=download]")
        with tab.expect_download() as download:
            tab.locator("button[name=download]").click()
        path = tmp_path / "marks.csv"
        path.write_bytes(Path(download.value.path()).read_bytes())
        tab.goto("about:blank")  # the page must ask for no image of a folder that is removed
        shutil.rmtree(site)  # a page of another output at the same address
        assert main([str(strict), f"static={site}", "images=0", f"cache={cache}"]) == 0
        tab.goto(f"{url}/index.html")
        tab.wait_for_selector("#count")
        assert tab.locator("#marked").count() == 0
    assert len(marked_boxes(output, path, read_marks(path))) == 1


def test_disks_show_the_points_of_the_selected_rows_and_a_point_opens_its_row(
    browser: Any, output: str, start: Callable[..., Server], tmp_path: Path
) -> None:
    rows = [row for row in rows_of(output) if row["status"] == "kept"][:20]
    points = [[row["key"], kind, row["caption"], 0.01 * i, 0.02] for i, row in enumerate(rows) for kind in KINDS]
    for name in ("a", "b"):
        disk = {"model": name, "projection": "cosne", "points": [*points, ["no row", "image", HOSTILE, 0.3, 0.3]]}
        (tmp_path / f"{name}.json").write_text(json.dumps(disk), encoding="utf-8")
    disks = (str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    server = start(output, marks=str(tmp_path / "marks.csv"), disk=disks)
    with opened(browser, server.url) as tab:
        shown = tab.locator(".disk > g:first-of-type .point")
        assert shown.count() == 2 * len(points)
        tab.click("button[name=box_text]")
        assert shown.count() == 2 * 3 * len(rows)
        tab.fill("input[name=q]", "red")
        red = [row for row in rows if "red" in text(row)]
        assert 0 < len(red) < len(rows)
        until(tab, f"document.querySelectorAll('.disk > g:first-of-type .point').length === {6 * len(red)}")
        tab.hover(".disk .point >> nth=-1")
        until(tab, "document.querySelectorAll('.current .point').length === 6")  # in both disks
        tab.click(".disk .point >> nth=0", force=True)
        tab.wait_for_selector(".dialog")
        assert any(tab.evaluate("location.hash").endswith(row["key"]) for row in red)


def test_a_static_page_holds_its_disk(output: str, cache: str, tmp_path: Path) -> None:
    disk = {"model": "m", "projection": "norms", "points": [["000000000000", "image", "a cat", 0.5, 0.0]]}
    (tmp_path / "disk.json").write_text(json.dumps(disk), encoding="utf-8")
    arguments = [output, f"static={tmp_path / 'page'}", "images=0", f"cache={cache}"]
    assert main([*arguments, f"disk=[{tmp_path / 'disk.json'}]"]) == 0
    assert json.loads((tmp_path / "page" / "data" / "site.json").read_text(encoding="utf-8"))["disks"] == [disk]
