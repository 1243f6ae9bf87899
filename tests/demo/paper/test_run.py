"""Runner of the miniature study: claims are committed first, and the validation split chooses rate and step."""

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import pytest

from demo.paper import processes, run
from demo.paper.plan import SIZES, VARIANTS
from demo.paper.processes import each
from demo.paper.run import Study, Trial, check_claims, run_study, tune
from demo.paper.store import write_result
from hypergrit_common.errors import UserError
from hypergrit_common.json_file import read_object, write_object

SIZE = replace(SIZES["smoke"], rates=(1e-3, 2e-3), steps=(5, 10), tuning_seeds=2)


def test_claims_must_be_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    claims = tmp_path / "claims.csv"
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "CLAIMS", claims)
    git("init", "-q")
    claims.write_text("paper,text\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"claims\.csv is not committed"):
        check_claims()
    git("add", "claims.csv")
    git("commit", "-qm", "Claims")
    check_claims()
    claims.write_text("paper,other\n", encoding="utf-8")
    with pytest.raises(UserError, match="not committed"):
        check_claims()


def test_an_interruption_ends_the_trainings_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    before = {*active_children()}
    monkeypatch.setattr(processes, "report", interrupt)
    with pytest.raises(KeyboardInterrupt):
        each(time.sleep, [0.0, 3600.0], 1)  # type: ignore[arg-type]
    for process in {*active_children()} - before:
        process.join(60)
        assert not process.is_alive()


def test_the_best_mean_on_the_validation_split_is_chosen_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[str] = []

    def each(work: Callable[[Trial], str], runs: Sequence[Trial], n_jobs: int) -> None:
        for found in runs:
            trained.append(f"{found.variant.key} {found.lr} {found.seed}")
            best = {1e-3: (0.1, 0.2), 2e-3: (0.4, 0.3)}[found.lr]
            found.scores.parent.mkdir(parents=True, exist_ok=True)
            write_object(dict(zip(map(str, SIZE.steps), best, strict=True)), found.scores)

    monkeypatch.setattr(run, "each", each)
    study = Study(size=SIZE, out=tmp_path / "out", data=tmp_path / "data")
    rows = [VARIANTS[key] for key in ("clip", "meru-w96", "clip-boxes@true")]
    tune(study, rows, 1)
    paths = [study.choice(row) for row in rows]
    assert [path.stem for path in paths] == ["clip", "meru", "clip-boxes"]
    chosen = [read_object(path) for path in paths]
    assert [(found["lr"], found["step"]) for found in chosen] == [(0.002, 5)] * 3
    assert chosen[0]["scores"]["0.001@10"] == [0.2, 0.2]
    assert len(trained) == 3 * 2 * 2
    trained.clear()
    tune(study, rows, 1)
    assert trained == []
    assert not any(found.is_done for found in study.runs(rows[0]))
    for found in study.runs(rows[0]):
        write_result(found.result, {}, {"identity": found.identity}, items=False)
    assert all(found.is_done for found in study.runs(rows[0]))
    run_study(replace(study, size=replace(SIZE, rows=("clip",))), 1)  # without data
    other = replace(study, out=tmp_path / "other")
    tune(other, [VARIANTS["atmg"]], 1)
    shutil.copytree(other.out, study.out, dirs_exist_ok=True)  # the results of another machine
    assert [study.choice(VARIANTS[key]).is_file() for key in ("atmg", "clip", "hycoclip")] == [True, True, False]
    assert study.runs(VARIANTS["hycoclip"]) == []
    assert [(found.seed, found.lr, found.at) for found in study.runs(rows[1])] == [(0, 2e-3, (5,)), (1, 2e-3, (5,))]
