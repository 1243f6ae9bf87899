"""The miniature study end to end: `make paper SIZE=smoke`."""

from dataclasses import replace
from pathlib import Path

import pytest

from demo.paper import extra
from demo.paper.page import write_page
from demo.paper.run import Folders, choices, run_study
from demo.paper.sizes import SIZES
from demo.paper.store import read_result

SIZE = SIZES["smoke"]


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_study_runs_from_scenes_to_the_page_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    folders = Folders(out=tmp_path / "page", work=tmp_path)
    run_study(SIZE, folders, 2, lines.append)
    assert write_page("smoke", SIZE, folders.out).is_file()
    names = {path.name for path in folders.results.glob("*.parquet")}
    assert names == {f"{key}-{seed}.parquet" for key in SIZE.rows for seed in range(SIZE.seeds)}
    main, other = (read_result(folders.results / f"{key}-0.parquet") for key in ("hycoclip", "meru-w96"))
    assert {"classification", "hierarchical", "retrieval", "sugarcrepe", "vlchecklist", "order", "chains"} == {
        name.partition(":")[0] for name in main.metrics
    }
    assert {"sugarcrepe:unseen/replace_att", "sugarcrepe:seen/replace_obj", "order:cross_text/pep_auc"} <= set(
        main.metrics
    )
    assert len(main.items["classification:scenes/accuracy"].values) == 141
    assert main.items["retrieval:coco/text_to_image/recall@5"].metric() == pytest.approx(
        main.metrics["retrieval:coco/text_to_image/recall@5"]
    )
    assert other.metrics.keys() >= {"classification:scenes/accuracy", "hierarchical:scenes/TIE"}
    assert not other.items
    assert other.facts["settings"]["model"]["embed_dim"] == 96
    assert main.facts["settings"]["model"]["min_radius"] == 0.1
    tuning = choices(folders)
    assert set(tuning) == {"crops/clip", "crops/hycoclip", "scenes/phyclip", "crops/clip-boxes", "crops/meru"}
    assert main.facts["identity"]["lr"] == tuning["crops/hycoclip"]["lr"]
    pictures = {path.name for path in (folders.results / "pictures" / "hycoclip").iterdir()}
    assert {"norms.json", "traversal.json", "order.json", "norms-histogram.png", "order-roc.png"} <= pictures
    assert len(list((folders.results / "pictures" / "traversal").glob("*.jpg"))) == 4

    (folders.results / "clip-1.parquet").unlink()
    lines.clear()
    run_study(SIZE, folders, 1, lines.append)
    assert [line.partition(",")[0] for line in lines if line[:1].isdigit()] == ["1 of 1: clip-1"]

    monkeypatch.setattr(extra, "FACTORS", ("hycoclip", "clip"))
    monkeypatch.setattr(extra, "SINGLE", "hycoclip")
    monkeypatch.setattr(extra, "PHASES", ((1e-3, 1.0, 0.1), (1e-2, 10.0, 0.3)))
    monkeypatch.setattr(extra, "IOUS", (1.0, 0.4))
    monkeypatch.setattr(extra, "SHARES", (50,))
    names = ("score0.2", "score0.65", "side32", "side48")
    monkeypatch.setattr(extra, "RULES", {name: extra.RULES[name] for name in names})
    extra.run_extra(replace(SIZE, seeds=1), folders, 1, lines.append)
    entries = extra.read_entries(folders.out)
    names = ["boxes.png", "score.png", "side.png", "captions.png", "structures.png", "phases.png"]
    assert [entry["figure"].name for entry in entries] == names
    assert all(len(entry["text"]) == 3 and entry["figure"].is_file() for entry in entries)
    assert write_page("smoke", SIZE, folders.out).read_text("utf-8").count('alt="Displaced boxes"') == 1
