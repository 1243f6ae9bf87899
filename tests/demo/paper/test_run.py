"""Runner of the miniature study: claims are committed first, and the validation split chooses rate and step."""

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import pytest

from demo.paper import run
from demo.paper.run import Folders, Run, check_claims, choices, each, is_complete, run_study, runs_of, tune, validated
from demo.paper.sizes import SIZES
from demo.paper.store import write_result
from demo.paper.variants import VARIANTS
from hypergrit_common.errors import UserError
from hypergrit_common.json_file import write_object

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


def wait(seconds: float) -> str:
    time.sleep(seconds)
    return f"{seconds} s"


def test_an_interruption_ends_the_trainings_under_way() -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    before = {*active_children()}
    with pytest.raises(KeyboardInterrupt):
        each(wait, [0.0, 3600.0, 3600.0], 2, interrupt)
    while {*active_children()} - before:  # a thread of the pool may be about to note their end
        time.sleep(0.1)


def test_the_best_mean_on_the_validation_split_is_chosen_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = Folders(out=tmp_path / "out", work=tmp_path)
    trained: list[str] = []

    def each(work: Callable[[Run], str], runs: Sequence[Run], n_jobs: int, report: Callable[[str], None]) -> None:
        for found in runs:
            trained.append(f"{found.variant.key} {found.lr} {found.seed}")
            best = {1e-3: (0.1, 0.2), 2e-3: (0.4, 0.3)}[found.lr]
            path = validated(found, folders)
            path.parent.mkdir(exist_ok=True)
            write_object(dict(zip(map(str, SIZE.steps), best, strict=True)), path)

    monkeypatch.setattr(run, "each", each)
    rows = [VARIANTS[key] for key in ("clip", "meru-w96", "clip-boxes@true")]
    chosen = tune(rows, SIZE, folders, 1, print)
    assert {name: (found["lr"], found["step"]) for name, found in chosen.items()} == dict.fromkeys(
        ("crops/clip", "crops/meru", "crops/clip-boxes"), (0.002, 5)
    )
    assert len(trained) == 3 * 2 * 2
    assert chosen["crops/clip"]["scores"]["0.001@10"] == [0.2, 0.2]
    trained.clear()
    assert tune(rows, SIZE, folders, 1, print) == chosen
    assert trained == []
    runs = list(runs_of(rows, SIZE, chosen, 1))
    assert not is_complete(rows[0], SIZE, chosen, folders)
    for found in (item for seed in range(SIZE.seeds) for item in runs_of(rows[:1], SIZE, chosen, seed)):
        write_result(folders.results / f"clip-{found.seed}.parquet", {}, {"identity": found.identity}, items=False)
    assert [is_complete(row, SIZE, chosen, folders) for row in rows] == [True, False, False]
    run_study(replace(SIZE, rows=("clip",)), folders, 1, print)  # without data
    other = Folders(out=tmp_path / "other", work=tmp_path)
    tune([VARIANTS["atmg"]], SIZE, other, 1, print)
    shutil.copytree(other.results, folders.results, dirs_exist_ok=True)  # the results of another machine
    assert choices(folders).keys() == chosen.keys() | {"crops/atmg"}
    assert is_complete(rows[0], SIZE, choices(folders), folders)
    assert [(found.variant.key, found.lr, found.at) for found in runs] == [(row.key, 2e-3, (5,)) for row in rows]
