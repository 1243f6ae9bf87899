"""The rows of the papers' tables, and how they are shown beside ours."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from trainer.evaluation.catalog import TASKS, set_infos
from trainer.evaluation.report.page import write_pages
from trainer.evaluation.report.tables import Table, build_table, markdown, notes_of, published, unit_of
from trainer.evaluation.tasks.linear_probe import NAMES as PROBE_SETS

PAPERS = {
    "MERU": {"1", "2", "7"},
    "HyCoCLIP": {"1", "2", "3", "5", "9", "10"},
    "PHyCLIP": {"1", "2", "3", "4", "6"},
    "PoinCLIP": {"1", "2"},
    "Syntax-MERU": {"1", "2", "3"},
    "HiMo-CLIP": {"3"},
    "UNCHA": {"of its README"},
    "Hyper3-CLIP": {"of its README"},
}
COUNTS = {
    "replace_obj": 1652,
    "replace_att": 788,
    "replace_rel": 1406,
    "swap_obj": 245,
    "swap_att": 666,
    "add_obj": 2062,
    "add_att": 692,
}
"""Examples of the seven files of SugarCrepe."""
ROWS = [(task, row) for task, rows in published().items() for row in rows]


def result(task: str, metrics: dict[str, float]) -> dict[str, Any]:
    """The content of a result file."""
    return {
        "model": {"name": "meru", "hash": "0" * 64},
        "metrics": metrics,
        "chance": {},
        "rules": {},
        "n_used": 1,
        "skipped": {},
        "checksums": {},
        "details": {},
        "figures": [],
        "contamination": None,
        "task": task,
    }


@pytest.mark.parametrize(("task", "row"), ROWS)
def test_each_row_names_paper_table_backbone_data_and_units(task: str, row: dict[str, Any]) -> None:
    assert task in TASKS
    assert row["table"] in PAPERS[row["paper"]]
    assert row["backbone"] in {"S/16", "B/16", "L/16", "L/14", "RN50", "RN50x4", "unstated"}
    assert row["data"] in {"RedCaps", "GRIT", "RedCaps with boxes", "GRIT with boxes", "CC3M with boxes", "unstated"}
    for name, text in row["values"].items():
        unit, value = unit_of(row, name), float(text)
        least, most, decimals = {
            "percent": (0, 100, (1, 2)),
            "share": (0, 1, (2, 4)),
            "edges": (1, 28, (2, 3)),  # 15 levels on either side of the root
            "tau": (-1, 1, (2,)),
        }[unit]
        assert least <= value <= most
        assert len(text.partition(".")[2]) in decimals


def test_no_row_is_listed_twice() -> None:
    keys = [(task, *(row[key] for key in ("paper", "table", "model", "backbone", "data"))) for task, row in ROWS]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("task", ["classification", "linear_probe"])
def test_columns_are_the_sets(task: str) -> None:
    keys = {name.removesuffix("/accuracy") for row in published()[task] for name in row["values"]}
    assert keys == set(set_infos() if task == "classification" else PROBE_SETS)


def test_overall_of_sugarcrepe_is_the_micro_average_of_its_columns() -> None:
    for row in published()["sugarcrepe"]:
        total = sum(COUNTS[name] * float(row["values"][name]) for name in COUNTS) / sum(COUNTS.values())
        assert total == pytest.approx(float(row["values"]["overall"]), abs=0.011)


@pytest.mark.parametrize("task", list(published()))
def test_published_numbers_are_shown_as_printed(task: str, tmp_path: Path) -> None:
    rows = published()[task]
    metrics = {name: 0.5 for row in rows for name in row["values"]}
    results = {"ours": {task: result(task, metrics)}}
    table = build_table(task, results)
    assert table.lines[0].is_ours
    assert len(table.lines) == 1 + len(rows)
    write_pages(results, [task], tmp_path, tmp_path, {})
    for text, pattern in (
        (markdown([task], results, {}), r"^\| (?!---)(.+) \|$"),
        ((tmp_path / "index.html").read_text(), r"<tr><th class=\"model\">.*?</tr>"),
    ):
        shown = re.findall(pattern, text, re.MULTILINE | re.DOTALL if "<" in pattern else re.MULTILINE)
        cells = [[unescape(re.sub("<[^>]*>", "", cell)) for cell in split_row(line)] for line in shown]
        for row in rows:
            backbone = "backbone unstated" if row["backbone"] == "unstated" else row["backbone"]
            source = f"{row['paper']}, table {row['table']}, {backbone}, {row['data']}"
            (found,) = [line for line in cells if row["model"] in line and source in line]
            numbers = [cell for cell in found if cell not in (row["model"], source)]
            assert numbers == [row["values"].get(name, "–") for name in table.columns]


def split_row(line: str) -> list[str]:
    """The cells of a row of Markdown, or of HTML."""
    if line.startswith("<tr"):
        return re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line)
    return [cell.replace("\\", "") for cell in line.split(" | ")]


def ours(task: str, metrics: dict[str, float]) -> Table:
    return build_table(task, {"ours": {task: result(task, metrics)}})


@pytest.mark.parametrize(
    ("task", "metrics", "numbers"),
    [
        ("hierarchical", {"TIE": 3.2854, "J": 0.80651, "paper/J": 0.9, "accuracy_micro": 0.5}, ["3.285", "0.8065"]),
        ("hierarcaps", {"path/precision": 0.13, "path/tau": 0.5, "pep/auc": 0.75}, ["0.1300", "0.500"]),
    ],
)
def test_our_numbers_have_the_unit_of_the_papers_column(
    task: str, metrics: dict[str, float], numbers: list[str]
) -> None:
    assert [cell.text for cell in ours(task, metrics).lines[0].cells] == numbers


def test_an_own_data_set_has_a_column_beside_those_of_the_papers() -> None:
    names = ("own/softmax/accuracy", "own/accuracy", "imagenet/accuracy", "imagenet/accuracy_micro")
    table = ours("classification", dict.fromkeys(names, 0.4))
    assert table.columns == ("imagenet/accuracy", "own/accuracy")
    assert [cell.text for cell in table.lines[0].cells] == ["40.0", "40.0"]
    assert {line.cells[1].text for line in table.lines[1:]} == {"–"}


def test_lower_is_better_is_in_the_headings() -> None:
    assert ours("hierarchical", {"TIE": 3.2, "J": 0.8, "P_H": 0.8}).headings == [["TIE ↓"], ["J"], ["P_H"]]


def test_a_note_that_holds_for_all_models_is_given_once() -> None:
    first, second = result("order", {}), result("order", {})
    first["details"] = second["details"] = {"missing": {"coco": "expected DATA/coco"}}
    second["skipped"] = {"missing image": 3}
    assert notes_of("order", {"a": {"order": first}, "b": {"order": second}}) == [
        "coco is not evaluated: expected DATA/coco",
        "b: 3 skipped: missing image",
    ]
