"""The whole job on a few scenes of the miniature world: sums, bytes, restarts and refusals."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import cv2
import pyarrow as pa
import pyarrow.ipc
import pytest

from demo.world.layout import WorldConfig
from demo.world.scenes import TEST_SEEDS, make_scene
from pipeline import grit
from pipeline.write.tar import TarWriter

N_SCENES = 9
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine scenes and one broken picture as a WebDataset tar."""
    folder = tmp_path_factory.mktemp("tars")
    with (folder / "00000.tar").open("wb") as file, TarWriter(file) as tar:
        for i in range(N_SCENES):
            scene = make_scene(TEST_SEEDS.start + i, "openmoji", WorldConfig(width=384, height=288))
            _, jpeg = cv2.imencode(".jpg", scene.image[:, :, ::-1])
            tar.add_sample(f"{i:03d}", [("jpg", jpeg.tobytes()), ("txt", scene.caption.encode())])
        tar.add_sample("broken", [("jpg", b"\xff\xd8\xff no picture"), ("txt", b"a dog on a chair")])
    return folder


def run(tars: Path, output: Path, *more: str) -> int:
    return grit.main([f"input={tars}", f"output={output}", "rows_per_shard=4", "ray.runner=local", *more])


@pytest.fixture(scope="module")
def finished(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run") / "out"
    assert run(tars, output) == 0
    return output


def hashes(output: Path) -> dict[str, str]:
    """What a run promises to be the same, by name."""
    files = [path for kind in ("train", "grit", "arrow", "_manifests") for path in sorted((output / kind).iterdir())]
    return {str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_every_row_is_kept_or_dropped_by_name(finished: Path) -> None:
    rows = json.loads((finished / "stats.json").read_text())["rows"]
    dropped = sum(n for reasons in rows["dropped"].values() for n in reasons.values())
    assert rows["read"] == N_SCENES + 1 == rows["kept"] + dropped
    assert rows["kept"] >= N_SCENES - 2
    assert sum(rows["dropped"]["download"].values()) == 1
    arrow = [pa.ipc.open_file(path).read_all() for path in sorted((finished / "arrow").glob("*.arrow"))]
    assert [key for table in arrow for key in table["key"].to_pylist()] == [f"{i:012d}" for i in range(N_SCENES + 1)]


def test_a_second_run_from_nothing_gives_the_same_bytes(tars: Path, finished: Path, tmp_path: Path) -> None:
    assert run(tars, tmp_path / "again") == 0
    assert hashes(tmp_path / "again") == hashes(finished)


def test_ctrl_c_ends_without_a_traceback_and_the_same_command_goes_on(
    tars: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"

    def interrupt() -> None:
        while not (output / "_manifests" / "00000.json").exists():
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin without one
    try:
        threading.Thread(target=interrupt).start()
        assert run(tars, output) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert "the same command goes on" in capsys.readouterr().err
    assert not (output / "_manifests" / "00002.json").exists()
    assert run(tars, output) == 0
    assert hashes(output) == hashes(finished)


def test_a_shard_lost_in_the_middle_is_made_again_and_the_others_are_kept(
    tars: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "out"
    assert run(tars, output) == 0
    before = hashes(output)
    (output / "_manifests" / "00001.json").unlink()
    kept = (output / "train" / "00000.tar").stat().st_mtime_ns
    with caplog.at_level("INFO", logger="hypergrit"):
        assert run(tars, output) == 0
    assert "2 of them finished before" in caplog.text
    assert hashes(output) == before
    assert (output / "train" / "00000.tar").stat().st_mtime_ns == kept


def test_another_configuration_makes_the_shards_again(
    tars: Path, finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "out"
    assert run(tars, output, "limit=4", "formats=[arrow]") == 0
    with caplog.at_level("INFO", logger="hypergrit"):
        assert run(tars, output, "limit=4", "formats=[arrow]", "score.min_side_px=48") == 0
    assert "0 of them finished before" in caplog.text


def test_smaller_input_into_a_larger_output_is_refused(
    tars: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tars, finished, "limit=4") == 2
    assert "beyond this run's 1" in capsys.readouterr().err


def test_a_broken_weight_file_is_named(tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / "glip.pth"
    weights.write_bytes(b"nope")
    (tmp_path / "vocab.txt").write_text("a\n")
    assert run(tars, tmp_path / "out", f"grounder={weights}") == 2
    assert str(weights) in capsys.readouterr().err


@pytest.mark.parametrize("place", [".", "out", "a/b"])
def test_an_output_within_the_input_is_refused(
    tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    folder = tmp_path / "in"
    shutil.copytree(tars, folder)
    assert run(folder, folder / place) == 2
    assert "within the input" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["00000.tar"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("input=/nowhere/pairs.parquet", "/nowhere/pairs.parquet"),
        ("grounder=/nowhere/glip", "/nowhere/glip"),
        ("scorer=/nowhere/clip", "/nowhere/clip"),
        ("parse.model=xx_none", "xx_none"),
        ("rows_per_shardd=4", "rows_per_shardd"),
        ("output=/proc/nothing/out", "/proc/nothing/out"),
        ("output=foo://bucket/out", "foo"),
        ("ground.device=banana", "ground.device"),
        ("score.device=cuda:99", "score.device"),
        ("score.min_score=7", "score.min_score"),
    ],
)
def test_what_the_user_can_mend_is_one_line_and_exit_code_2(
    tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, named: str
) -> None:
    assert run(tars, tmp_path / "out", change) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert named in error
    assert "Traceback" not in error
    assert not list((tmp_path).glob("out/*/*"))


def test_a_relative_output_in_a_ray_job_is_refused(
    tars: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert grit.main([f"input={tars}", "output=out/here"]) == 2
    assert "absolute" in capsys.readouterr().err


@pytest.mark.ray
def test_ray_gives_the_same_bytes_as_the_plain_loop_also_from_another_folder(
    tars: Path, finished: Path, tmp_path: Path
) -> None:
    output = tmp_path / "ray"
    command = [
        sys.executable,
        str(ROOT / "pipeline" / "grit.py"),
        f"input={tars}",
        f"output={output}",
        "rows_per_shard=4",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert hashes(output) == hashes(finished)
