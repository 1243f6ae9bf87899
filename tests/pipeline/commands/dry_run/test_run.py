"""dry_run=true on scenes of the miniature world: its checks, its figures, and that it leaves nothing behind."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.dry_run import SampleSteps
from pipeline.config import content_hash, load_config, runtime_settings
from pipeline.faults import ShardError
from pipeline.output.record import settings_of
from pipeline.output.store import Store
from pipeline.read.types import ShardPlan
from pipeline.run.local import record_of
from pipeline.run.steps import Done, Recipe
from schemas.manifest import FailedShard
from tests.pipeline.jobs import N_SCENES, run_job

Printed = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def compute_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in this process, which has the models already."""

    def compute(plans: Sequence[ShardPlan], _: object, recipe: Recipe) -> Iterator[Done | FailedShard]:
        steps = recipe.make()
        for plan in plans:
            try:
                yield steps.write(plan, *steps.infer(plan, *steps.prepare(plan)))
            except ShardError as error:
                yield record_of(plan, "prepare", error, 1)

    monkeypatch.setattr("pipeline.run.loop.compute_local", compute)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def contents(output: Path) -> dict[str, Any]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in output.rglob("*")}


def human(n_bytes: int) -> str:
    return f"{n_bytes / 1e3:,.3g} kB"


def test_a_sample_of_all_rows_predicts_the_job_and_nothing_is_written(
    tars: Path, finished: Path, tmp_path: Path, scratch: Path, capsys: Printed
) -> None:
    output = tmp_path / "out"
    assert run_job(tars, output, "dry_run=100") == 0
    text = capsys.readouterr().out
    assert not output.exists()
    assert list(scratch.glob("hypergrit-*")) == []
    rows = json.loads((finished / "stats.json").read_text())["rows"]
    assert re.search(rf"rows kept +{rows['kept']}  \[{rows['kept']}, {rows['kept']}\]", text)
    assert f"sample: {N_SCENES + 1} of {N_SCENES + 1} rows in 3 shards" in text
    for name, folders in (
        ("train/", ["train"]), ("grit/", ["grit"]), ("arrow/", ["arrow"]), ("index and manifests", ["_index", "_manifests"]),
    ):  # fmt: skip
        size = human(sum(path.stat().st_size for folder in folders for path in finished.glob(f"{folder}/*")))
        assert f"{'bytes of ' + name:32}{size:>14}  [{size}, {size}]" in text
    assert re.search(r"after [\d.]+ \w+ for the start of its workers", text)
    assert "undecodable" in text
    assert "requests to hosts                            0  [0, 0]" in text


def test_finished_shards_are_not_predicted_and_stay_as_they_are(
    tars: Path, finished: Path, tmp_path: Path, scratch: Path, capsys: Printed
) -> None:
    output = tmp_path / "out"
    shutil.copytree(finished, output)
    (output / "_manifests/00001.json").unlink()
    before = contents(output)
    assert run_job(tars, output, "dry_run=2") == 0
    assert "sample: 2 of 4 rows in 1 shard (seed 0); 2 of 3 are finished already" in capsys.readouterr().out
    assert contents(output) == before
    shutil.copy(finished / "_manifests/00001.json", output / "_manifests")
    assert run_job(tars, output, "dry_run=true") == 0
    assert "3 shards, all finished" in capsys.readouterr().out


def test_the_job_runs_as_usual_after_a_dry_run_with_other_options(
    tars: Path, finished: Path, caplog: pytest.LogCaptureFixture, capsys: Printed
) -> None:
    with caplog.at_level("INFO", logger="hypergrit"):
        assert run_job(tars, finished, "dry_run=true", "score.min_side_px=48") == 2
    assert "score.min_side_px: 32 -> 48" in capsys.readouterr().err
    plain, dry = (load_config([f"input={tars}", "output=out", *more]) for more in ([], ["dry_run=7"]))
    assert content_hash(plain) == content_hash(dry)
    assert runtime_settings(plain) == runtime_settings(dry)
    assert settings_of(plain) == settings_of(dry)


def test_an_object_store_is_not_written_to_and_its_requests_are_predicted(
    tars: Path, scratch: Path, capsys: Printed, tmp_path: Path
) -> None:
    url = f"memory://{tmp_path.name}/out"
    assert run_job(tars, url, "dry_run=1", "formats=[arrow]") == 0  # type: ignore[arg-type]
    found = re.search(r"requests to object stores +(\d+)", capsys.readouterr().out)
    assert found
    assert int(found[1]) > 3 * 4
    assert Store(url).fs.find(Store(url).root) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["dry_run=-1"], "dry_run is -1; give 0 or more"),
        (["dry_run=all"], "dry_run"),
        (["dry_run=maybe"], "dry_run"),
        (["output=file"], "file is a file; choose another output="),
        (["output=file/below"], "file is a file; choose another output="),
        (["input=missing.csv"], "does not exist"),
        (["output=https://ann:secret@example.org/out"], "a user name or a password"),
    ],
)
def test_a_wrong_option_is_an_error_of_the_user(
    tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed, arguments: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert run_job(tars, tmp_path / "out", "dry_run=true", *arguments) == 2
    error = capsys.readouterr().err
    assert text in error
    assert "secret" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_job_in_which_no_sample_shard_succeeds_is_not_predicted(
    tars: Path, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    def fail(*_: object) -> object:
        raise ShardError("the disk of the input fails")

    monkeypatch.setattr(SampleSteps, "read", fail)
    assert run_job(tars, tmp_path / "out", "dry_run=true") == 3
    assert "nothing can be predicted" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
