"""The comparison of two outputs: its figures, its text, and its page."""

import os
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from pipeline.commands.explore import main
from pipeline.explore.compare import (
    Figure,
    change,
    differences,
    most_different,
    overlays,
    read_contents,
    sections,
    share_ticks,
)
from pipeline.report.stats import build_stats
from tests.pipeline.commands.verify.damage import edit_manifest
from tests.pipeline.explore.compare.outputs import write, write_a, write_b
from tests.pipeline.output.write import shards

Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    return write_a(folder / "a"), write_b(folder / "b")


def compare(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def figures(pair: tuple[Path, Path], title: str) -> dict[str, Figure]:
    found = sections(*(read_contents(str(output)) for output in pair))
    return {figure.name: figure for section in found if section.title == title for figure in section.figures}


def test_rows_and_drops_stand_beside_each_other(pair: tuple[Path, Path]) -> None:
    rows = figures(pair, "Rows")
    assert (rows["read"].a, rows["read"].b, rows["read"].change) == (4, 8, 4)
    assert (rows["kept"].share_a, rows["kept"].share_b) == (0.75, 0.25)
    assert rows["kept"].change == -0.5
    drops = figures(pair, "Dropped rows by stage and reason")
    assert list(drops) == ["download: timeout", "download: http_error"]
    assert (drops["download: timeout"].a, drops["download: timeout"].b) == (0, 4)
    assert drops["download: http_error"].change == 0


def test_phrases_boxes_means_and_speeds_are_those_of_the_reports(pair: tuple[Path, Path], tmp_path: Path) -> None:
    stats = []
    for output in pair:
        shutil.copytree(output, tmp_path / output.name)
        stats.append(build_stats(str(tmp_path / output.name)))
    found = figures(pair, "Boxes")
    assert [found["kept"].a, found["kept"].b] == [stat["boxes"]["kept"] for stat in stats] == [12, 5]
    assert found["kept per kept row"].change == pytest.approx(2.5 - 4)
    assert found["removed: low_clip_score"].share_a == 3 / 15
    means = figures(pair, "Means")
    assert means["Caption length"].a == stats[0]["histograms"]["caption_length"]["mean"]["captions"]
    cosine = stats[0]["histograms"]["clip_similarity"]["mean"]["images"]
    assert means["CLIPScore of image and caption"].a == pytest.approx(2.5 * cosine)
    assert figures(pair, "Speed")["ground"].change == 2
    assert not (pair[0] / "stats.json").exists()  # nothing is written to an output


def test_texts_and_hosts_are_ranked_by_the_difference_of_their_shares(pair: tuple[Path, Path]) -> None:
    assert next(iter(figures(pair, "Hosts that differ most"))) == "slow.example.org"
    names = list(figures(pair, "Phrases that differ most"))
    assert any("<script>" in name for name in names)
    found = most_different(Counter(cat=50, dog=50), Counter(cat=10, dog=20, cow=1))
    assert [(figure.name, round(figure.change or 0, 3)) for figure in found] == [
        ("cat", round(10 / 31 - 0.5, 3)), ("dog", round(20 / 31 - 0.5, 3)), ("cow", round(1 / 31, 3)),
    ]  # fmt: skip
    assert most_different(Counter(), Counter(cat=1)) == []
    assert most_different(Counter(cat=1), Counter(cat=2)) == []


def test_settings_and_versions_that_differ_are_named(pair: tuple[Path, Path]) -> None:
    a, b = (read_contents(str(output)).stats for output in pair)
    b["provenance"] = {**b["provenance"], "hypergrit": "9.9"}
    settings, versions = differences((a, b))
    assert [item.name for item in settings] == ["limit", "score.min_score"]
    assert (settings[0].a, settings[0].b) == ("null", "8")
    assert [(item.name, item.a, item.b) for item in versions] == [("hypergrit", "–", "9.9")]


def test_histograms_are_shares_of_each_output(pair: tuple[Path, Path]) -> None:
    charts = {chart.name: chart for chart in overlays(*(read_contents(str(output)).stats for output in pair))}
    chart = charts["boxes_per_image-images"]
    assert [title for _, _, title in chart.bins if "100.0%" in title or "50.0%" in title] == [
        "1: A 0.0%, B 50.0%", "4: A 100.0%, B 50.0%",
    ]  # fmt: skip
    ys = [float(y) for y in re.findall(r"V([\d.]+)", chart.outlines[0])]
    assert min(ys) == chart.top  # the highest bar reaches the last tick, 100 %
    assert max(ys) == chart.bottom
    assert chart.y_ticks[-1] == (chart.top, "100 %")
    assert "grounding_score-removed" not in charts or charts["grounding_score-removed"].summary
    assert share_ticks(0.93) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_cosines_are_shown_as_clipscores(pair: tuple[Path, Path]) -> None:
    found = figures(pair, "Means")
    means = read_contents(str(pair[0])).stats["histograms"]["clip_cosine"]["mean"].values()
    shown = [figure.a for name, figure in found.items() if name.startswith("CLIPScore of box and phrase")]
    assert shown
    assert shown == pytest.approx([2.5 * mean for mean in means if mean is not None])


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure("", 1, 2), "+1"),
        (Figure("", 2.5, 1.25), "-1.250"),
        (Figure("", 1, 3, 10, 10), "+20.00 pts"),
        (Figure("", 1, 1, 10, 10), "0"),
        (Figure("", None, 1), "–"),
        (Figure("", 1, 1, 10, 0), "–"),
    ],
)
def test_a_difference_is_in_points_for_shares(figure: Figure, text: str) -> None:
    assert change(figure) == text


def test_the_command_prints_the_tables_and_writes_a_page_without_scripts(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {path: path.stat().st_mtime_ns for output in pair for path in output.rglob("*")}
    assert compare(*pair, "compare=compare.html") == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert re.search(r"kept +3 +75.0% +2 +25.0% +-50.00 pts", text)
    assert "limit: null -> 8" in text
    page = (tmp_path / "compare.html").read_text()
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "\x1b" not in page
    assert page.count("data-chart=") == page.count('<path class="b"') >= 4
    assert {path: path.stat().st_mtime_ns for output in pair for path in output.rglob("*")} == before


def test_outputs_without_arrow_are_compared_by_their_manifests(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    light = write(tmp_path / "light", shards.rows(), formats=["train"])
    assert compare(light, pair[0], f"compare={tmp_path}/x.html") == 0
    assert re.search(r"kept +12 +80.0% +12 +80.0% +0", capsys.readouterr().out)
    assert "1 shards of A have no" in (tmp_path / "x.html").read_text()


def test_an_output_compared_with_itself_differs_in_nothing(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    assert compare(pair[0], pair[0], f"compare={tmp_path}/x.html") == 0
    text = capsys.readouterr().out
    assert "Settings that differ: none" in text
    assert "Phrases that differ most" not in text
    assert " pts" not in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["A", "missing"], "does not exist"),
        (["A", "A", "compare=folder"], "give a file in a folder that exists"),
        (["A", "A", "compare=missing/x.html"], "give a file in a folder that exists"),
        (["A", "https://ann:secret@example.org/b"], "a user name or a password"),
        (["A", "damaged"], "00000.arrow is damaged"),
        (["A", "no sum"], "check it with `hypergrit verify"),
        (["A", "no yaml"], "config.yaml is damaged"),
    ],
)
def test_wrong_arguments_are_errors_of_the_user(
    pair: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Printed,
    arguments: list[str],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("folder")
    shutil.copytree(pair[0], "damaged")
    Path("damaged/arrow/00000.arrow").write_bytes(b"ARROW1\0\0")
    shutil.rmtree("damaged/_summaries")  # else arrow/ is not read
    shutil.copytree(pair[0], "no sum")
    edit_manifest(Path("no sum"), lambda manifest: manifest["counts"].update(kept=2), index=0)
    shutil.copytree(pair[0], "no yaml")
    Path("no yaml", "config.yaml").write_text("{a: [")
    given = ["compare=compare.html", *(str(pair[0]) if name == "A" else name for name in arguments)]
    assert compare(*given[len(arguments) - 2 :]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert "secret" not in error
    assert not Path("compare.html").exists()
