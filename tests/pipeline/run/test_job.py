"""The main job on a few scenes of the miniature world: counts, reproducible bytes, resuming."""

import dataclasses
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pytest

from pipeline.config import PipelineConfig, load_config, runtime_settings
from pipeline.output.manifest import failed_shard
from pipeline.output.resume import plan_work
from pipeline.output.store import Store
from pipeline.read.listing import list_files
from pipeline.read.plan import plan_shards
from pipeline.read.types import ShardPlan
from pipeline.run.provenance import make_provenance, with_absolute_paths
from pipeline.run.steps import Failed, Steps
from tests.pipeline.jobs import N_SCENES, WITHOUT_MODELS, hash_output, run_apart, run_job


def test_every_row_is_kept_or_dropped_for_a_reason(finished: Path) -> None:
    rows = json.loads((finished / "stats.json").read_text())["rows"]
    dropped = sum(n for reasons in rows["dropped"].values() for n in reasons.values())
    assert rows["read"] == N_SCENES + 1 == rows["kept"] + dropped
    assert rows["kept"] >= N_SCENES - 2
    assert sum(rows["dropped"]["download"].values()) == 1
    arrow = [pa.ipc.open_file(path).read_all() for path in sorted((finished / "arrow").glob("*.arrow"))]
    assert [key for table in arrow for key in table["key"].to_pylist()] == [f"{i:012d}" for i in range(N_SCENES + 1)]


def test_ctrl_c_ends_without_a_traceback_and_the_same_command_resumes(
    tars: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"

    def interrupt() -> None:
        while not (output / "_manifests" / "00000.json").exists():
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell starts background jobs with SIGINT ignored
    try:
        threading.Thread(target=interrupt).start()
        assert run_apart(tars, output) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert "run the same command again to resume" in capsys.readouterr().err
    assert not (output / "_manifests" / "00002.json").exists()
    assert run_apart(tars, output) == 0
    assert hash_output(output) == hash_output(finished)


def test_a_shard_without_a_manifest_is_computed_again_and_the_others_are_kept(
    tars: Path, finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = Path(shutil.copytree(finished, tmp_path / "out"))
    (output / "_manifests" / "00001.json").unlink()
    modified = (output / "train" / "00000.tar").stat().st_mtime_ns
    with caplog.at_level("INFO", logger="hypergrit"):
        assert run_job(tars, output) == 0
    assert "2 finished before" in caplog.text
    assert hash_output(output) == hash_output(finished)
    assert (output / "train" / "00000.tar").stat().st_mtime_ns == modified


def test_a_job_whose_shards_all_fail_ends_with_code_3_and_a_report_of_its_own(
    tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "stats.json").write_text('{"rows": "of an earlier run"}')
    (output / "_command.json").write_text("{}")

    def fail(plans: list[ShardPlan], *_: object) -> Iterator[Failed]:
        return (Failed(failed_shard(plan, "prepare", "x", "", attempts=1)) for plan in plans)

    monkeypatch.setattr("pipeline.run.loop.compute_local", fail)
    assert run_apart(tars, output) == 3
    stats = json.loads((output / "stats.json").read_text())
    assert stats["rows"] == {"read": N_SCENES + 1, "kept": 0, "dropped": {}, "unfinished": N_SCENES + 1}
    assert stats["provenance"]["hypergrit"]
    assert (output / "report.html").exists()


def test_a_job_that_keeps_no_row_says_so_with_code_4_and_quiet_prints_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The report names the command, without the values of secret settings."""
    (tmp_path / "pairs.csv").write_text("url,caption\n,a cat\n,a dog\n")
    output = tmp_path / "out"
    assert (
        run_job(tmp_path / "pairs.csv", output, "quiet=true", 'download.headers={"https://a.org": {Cookie: secret}}')
        == 4
    )
    printed = capfd.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("warning: no row was kept; read ")
    assert "read.url_column" in line
    text = (output / "report.html").read_text()
    assert "no row was kept" in text
    assert "hypergrit run" in text
    assert "&#39;download.headers=***&#39;" in text
    assert "secret" not in text + (output / "stats.json").read_text()
    run = json.loads((output / "stats.json").read_text())["run"]
    assert (run["rows"], run["shards"]) == (2, 1)
    assert run["started"].endswith("+00:00")


def test_the_time_of_a_run_on_an_object_store_includes_the_shards_that_it_mends(tars: Path, tmp_path: Path) -> None:
    """One shard has no manifest, which the listing shows; another has a truncated file, which its manifest shows."""
    output = f"memory://{tmp_path.name}/out"
    store = Store(output)
    for n_written in (3, 2):
        assert run_job(tars, output, *WITHOUT_MODELS, "formats=[arrow]") == 0
        run = json.loads(store.read("stats.json") or b"")["run"]
        assert run["shards"] == n_written
        store.remove(["_manifests/00002.json"])
        store.fs.pipe_file(store.path("arrow/00001.arrow"), b"truncated")


def test_images_in_many_parts_give_the_same_table_and_the_same_duplicates(
    tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (tars / "00000.tar").read_bytes()
    for name in ("a", "b"):  # all rows of the second tar are duplicates
        (tmp_path / f"{name}.tar").write_bytes(data)
    config = load(tmp_path, tmp_path / "out")
    (plan,) = plan_shards(str(tmp_path), 100, None, config.read)
    steps = Steps(config, make_provenance(config))
    whole, notes = steps.download(plan, steps.read(plan))
    monkeypatch.setattr("pipeline.read.source.PART_BYTES", 1)
    parts, more = steps.download(plan, steps.read(plan))
    assert parts["image"].num_chunks == 2 * (N_SCENES + 1)
    assert parts.to_pylist() == whole.to_pylist()
    assert whole["reason"].to_pylist().count("duplicate") == N_SCENES
    assert {name: timing["rows"] for name, timing in more.timings.items()} == {
        name: timing["rows"] for name, timing in notes.timings.items()
    }


def test_a_change_of_other_settings_is_refused_without_overwrite(
    tars: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert run_job(tars, output, "limit=4", "formats=[arrow]") == 0
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    changed = ("limit=4", "formats=[arrow]", "score.min_side_px=48")
    assert run_job(tars, output, *changed) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "score.min_side_px: 32 -> 48" in line
    assert "1 finished shard differs" in line
    assert "overwrite=true" in line
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before
    with caplog.at_level("INFO", logger="hypergrit"):
        assert run_job(tars, output, *changed, "overwrite=true") == 0
    assert "finished before" not in caplog.text
    assert "overwrite: false" in (output / "config.yaml").read_text()
    with caplog.at_level("INFO", logger="hypergrit"):
        assert run_job(tars, output, *changed) == 0
    assert "4 rows in 1 shard, all finished before (last run: " in caplog.text


RUNTIME = (
    "download.concurrency=3",
    "download.timeout_s=7",
    "download.retries=0",
    "download.contact=mail@example.org",
    "ground.batch_size=3",
    "ground.device=cpu",
    "ground.precision=fp32",
    "score.device=cpu",
)


def test_a_change_of_runtime_settings_keeps_finished_shards_and_is_recorded_in_new_ones(
    tars: Path, finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = Path(shutil.copytree(finished, tmp_path / "out"))
    (output / "_manifests" / "00001.json").unlink()
    with caplog.at_level("INFO", logger="hypergrit"):
        assert run_job(tars, output, *RUNTIME) == 0
    assert "2 finished before" in caplog.text
    before, after = hash_output(finished), hash_output(output)
    changed = {name for name in before if before[name] != after[name]}
    assert "_manifests/00001.json" in changed
    assert all("/00001." in name for name in changed)
    default = runtime_settings(load(tars, output))
    recorded = [json.loads((output / "_manifests" / f"{i:05d}.json").read_text())["runtime"] for i in range(3)]
    assert recorded == [default, runtime_settings(load(tars, output, *RUNTIME)), default]
    assert recorded[1]["ground"]["batch_size"] == 3
    assert recorded[1]["download"]["contact"] == "mail@example.org"


@pytest.mark.parametrize(
    ("change", "n_unfinished"),
    [
        *[(setting, 0) for setting in RUNTIME],
        ("ray.model_workers=1", 0),
        ("report.summary=false", 0),
        ("formats=[train]", 0),
        ("download.max_bytes=1000", 3),
        ("ground.floor=0.2", 3),
        ("score.min_score=0.9", 3),
        ("score.size_rule=side", 3),
        ("write.image_bytes=true", 3),
        ("rows_per_shard=5", 2),
        ("limit=9", 1),
    ],
)
def test_finished_shards_are_those_with_the_same_rows_and_content_settings(
    tars: Path, finished: Path, change: str, n_unfinished: int
) -> None:
    config = dataclasses.replace(load(tars, finished, change), overwrite=True)
    work = plan_work(config, list_files(config.input), make_provenance(config), Store(config.output))
    assert len(work.unfinished) == n_unfinished


def load(tars: Path, output: Path, *arguments: str) -> PipelineConfig:
    return with_absolute_paths(load_config([f"input={tars}", f"output={output}", "rows_per_shard=4", *arguments]))
