import base64
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest

from hypergrit_common.errors import UserError
from pipeline.commands.explore import main, write_report_again
from pipeline.config import ReportConfig, WriteConfig
from pipeline.report.html import write_report
from pipeline.report.stats import build_stats
from tests.pipeline.report.make_output import with_markup, write_output
from tests.pipeline.settings import with_constants


class Elements(HTMLParser):
    """The start tags of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def page(output: Path) -> str:
    return (output / "report.html").read_text("utf-8")


def with_statistics(output: Path, copy: Path, **values: object) -> Path:
    """A copy of an output with these values in stats.json, and the report of them."""
    shutil.copytree(output, copy)
    (copy / "stats.json").write_text(json.dumps(json.loads((copy / "stats.json").read_text()) | values))
    write_report(str(copy))
    return copy


def test_page_shows_images_trees_charts_accuracy_and_configuration(output: Path) -> None:
    text = page(output)
    assert text.count('<img src="data:image/jpeg;base64,') >= 10
    assert text.count('class="displacy"') == 4
    assert set(re.findall(r'data-chart="(\w+)"', text)) == {
        "box_area_ratio", "boxes_per_image", "caption_length", "grounding_score", "clip_cosine", "clip_similarity",
        "grounded_share", "image_side",
    }  # fmt: skip
    assert "styles · held out" in text
    assert "rows_per_shard: 48" in text
    assert text.count(">min 0.65<") == 2  # the thresholds of the grounding score and of the CLIPScore
    assert len(text) < 2_000_000


def test_page_lists_damaged_input_files(output: Path, tmp_path: Path) -> None:
    assert "Damaged" not in page(output)
    damaged = {"path": "in/<b>.jsonl.gz", "rows": 1234, "error": "no gzip & no text"}
    text = page(with_statistics(output, tmp_path / "out", damaged=[damaged]))
    for part in ('href="#damaged"', "in/&lt;b&gt;.jsonl.gz", '<td class="n">1,234</td>', "no gzip &amp; no text"):
        assert part in text


def test_page_has_no_external_resources_and_one_script_that_its_policy_names(output: Path) -> None:
    text = page(output)
    elements = Elements(text).found
    assert [tag for tag, _ in elements].count("script") == 1
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for t, a in elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert f"script-src 'sha256-{digest}';" in policy
    assert not {tag for tag, _ in elements} & {"iframe", "object", "form"}
    for tag, attributes in elements:
        assert tag != "img" or attributes.get("alt")
        for name in ("src", "href", "srcset"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)


def test_markup_in_captions_and_urls_is_escaped(tables: list[pa.Table], tmp_path: Path) -> None:
    output = write_output(tmp_path, [with_markup(table) for table in tables])
    build_stats(output, truth={"<b>x</b>": {"precision": 1.0, "recall": 1.0}})
    write_report(output)
    elements = Elements(page(tmp_path)).found
    assert [tag for tag, _ in elements].count("script") == 1
    assert not [name for _, attributes in elements for name in attributes if name.startswith("on")]
    assert "&lt;script&gt;" in page(tmp_path)
    content = (tmp_path / "report.html").read_bytes().decode()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", content)
    assert r"\x1b[2J" in content


def test_same_shards_give_the_same_images(output: Path) -> None:
    pictures = re.findall(r'src="(data:[^"]+)"', page(output))
    write_report(str(output))
    assert re.findall(r'src="(data:[^"]+)"', page(output)) == pictures


def test_other_seed_shows_other_images(tables: list[pa.Table], tmp_path: Path) -> None:
    output = write_output(tmp_path, tables)
    build_stats(output)
    shown = []
    for seed in (0, 1):
        write_report(output, with_constants(ReportConfig, pictures=3, trees=0, seed=seed))
        shown.append(re.findall(r'<p class="foot"><span data-copy="#row=(\d{12})', page(tmp_path)))
    assert len(shown[0]) == len(shown[1]) == 3
    assert shown[0] != shown[1]


@pytest.mark.parametrize(
    ("formats", "image_bytes", "n_pictures"),
    [(("arrow",), True, 5), (("arrow",), False, 0), (("train", "grit"), False, 0)],
)
def test_images_are_read_from_any_format_that_contains_them(
    tables: list[pa.Table], tmp_path: Path, formats: tuple[str, ...], image_bytes: bool, n_pictures: int
) -> None:
    output = write_output(tmp_path, tables, WriteConfig(formats=formats, image_bytes=image_bytes), timings=False)
    build_stats(output)
    write_report(output, with_constants(ReportConfig, pictures=5))
    assert page(tmp_path).count("<img ") == n_pictures


def test_page_of_a_run_without_arrow_explains_what_is_missing(
    output: Path, tables: list[pa.Table], tmp_path: Path
) -> None:
    folder = write_output(tmp_path, tables, WriteConfig(formats=("train", "grit")))
    build_stats(folder)
    write_report(folder)
    text = page(tmp_path)
    assert "2 of 2 shards were written without" in text
    assert "Repeated images" not in text
    assert "Click on a reason" not in text
    assert "were written without" not in page(output)
    assert "Repeated images" in page(output)
    assert "Click on a reason" in page(output)


def test_error_for_missing_statistics_names_the_command_that_creates_them(
    tables: list[pa.Table], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"hypergrit explore .* report=true"):
        write_report(write_output(tmp_path, tables[:1]))


def test_command_rebuilds_both_files_and_keeps_the_truth(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = page(output), (output / "stats.json").read_text()
    (output / "report.html").unlink()
    assert main([str(output), "report=true"]) == 0
    assert (output / "stats.json").read_text() == before[1]
    assert re.findall("<img[^>]+>", page(output)) == re.findall("<img[^>]+>", before[0])
    assert "precision 0.950" in capsys.readouterr().out


@pytest.mark.parametrize("content", ['{"rows": {"re', "[]", '{"truth": {"boxes": "many"}}', "\ud800"])
def test_a_damaged_file_of_statistics_is_written_again(
    output: Path, tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    copy = Path(shutil.copytree(output, tmp_path / "out"))
    (copy / "stats.json").write_bytes(content.encode(errors="surrogatepass"))
    write_report_again(str(copy))
    assert "stats.json is damaged" in caplog.text
    before, after = (json.loads((folder / "stats.json").read_text()) for folder in (output, copy))
    assert after == {name: value for name, value in before.items() if name != "truth"}


def test_command_fails_for_a_folder_without_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "report=true"]) == 2
    assert "no finished shard" in capsys.readouterr().err


def test_the_report_of_a_running_job_says_how_many_shards_are_finished(
    output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "shards finished" not in page(output)
    copy = Path(shutil.copytree(output, tmp_path / "out"))
    batches = [{"shards": n, "rows": n, "first_shard": 0, "first_row": 0, "files": []} for n in (3, 4)]
    record = {"schema": "0", "settings": {"rows_per_shard": 1}, "provenance": {}, "batches": batches}
    (copy / "_job.json").write_text(json.dumps(record))
    assert main([str(copy), "report=true"]) == 0
    assert "<b>2 of 7 shards finished.</b>" in page(copy)
    assert capsys.readouterr().out.startswith("2 of 7 shards finished\n")
    (copy / "_command.json").write_text(json.dumps({"schema": "0", "command": "refilter", "shards": [0, 1]}))
    assert main([str(copy), "report=true"]) == 0
    assert "shards finished" not in page(copy)


def test_estimates_are_marked_as_such(output: Path, tmp_path: Path) -> None:
    assert not re.search(r"estimated|too high", page(output))
    stats = json.loads((output / "stats.json").read_text())
    stats["duplicates"] |= {"distinct": 100_000, "error": 0.0039}
    stats["top"]["errors"] = {"phrases": 12_345, "hosts": 7}
    text = page(with_statistics(output, tmp_path / "out", **stats))
    assert "estimated, ± 780" in text
    assert "too high by at most 12,345 (phrases);" in text


def stages_of(path: Path) -> list[str]:
    return re.findall(r'<div class="stage">\s*<b>(\w+)</b>', page(path))


def test_rows_by_stage_have_the_stages_that_ran_or_dropped_rows(output: Path, tmp_path: Path) -> None:
    stats = json.loads((output / "stats.json").read_text())
    assert set(stages_of(output)) == {*stats["stages"], *stats["rows"]["dropped"]}
    assert "recaption" not in stages_of(output)
    speed = {"seconds": 1.0, "rows": 1.0, "rows_per_second": 1.0}
    for stages, expected in ({**stats["stages"], "recaption": speed}, True), ({}, False):
        copy = with_statistics(output, tmp_path / str(expected), stages=stages)
        assert ("recaption" in stages_of(copy)) == expected
        assert {"read", "download", "parse", "ground"} <= set(stages_of(copy))
