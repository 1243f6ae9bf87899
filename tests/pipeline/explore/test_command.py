"""The command: its mistakes, the files that `static=` writes, and the vendored libraries."""

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.explore import main
from pipeline.explore import rows
from pipeline.explore.site import CODE, IMAGE_FILE, ROWS_FILE
from pipeline.output.ledger import read_manifests
from pipeline.output.store import Store
from pipeline.read.takedown import parse_takedown
from pipeline.report import stats
from schemas.scores import CROP_SCORES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["port=0"], "0 outputs are given"),
        (["{output}", "{output}"], "2 outputs are given"),
        (["{output}", "color=red"], "'color' is not a key of this command; it takes report,"),
        (["{output}", "port=99999"], "port"),
        (["{tmp}/nothing"], "does not exist"),
        (["https://u:p@example.org/x"], "a user name or a password"),
        (["{output}", "static={tmp}"], "is not empty; give a new folder"),
        (["{output}", "static={tmp}/file/page"], "page cannot be written"),
        (["{output}", "static=s3://bucket/page"], "static is a URL, but it must be a local path"),
        (["date=2026"], "is not a key"),
        (["{output}", "address=256.1.1.1"], "cannot be used"),
    ],
)
def test_mistakes_end_with_a_message(
    arguments: list[str], message: str, output: str, cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    given = [argument.format(output=output, tmp=tmp_path) for argument in arguments]
    assert main([*given, f"cache={cache}", f"marks={tmp_path}/m.csv"]) == 2
    assert message in capsys.readouterr().err


def test_folders_with_an_equals_sign_are_outputs(
    output: str, cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "date=2026").symlink_to(output)
    monkeypatch.chdir(tmp_path)
    names = {f"{tmp_path}/date=2026": "date=2026", "./date=2026": "./date=2026", "date=2026": "date=2026"}
    for number, (name, shown) in enumerate(names.items()):
        assert main([name, f"static=page{number}", "images=0", f"cache={cache}"]) == 0
        assert json.loads((tmp_path / f"page{number}/data/site.json").read_text())["output"]["name"] == shown
    assert main([f"{tmp_path}/date=2027", f"cache={cache}"]) == 2
    assert "date=2027 does not exist" in capsys.readouterr().err


def test_a_row_shows_all_scores_of_its_crops(monkeypatch: pytest.MonkeyPatch) -> None:
    box = {"x_min": 0.0, "y_min": 0.1, "x_max": 0.5, "y_max": 1.0, "score": 0.7}
    score = {"clip_cosine": 0.25, "detail": 0.5, "removed": None}
    assert rows.describe_box(box, score) == "[0.000, 0.100, 0.500, 1.000] score 0.700, CLIPScore 0.625, kept"
    monkeypatch.setattr(rows, "CROP_SCORES", (*CROP_SCORES, replace(CROP_SCORES[0], column="detail", unit="number")))
    assert ", CLIPScore 0.625, detail 0.500, kept" in rows.describe_box(box, score)


def test_help_lists_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "  marks = explore.csv\n" in capsys.readouterr().out


def test_a_row_that_is_not_there_may_be_taken_down(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(output, tmp_path / "out")
    for entries in ([], ["gone.test"]):
        Store(str(copy)).record_takedowns(parse_takedown(entries, "list"))
        assert main([str(copy), "row=nobody"]) == 2
        assert ("have only their key, no id and no URL" in capsys.readouterr().err) == bool(entries)


def test_a_report_beside_a_takedown_shows_none_of_its_rows(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(output, tmp_path / "out")

    def counted(*arguments: Any) -> Any:
        found = collect(*arguments)
        Store(str(copy)).record_takedowns(parse_takedown(["example.org"], "list"))
        return found

    collect = stats.collect
    monkeypatch.setattr(stats, "collect", counted)
    assert main([str(copy), "report=true"]) == 2
    assert "rows are being taken down from" in capsys.readouterr().err
    assert not (copy / "stats.json").exists()
    monkeypatch.undo()
    assert main([str(copy), "report=true"]) == 0


def test_static_pages_hold_all_rows_and_a_sample_of_the_images(output: str, cache: str, tmp_path: Path) -> None:
    samples = []
    for name in ("one", "two"):
        folder = tmp_path / name
        assert main([output, f"static={folder}", "images=10", "seed=3", f"cache={cache}"]) == 0
        site = json.loads((folder / "data/site.json").read_text(encoding="utf-8"))
        samples.append(site["output"]["images"])
    assert samples[0] == samples[1]
    assert len(samples[0]) == 10
    data = folder / site["output"]["folder"]
    assert len(list(data.glob("images/*/*.jpg"))) == 10
    shards = json.loads((data / "meta.json").read_text(encoding="utf-8"))["shards"]
    for row in samples[0]:
        shard = [item for item in shards if item["first"] <= row][-1]
        assert (data / IMAGE_FILE.format(shard["shard"], row - shard["first"])).is_file()
    rows = [json.loads((data / ROWS_FILE.format(m["shard"], 0)).read_text()) for m in read_manifests(Store(output))]
    assert sum(map(len, rows)) == 72
    assert (site["marks"], site["token"]) == (None, None)
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if "data" not in path.parts} >= {
        "index.html", "style.css", "js/app.js", "vendor/packages.json"}  # fmt: skip


def test_a_static_page_holds_its_disk(output: str, cache: str, tmp_path: Path) -> None:
    disk = {"model": "m", "projection": "norms", "points": [["000000000000", "image", "a cat", 0.5, 0.0]]}
    (tmp_path / "disk.json").write_text(json.dumps(disk), encoding="utf-8")
    arguments = [output, f"static={tmp_path / 'page'}", "images=0", f"cache={cache}"]
    assert main([*arguments, f"disk=[{tmp_path / 'disk.json'}]"]) == 0
    assert json.loads((tmp_path / "page" / "data" / "site.json").read_text(encoding="utf-8"))["disks"] == [disk]


def test_vendored_files_are_those_of_their_packages_with_their_licences() -> None:
    vendor = CODE / "vendor"
    packages = json.loads((vendor / "packages.json").read_text(encoding="utf-8"))
    listed = {
        f"{package['folder']}/{name}": digest for package in packages for name, digest in package["files"].items()
    }
    files = {path.relative_to(vendor).as_posix(): path for path in vendor.rglob("*") if path.is_file()}
    assert set(listed) == files.keys() - {"packages.json"}
    for name, digest in listed.items():
        assert hashlib.sha256(files[name].read_bytes()).hexdigest() == digest, name
    for package in packages:
        assert re.fullmatch(r"\d+\.\d+\.\d+", package["version"])
        assert any(name.startswith("LICENSE") for name in package["files"])


def test_page_refers_to_its_own_files_only() -> None:
    for path in [*CODE.glob("*.html"), *CODE.glob("*.css"), *CODE.glob("js/*.js")]:
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"(?:https?:)?//[\w.-]+\.\w+/", text.replace("http://www.w3.org/", "")), path
        for name in re.findall(r'(?:from|src=|href=) ?"([^"$]+)"', text):
            assert (path.parent / name).is_file(), (path, name)
        assert not re.search(r"innerHTML|dangerously|document\.write|eval\(|new Function", text), path


def test_code_of_the_page_is_packaged() -> None:
    project = (Path(__file__).resolve().parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    patterns = re.search(r'^"\*" = \[(.*)\]$', project, re.MULTILINE)
    assert patterns is not None
    kinds = set(re.findall(r'"\*(\.\w+)"', patterns[1]))
    assert {path.suffix for path in CODE.rglob("*") if path.is_file()} <= kinds
