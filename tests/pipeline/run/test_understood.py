"""The input is told before the first request, in stats.json and in the report, and the same after a restart."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipeline.faults import Fault
from pipeline.read import plan
from pipeline.report.advice import find_advice
from pipeline.stages.download.stage import Download
from pipeline.summary.totals import LIST_TEXT
from tests.pipeline.jobs import WITHOUT_MODELS, run_job
from tests.pipeline.report.test_html import page

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e"
Printed = pytest.CaptureFixture[str]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "rows.jsonl"
    path.parent.mkdir()
    captions = [HOSTILE, "nan", "NULL", "nan", r"\N", "a dog"]
    path.write_text(
        "".join(json.dumps({"url": f"http://x.invalid/{i}", "TEXT": text}) + "\n" for i, text in enumerate(captions))
    )
    return path


def run(rows: Path, output: Path, *arguments: str) -> int:
    return run_job(rows, output, *WITHOUT_MODELS, "download.retries=0", *arguments)


def test_the_input_is_told_before_the_first_request_and_after_a_restart(
    rows: Path, tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list[str]()
    fetch = Download.isolate

    def noting(self: Download, table: pa.Table) -> tuple[pa.Table, list[Fault]]:
        before.append(capsys.readouterr().out)
        return fetch(self, table)

    monkeypatch.setattr(Download, "isolate", noting)
    run(rows, tmp_path / "out")
    told = before[0]
    assert told.startswith(f"input     1 jsonl file with 6 rows, the first: {rows}\nurl       url\ncaption   TEXT\n")
    assert "\x1b" not in told
    content = (tmp_path / "out" / "stats.json").read_bytes()
    stats = json.loads(content)
    assert stats["input"]["readings"][0]["first_row"]["url"] == "http://x.invalid/0"
    assert stats["null_captions"] == {"nan": 2, "NULL": 1, r"\N": 1}
    (advice,) = (text for key, text, *_ in find_advice(stats) if key == "null_captions")
    assert advice == r"4 of the captions of the input mean a missing value, or a list: nan (2), NULL (1), \N (1)"
    html = page(tmp_path / "out")
    assert "<script>alert(1)" not in html
    assert html.index("How the input was understood") < html.index("Rows kept")
    monkeypatch.setattr(plan, "_cut_text", None)  # the input is not read again
    capsys.readouterr()
    run(rows, tmp_path / "out")
    assert capsys.readouterr().out[: len(told)] == told
    assert (tmp_path / "out" / "stats.json").read_bytes() == content


def test_a_dry_run_begins_with_it_and_quiet_leaves_it_out(rows: Path, tmp_path: Path, capsys: Printed) -> None:
    run(rows, tmp_path / "out", "dry_run=true")
    assert capsys.readouterr().out.startswith("input     1 jsonl file with 6 rows")
    run(rows, tmp_path / "quiet", "quiet=true")
    assert "jsonl file" not in capsys.readouterr().out


def test_an_appended_file_and_another_reading_are_told(rows: Path, tmp_path: Path) -> None:
    def told() -> list[tuple[str, int, int, list[str]]]:
        parts = json.loads((tmp_path / "out" / "stats.json").read_bytes())["input"]["readings"]
        return [(part["format"], part["files"], part["rows"], part["columns"]["caption"]) for part in parts]

    run(rows.parent, tmp_path / "out")
    (rows.parent / "z.csv").write_text("url,alt,title\nhttp://x.invalid/9,a cat,Cat\n")
    run(rows.parent, tmp_path / "out")
    assert told() == [("jsonl", 1, 6, ["TEXT"]), ("csv", 1, 1, ["alt"])]
    rows.unlink()
    run(rows.parent, tmp_path / "out", "read.caption_column=title", "overwrite=true")
    assert told() == [("csv", 1, 1, ["title"])]


@pytest.mark.parametrize(
    ("caption", "is_list"),
    [
        ("['a red kite', \"two kites\"]", True),
        (' ["ein Drachen"] ', True),
        ("{'en': 'a kite', 'de': 'ein Drachen'}", True),
        ("[a kite]", False),
        ("'a kite' [stock photo]", False),
        ("a sign that says ['open']", False),
    ],
)
def test_a_caption_that_is_the_text_of_a_list_is_known(caption: str, is_list: bool) -> None:
    assert pc.match_substring_regex(pa.array([caption]), LIST_TEXT).to_pylist() == [is_list]
