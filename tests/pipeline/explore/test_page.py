"""The page in a browser: filters, thresholds, links, marks, hostile texts, static pages, narrow windows."""

import dataclasses
import functools
import http.server
import json
import shutil
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
from pipeline.explore.marks import marked_boxes
from pipeline.output.ledger import read_manifests
from pipeline.output.store import Store
from pipeline.stages.score.filters import clip_score
from schemas.disk import KINDS
from tests.browser import needs_browser
from tests.patience import PATIENCE_S
from tests.pipeline.explore.conftest import Server
from tests.pipeline.explore.outputs import THRESHOLDS, Row, make_rows, write_output
from tests.pipeline.hub import served
from tests.pipeline.report.make_output import HOSTILE

pytestmark = [pytest.mark.browser, needs_browser]
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


def show(tab: Any, fragment: str) -> None:
    """Change the address of the open page, as a link within it does."""
    tab.evaluate("fragment => { location.hash = fragment; }", fragment)


def rows_of(output: str) -> list[Row]:
    """All rows of an output, each box joined with its measurements."""
    files = sorted(Path(output, "arrow").iterdir())
    rows = [row for path in files for row in pa.ipc.open_file(pa.memory_map(str(path))).read_all().to_pylist()]
    for row in rows:
        pairs = zip(row["boxes"] or (), row["box_scores"] or (), strict=True)
        row["found"] = [box | measured | {"chunk": row["noun_chunks"][box["phrase"]]} for box, measured in pairs]
    return rows


def n_kept(row: Row) -> int:
    return sum(box["removed"] is None for box in row["found"])


def phrase(row: Row, box: Box) -> str:
    return str(row["caption"][box["chunk"]["start"] : box["chunk"]["end"]]).lower()


def label(row: Row, box: Box) -> str:
    return str(row["tokens"][box["chunk"]["root"]]["lemma"]).lower()


def text(row: Row) -> str:
    return str(row["caption"] or row["caption_original"]).lower()


def any_box(test: Callable[[Row, Box], bool]) -> Callable[[Row], bool]:
    return lambda row: any(test(row, box) for box in row["found"])


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
    ({"reason": "score:low_clip_score"}, lambda row: row["reason"] == "low_clip_score"),
    ({"q": "A RED"}, lambda row: "red" in text(row) and "a" in text(row)),
    ({"q": '"a red'}, lambda row: "a red" in text(row)),
    ({"q": "zebra crossing"}, lambda row: False),
    ({"host": "images3.example.org"}, lambda row: "images3.example.org" in row["url"]),
    ({"host": "example"}, lambda row: True),
    ({"source": "other.csv"}, lambda row: False),
    ({"image_min": "500", "image_max": "900"}, lambda row: 500 <= min(row["original_width"] or 0, row["original_height"] or 0) <= 900),
    ({"phrase": "red"}, any_box(lambda row, box: "red" in phrase(row, box))),
    ({"box": "kept"}, any_box(lambda _, box: box["removed"] is None)),
    ({"box": "low_score"}, any_box(lambda _, box: box["removed"] == "low_score")),
    ({"box": "removed", "score_min": "0.9"}, any_box(lambda _, box: box["removed"] is not None and box["score"] >= 0.9)),
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
        cosines = [row["clip_similarity"] for row in rows[:60]]
        assert None in cosines
        shown = tab.locator(".card .chips .soft").all_inner_texts()
        assert shown == [f"CLIPScore {2.5 * max(cosine, 0):.2f}" for cosine in cosines if cosine is not None]
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


HIGHER = [
    {"min_score": "0.9", "min_clip_score": "0.8"},
    {"min_clip_score": "0.7777", "min_side_px": "60"},
    {"min_grounded_share": "0.6"},
    {"min_score": "0.8", "min_grounded_share": "0.34"},
    {"min_presence": "0.5"},
]
LOWER = [{}, {"min_score": "0.4"}, {"min_score": "0", "min_clip_score": "0", "min_side_px": "1"}]
ROWS = [
    {},
    {"min_image_similarity": "0.3"},
    {"min_score": "0.9", "min_image_similarity": "0.28", "min_head_score": "5"},
]


@pytest.mark.usefixtures("computed_here")
@pytest.mark.parametrize(
    ("keep_all", "rule", "settings", "with_rows"),
    [
        (False, "area", HIGHER, False),
        pytest.param(True, "released", LOWER, False, marks=pytest.mark.rest),
        pytest.param(False, "area", ROWS, True, marks=pytest.mark.rest),
    ],
)
def test_slider_keeps_what_rewrite_keeps(
    browser: Any, start: Callable[..., Server], tmp_path: Path,
    keep_all: bool, rule: Any, settings: list[dict[str, str]], with_rows: bool,
) -> None:  # fmt: skip
    thresholds = dataclasses.replace(THRESHOLDS, size_rule=rule)
    rows = make_rows(40, thresholds, keep_all, has_head=with_rows, keeps_pairs=with_rows)
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


def test_boxes_of_a_job_without_a_scorer_count_as_the_job_kept_them(
    browser: Any, start: Callable[..., Server], tmp_path: Path
) -> None:
    rows = make_rows(20, has_clip=False)
    output = write_output(tmp_path / "out", [rows], "formats=[arrow,grit]")
    with opened(browser, start(output, marks=str(tmp_path / "m.csv")).url) as tab:
        tab.locator("details.thresholds > summary").click()
        kept = [sum(s["removed"] is None for s in row["box_scores"]) for row in rows if row["status"] == "kept"]
        shown = tab.locator("#kept")
        found = int(shown.get_attribute("data-rows")), int(shown.get_attribute("data-boxes"))
        assert found == (len(kept), sum(kept)) != (0, 0)
        assert tab.locator("[name=min_clip_score]").count() == 0
        assert tab.locator("[name=min_score]").count() == 1


def test_an_opened_row_shows_its_facts_boxes_and_tree(browser: Any, server: Server, output: str) -> None:
    boxes = "[...document.querySelectorAll('.dialog .picture .box')].map(box => box.classList.contains('removed'))"
    rows = [row for row in rows_of(output)[30:60] if row["found"] and row["width"]]
    bare = next(row for row in rows if n_kept(row) == 0)
    mixed = next(row for row in rows if 0 < n_kept(row) < len(row["found"]))
    with opened(browser, server.url) as tab:
        for row in (bare, mixed):  # a row without kept boxes shows the removed ones
            show(tab, f"row=1/{row['key']}")
            tab.wait_for_selector(f".dialog .facts :text-is('{row['key']}')")
            assert tab.evaluate(boxes) == [row is bare] * (len(row["found"]) if row is bare else n_kept(row))
            x, y, width, _ = map(float, tab.locator(".dialog .picture svg").get_attribute("viewBox").split())
            assert width == pytest.approx(row["width"] - 2 * x)  # small pictures have a margin
            assert x == y == min(0, -(400 - max(row["width"], row["height"])) / 2)
        assert tab.locator(".dialog .text").inner_text() == mixed["caption"]
        words = [mixed["caption"][token["start"] : token["end"]] for token in mixed["tokens"]]
        assert tab.locator(".tree .word").all_text_contents() == words
        assert tab.locator(".tree .arc").count() == sum(token["head"] != i for i, token in enumerate(mixed["tokens"]))
        assert tab.locator(".boxes li").count() == n_kept(mixed)
        tab.locator("button[name=share]").click()
        assert tab.locator("input.link").input_value() == f"{server.url}#row=1/{mixed['key']}"
        address = "document.querySelector('.dialog image').getAttribute('href')"
        assert tab.evaluate(f"async () => (await fetch({address})).status") == 200
        show(tab, "row=7/none")
        assert "is not in this output" in tab.locator(".toast").inner_text()


def test_keys_and_links_lead_to_rows_and_their_neighbours(browser: Any, server: Server, output: str) -> None:
    rows = rows_of(output)
    row = next(row for row in rows[30:60] if row["status"] == "kept")
    with opened(browser, server.url) as tab:
        tab.keyboard.press("/")
        tab.keyboard.type("a")
        tab.keyboard.press("Escape")
        tab.locator("[name=status]").select_option("kept")
        until(tab, "location.hash === '#q=a&status=kept'")
        for key in ("j", "j", "k", "Enter"):
            tab.keyboard.press(key)
        tab.wait_for_selector(".dialog .facts")
        with opened(browser, f"{server.url}{tab.evaluate('location.hash')}") as other:
            other.wait_for_selector(".dialog .facts")
            for part in (".dialog .text", "#count"):
                assert other.locator(part).inner_text() == tab.locator(part).inner_text()
            assert other.locator("[name=q]").input_value() == "a"
        before = tab.locator(".dialog header .soft").inner_text()
        tab.keyboard.press("ArrowRight")
        until(tab, f"document.querySelector('.dialog header .soft').innerText !== {json.dumps(before)}")
        tab.go_back()
        tab.wait_for_selector(".dialog", state="detached")
        show(tab, f"row={row['key']}")  # as in the report
        tab.wait_for_selector(".dialog .facts")
        for key, step in (("ArrowRight", 1), ("k", 0), ("k", -1)):
            tab.keyboard.press(key)
            until(tab, f"location.hash.endsWith('{int(row['key']) + step:012d}')")
        missing = [item["key"] for item in rows if item["reason"] == "http_error"]
        before, after = max(k for k in missing if k < row["key"]), min(k for k in missing if k > row["key"])
        for key, neighbour in (("ArrowRight", after), ("ArrowLeft", before)):  # the filters do not select the row
            show(tab, f"reason=download:http_error&row={row['key']}")
            tab.wait_for_selector(".dialog .facts")
            tab.keyboard.press(key)
            until(tab, f"location.hash.endsWith('{neighbour}')")


def test_marks_of_rows_with_hostile_texts_reach_the_file(
    browser: Any, start: Callable[..., Server], hostile_output: str, tmp_path: Path
) -> None:
    path, rows = tmp_path / "marks.csv", rows_of(hostile_output)
    row = next(row for row in rows if row["status"] == "kept" and n_kept(row) >= 3)
    order = sorted(range(len(row["found"])), key=lambda box: row["found"][box]["removed"] is not None)
    no_markup = "document.querySelectorAll('#app script, #app img').length === 0"

    def presses(n: int) -> None:
        until(tab, f"document.querySelectorAll('[aria-pressed=true]').length === {n}")

    with opened(browser, start(hostile_output, marks=str(path)).url) as tab:
        assert tab.evaluate(no_markup)
        tab.locator("[name=q]").fill("<script>alert")
        until(tab, "location.hash.startsWith('#q=')")
        assert int(tab.locator("#count").get_attribute("data-n")) == len(rows)
        show(tab, f"row=0/{row['key']}")
        tab.wait_for_selector(".dialog .facts")
        assert tab.locator(".dialog .text").evaluate("e => e.textContent") == row["caption"]
        tab.keyboard.press("ArrowDown")
        assert tab.locator(".dialog mark").inner_text().lower() == phrase(row, row["found"][order[0]])
        assert HOSTILE[:20] in tab.locator(".tree").evaluate("e => e.textContent")
        assert tab.evaluate(no_markup)
        for key, n in (("r", 1), ("w", 2), ("u", 3)):
            tab.keyboard.press(key)
            presses(n)
        tab.locator(f"li[data-box='{order[1]}'] button[value=wrong]").click()  # a second click removes the mark
        presses(2)
        tab.locator(f"li[data-box='{order[1]}'] button[value=right]").click()
        presses(3)
        tab.reload()
        tab.wait_for_selector(".dialog .facts")
        assert tab.locator("[aria-pressed=true]").count() == 3
        tab.keyboard.press("Escape")
        assert tab.locator("#marked").inner_text().startswith("2 right, 0 wrong, 1 unsure")
    assert sorted(box.number for _, box, _ in marked_boxes(hostile_output, path)) == sorted(order[:2])


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_page_fits_the_window_and_corrects_values_that_a_job_refuses(
    browser: Any, server: Server, width: int, scheme: str
) -> None:
    with opened(browser, f"{server.url}#min_score=abc&min_side_px=40.5&page=-3", width, scheme) as tab:
        assert tab.locator("#command").inner_text().endswith("_refiltered score.min_side_px=41")
        assert "NaN" not in tab.locator(".sliders").inner_text()
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        show(tab, "page=0.5&min_clip_score=Infinity")
        until(tab, "document.querySelector('#command').innerText.endsWith(' score.min_clip_score=2.5')")
        assert tab.locator("article").count() == 60
        tab.keyboard.press("?")
        assert "search captions" in tab.locator(".help").inner_text()
        tab.keyboard.press("Escape")
        tab.locator("article").first.click()
        tab.wait_for_selector(".dialog .facts")
        assert tab.evaluate("document.querySelector('.dialog').scrollWidth") <= width
        show(tab, "row=000000000002")
        tab.wait_for_selector(".dialog .no-image")
        assert are_labels_inside(tab)
        colour, dark = "getComputedStyle(document.body).backgroundColor", "rgb(17, 20, 26)"
        assert (tab.evaluate(colour) == dark) == (scheme == "dark")
        tab.keyboard.press("Escape")
        for is_dark in (False, True):
            tab.locator("button[name=theme]").click()
            assert (tab.evaluate(colour) == dark) == is_dark


@contextmanager
def file_server(folder: Path) -> Iterator[str]:
    """The address of a plain file server of a folder."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            return

    with served(functools.partial(Quiet, directory=str(folder))) as url:
        yield url


def test_static_page_shows_a_sample_of_the_pictures_and_downloads_marks(
    browser: Any, output: str, hostile_output: str, cache: str, tmp_path: Path
) -> None:
    site, path = tmp_path / "site", tmp_path / "marks.csv"
    assert main([output, f"static={site}", "images=20", f"cache={cache}"]) == 0
    with file_server(site) as url, opened(browser, f"{url}/index.html") as tab:
        assert "a random sample of 20 of" in tab.locator(".bar").inner_text()
        show(tab, "row=000000000002")
        tab.wait_for_selector(".dialog .no-image")
        assert are_labels_inside(tab)
        show(tab, "status=kept")
        tab.locator("article").first.click()
        tab.wait_for_selector(".row .facts")
        tab.keyboard.press("r")
        tab.wait_for_selector("[aria-pressed=true]")
        tab.keyboard.press("Escape")
        tab.reload()
        tab.wait_for_selector("button[name=download]")
        with tab.expect_download() as download:
            tab.locator("button[name=download]").click()
        path.write_bytes(Path(download.value.path()).read_bytes())
        tab.goto("about:blank")  # the page must ask for no image of a folder that is removed
        shutil.rmtree(site)  # a page of another output at the same address
        assert main([hostile_output, f"static={site}", "images=0", f"cache={cache}"]) == 0
        tab.goto(f"{url}/index.html")
        tab.wait_for_selector("#count")
        assert tab.locator("#marked").count() == 0
    assert len(marked_boxes(output, path)) == 1


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
