"""dry_run=true on scenes of the miniature world: its sample, its checks, its figures, and that it leaves nothing behind."""

import errno
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands import dry_run
from pipeline.commands.dry_run import Measured, SampleSteps, Sources, choose_rows, prediction_lines
from pipeline.config import content_hash, load_config, runtime_settings
from pipeline.faults import ShardError
from pipeline.output.record import settings_of
from pipeline.output.store import Store
from pipeline.read.types import ShardPlan
from pipeline.report.stats import bytes_text
from tests.pipeline.here import running_here
from tests.pipeline.jobs import N_SCENES, run_job

Printed = pytest.CaptureFixture[str]


def plans(n_shards: int, n_rows: int = 1000) -> list[ShardPlan]:
    return [ShardPlan(i, i * n_rows, n_rows, ()) for i in range(n_shards)]


def rows_of(found: Sequence[tuple[ShardPlan, Sources]]) -> list[int]:
    return sorted(plan.first_row + row for _, sources in found for plan, rows in sources for row in rows)


@pytest.mark.parametrize(("n_shards", "n_rows"), [(1, 1), (1, 3), (3, 200), (1000, 200), (7, 5000)])
def test_each_run_of_the_input_gives_one_row_the_same_each_time(n_shards: int, n_rows: int) -> None:
    total = n_shards * 1000
    chosen = rows_of(choose_rows(plans(n_shards), n_rows, 1000))
    assert len(set(chosen)) == n_rows
    bounds = [i * total // n_rows for i in range(n_rows)] + [total]
    assert all(start <= row < end for row, (start, end) in zip(chosen, pairwise(bounds), strict=True))
    assert rows_of(choose_rows(plans(n_shards), n_rows, 1000)) == chosen


def test_sample_shards_are_no_larger_than_those_of_the_job_and_mix_the_whole_input() -> None:
    found = choose_rows(plans(100), 5000, 1000)
    assert [shard.n_rows for shard, _ in found] == [sum(len(rows) for _, rows in s) for _, s in found] == [1000] * 5
    for _, sources in found:
        assert {plan.index for plan, _ in sources} == set(range(100))


def test_all_rows_are_chosen_if_there_are_few() -> None:
    some = [ShardPlan(3, 40, 4, ()), ShardPlan(9, 80, 2, ())]
    assert rows_of(choose_rows(some, 100, 4)) == [40, 41, 42, 43, 80, 81]
    assert choose_rows([], 100, 4) == []


def test_the_values_of_a_sample_are_scaled_to_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.commands.dry_run.read_rate", lambda *_: 0.5)
    counts = {"read": 100, "kept": 60, "dropped": {"download": {"timeout": 30}, "score": {"low_score": 10}}}
    times = {"read": 99.0, "download": 2.0, "ground": 36.0, "score": 36.0, "write": 1.0}
    timings: Any = {name: {"seconds": value, "rows": 100.0} for name, value in times.items()}
    shard = Measured({"counts": counts}, (), timings, Counter(train=60_512))  # type: ignore[typeddict-item]
    config = load_config(["input=a.csv", "output=out"])
    lines = list(prediction_lines([shard, shard], plans(10), config, Counter(train=512), gpus=0.5))
    values = {line[:32].strip(): line[32:].split() for line in lines}
    assert values["rows kept"] == ["6,000", "60.0%"]
    assert values["download: timeout"] == ["3,000", "30.0%"]
    assert values["bytes of train/"] == bytes_text(60_000 * 100 + 512 * 10).split()
    assert values["GPU time"] == ["1", "h", "0", "min"]
    assert values["CPU time"] == ["1", "h", "28", "min"]  # 0.5 s a row to read, 300 s for the rest


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files of dry runs, which compute in this process."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with running_here():
        yield folder


def contents(output: Path) -> dict[str, Any]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in output.rglob("*")}


def test_a_sample_of_all_rows_predicts_the_job_and_nothing_is_written(
    tars: Path, finished: Path, tmp_path: Path, scratch: Path, capsys: Printed
) -> None:
    output = tmp_path / "out"
    assert run_job(tars, output, "dry_run=100") == 0
    lines = capsys.readouterr().out.splitlines()
    values = {line[:32].strip(): line[32:].split() for line in lines}
    assert not output.exists()
    assert list(scratch.glob("hypergrit-*")) == []
    rows = json.loads((finished / "stats.json").read_text())["rows"]
    assert values["rows kept"][0] == str(rows["kept"])
    assert lines[0].startswith(f"input     1 tar file with {N_SCENES + 1} rows")
    assert any(line.startswith(f"sample: {N_SCENES + 1} of {N_SCENES + 1} rows in 3 shards") for line in lines)
    for folder in ("train", "grit", "arrow", "_index", "_manifests"):
        size = sum(path.stat().st_size for path in finished.glob(f"{folder}/*"))
        assert values[f"bytes of {folder}/"] == bytes_text(size).split()
    assert values["images: undecodable"][0] == "1"
    assert values["GPU time"] == ["0.0", "s"]


def test_finished_shards_are_not_predicted_and_stay_as_they_are(
    tars: Path, finished: Path, tmp_path: Path, scratch: Path, capsys: Printed
) -> None:
    output = Path(shutil.copytree(finished, tmp_path / "out"))
    (output / "_manifests/00001.json").unlink()
    before = contents(output)
    assert run_job(tars, output, "dry_run=2") == 0
    said = capsys.readouterr().out
    assert "sample: 2 of 4 rows in 1 shard;" in said
    assert "2 further shards finished" in said
    assert contents(output) == before
    shutil.copy(finished / "_manifests/00001.json", output / "_manifests")
    assert run_job(tars, output, "dry_run=true") == 0
    assert "3 shards, all finished" in capsys.readouterr().out


def test_the_job_runs_as_usual_after_a_dry_run_with_other_options(tars: Path, finished: Path, capsys: Printed) -> None:
    assert run_job(tars, finished, "dry_run=true", "score.min_side_px=48") == 2
    assert "score.min_side_px: 32 -> 48" in capsys.readouterr().err
    plain, dry = (load_config([f"input={tars}", "output=out", *more]) for more in ([], ["dry_run=7"]))
    assert content_hash(plain) == content_hash(dry)
    assert runtime_settings(plain) == runtime_settings(dry)
    assert settings_of(plain) == settings_of(dry)


def test_an_object_store_is_not_written_to(tars: Path, scratch: Path, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/out"
    assert run_job(tars, url, "dry_run=1", "formats=[arrow]") == 0  # type: ignore[arg-type]
    assert Store(url).fs.find(Store(url).root) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["dry_run=-1"], "dry_run is -1; give 0 or more"),
        (["dry_run=all"], "dry_run"),
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


def test_an_output_with_a_report_of_others_is_refused_as_by_the_job(
    tars: Path, tmp_path: Path, capsys: Printed
) -> None:
    report = tmp_path / "mine" / "report.html"
    report.parent.mkdir()
    report.touch()
    assert run_job(tars, report.parent, "dry_run=true") == run_job(tars, report.parent) == 2
    assert (
        capsys.readouterr().err.count("that no run of HyperGRIT wrote where a run writes its own, in report.html") == 2
    )


def test_a_job_in_which_no_sample_shard_succeeds_is_not_predicted(
    tars: Path, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    def fail(*_: object) -> object:
        raise ShardError("the disk of the input fails")

    monkeypatch.setattr(SampleSteps, "read", fail)
    assert run_job(tars, tmp_path / "out", "dry_run=true") == 3
    assert "nothing can be predicted" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_a_full_disk_of_temporary_files_is_an_error_of_the_user(
    tars: Path, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    def full(*_: object) -> object:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(dry_run, "write_shard", full)
    assert run_job(tars, tmp_path / "out", "dry_run=true") == 2
    assert f"{scratch} cannot be used (" in capsys.readouterr().err
