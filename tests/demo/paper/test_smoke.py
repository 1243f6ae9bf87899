"""The miniature study end to end: `make paper SIZE=smoke`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from demo.paper.steps import Slots

from demo.paper.run import Folders, run_study
from demo.paper.sizes import SIZES

SIZE = SIZES["smoke"]


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_study_runs_from_scenes_to_the_page_and_resumes(tmp_path: Path) -> None:
    lines: list[str] = []
    folders = Folders(out=tmp_path / "page", work=tmp_path)
    page = run_study("smoke", SIZE, folders, Slots(n_steps=2), 0, lines.append)
    text = page.read_text("utf-8")
    assert "No claims" in text
    assert text.count("data:image/png") == 13  # accuracy; CLIP 1, HyCoCLIP 2, PHyCLIP 9 with its factors
    assert text.count("data:image/jpeg") > 4
    content = json.loads((folders.out / "paper.json").read_text("utf-8"))
    empty = [table["title"] for table in content["tables"] if not all(table["rows"].get("HyCoCLIP", {}).values())]
    assert empty == []
    columns = [name for table in content["tables"] for name in table["rows"]["HyCoCLIP"]]
    assert len(columns) == 55
    assert len(list((tmp_path / "data" / "shards" / "train" / "grit").glob("*"))) > 0

    lines.clear()
    elsewhere = Folders(out=folders.out, work=tmp_path / "elsewhere")  # as on another machine with the results alone
    run_study("smoke", replace(SIZE, has_claims=True, replicates=20), elsewhere, Slots(n_steps=2), 0, lines.append)
    assert lines == [f"6 of 6 results are in {folders.results}", "statistics"]
    assert not elsewhere.work.exists()
    claims = json.loads((folders.out / "paper.json").read_text("utf-8"))["claims"]
    measured = [claim for claim in claims if claim["verdict"] != "not measured"]
    assert {claim["first"] for claim in measured} == {"hycoclip", "phyclip"}
    assert len(measured) == 18
