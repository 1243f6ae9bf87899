"""The miniature study end to end: `make paper SIZE=smoke`."""

import re
from pathlib import Path

import pytest

from demo.paper.page import write_page
from demo.paper.plan import SIZES, VARIANTS
from demo.paper.results import RowResults, read_rows
from demo.paper.run import Study, run_study
from hypergrit_common.json_file import read_object

SIZE = SIZES["smoke"]


@pytest.mark.rest
@pytest.mark.slow
def test_a_study_runs_from_scenes_to_the_page_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = Study(size=SIZE, out=tmp_path / "page", data=tmp_path / "data")
    run_study(study, 1)
    results = tmp_path / "page" / "results"
    assert write_page("smoke", SIZE, study.out).is_file()
    names = {path.stem for path in results.glob("*.parquet")}
    assert names == {f"{key}-{seed}" for key in SIZE.rows for seed in range(SIZE.seeds)}
    rows = read_rows(results, SIZE.seeds_of)
    check_main(rows["hycoclip"])
    assert {"classification:scenes/accuracy", "hierarchical:scenes/TIE"} <= set(rows["meru-w96"].metrics)
    assert not rows["meru-w96"].items
    assert rows["meru-w96"].facts[0]["settings"]["model"]["embed_dim"] == 96
    chosen = {path.relative_to(results / "tuning").as_posix() for path in (results / "tuning").rglob("*.json")}
    assert chosen == {f"{VARIANTS[key].choice}.json" for key in SIZE.rows}
    best = read_object(results / "tuning" / "crops" / "hycoclip.json")["lr"]
    assert rows["hycoclip"].facts[0]["identity"]["lr"] == best
    pictures = {path.name for path in (results / "pictures" / "hycoclip").iterdir()}
    assert {"norms.json", "traversal.json", "order.json", "norms-histogram.png", "order-roc.png"} <= pictures
    assert len(list((results / "pictures" / "traversal").glob("*.jpg"))) == 4

    (results / "clip-1.parquet").unlink()
    capsys.readouterr()
    run_study(study, 1)
    assert re.findall(r"\d of \d: ([\w@-]+), ", capsys.readouterr().out) == ["clip-1"]


def check_main(row: RowResults) -> None:
    """A main row has all tasks, with items whose means are the metrics."""
    tasks = {"classification", "hierarchical", "retrieval", "sugarcrepe", "vlchecklist", "order", "chains"}
    assert {name.partition(":")[0] for name in row.metrics} == tasks
    more = {"sugarcrepe:unseen/replace_att", "sugarcrepe:seen/replace_obj", "order:cross_text/pep_auc"}
    assert more <= set(row.metrics)
    assert len(row.items[0, "classification:scenes/accuracy"].values) == 141
    name = "retrieval:coco/text_to_image/recall@5"
    assert row.items[0, name].values.mean() == pytest.approx(row.metrics[name][0])
    assert row.facts[0]["settings"]["model"]["min_radius"] == 0.1
