"""The command line of the main job: --help, and user errors as one line with exit code 2."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hypergrit.__main__ import VERBS
from hypergrit_common.errors import UserError
from hypergrit_common.paths import repository_root
from pipeline import grit
from tests.patience import PATIENCE_S
from tests.pipeline.jobs import run_job

CLIP = repository_root() / "demo" / "weights" / "clip"


def test_help_imports_neither_torch_nor_spacy_nor_ray_nor_transformers() -> None:
    command = [sys.executable, "-X", "importtime", str(repository_root() / "pipeline" / "grit.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == f"{grit.help_text()}\n"
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert {"pipeline", "hypergrit_common"} <= imported
    assert not imported & {"torch", "spacy", "ray", "transformers"}


def test_an_interpreter_without_the_packages_says_which_one_it_is_and_how_to_start() -> None:
    script = repository_root() / "pipeline" / "grit.py"
    done = subprocess.run(
        [sys.executable, "-S", "-E", str(script), "--help"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {sys.executable} lacks the packages of HyperGRIT (No module named ")
    assert done.stderr.endswith(f"start {repository_root()}/.venv/bin/python {script}\n")
    assert done.stderr.count("\n") == 1
    command = [sys.executable, "-S", "-E", "-m", "hypergrit"]
    for verb in VERBS:
        done = subprocess.run(
            [*command, verb, "output=x"], cwd=repository_root(), capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), verb
        assert f"error: {sys.executable} lacks a package: " in done.stderr or verb == "models", verb


def test_a_wrong_setting_is_json_too_if_the_log_is() -> None:
    script = repository_root() / "pipeline" / "grit.py"
    settings = ["input=a", "output=b", "rows_per_shard=0", "log.format=json"]
    done = subprocess.run([sys.executable, script, *settings], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert "rows_per_shard" in json.loads(done.stderr)["message"]


def test_help_lists_the_main_keys_all_of_them_or_those_of_a_topic() -> None:
    texts = {
        topic: grit.help_text(["--help", *filter(None, [topic])]) for topic in ("", "all", "score.min_score", "log")
    }
    counts = {
        topic: sum(line.startswith("  ") and " = " in line for line in text.splitlines())
        for topic, text in texts.items()
    }
    assert counts[""] == len(grit.MAIN) == 20
    assert (
        counts["all"] <= 100
    )  # 80, and those of captions, boxes, heads, presence, robots.txt, levels, ids and variables
    assert "  retry = false" in texts["all"]
    assert (counts["score.min_score"], counts["log"]) == (1, 1)
    assert "the calibrated threshold of the grounder" in texts["score.min_score"]
    with pytest.raises(UserError, match=r"similar ones are score\.min_score"):
        grit.help_text(["--help", "score.minscore"])


@pytest.mark.parametrize("value", ["true", "True", "yes", "on"])
def test_retry_is_read_like_every_other_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str) -> None:
    output = tmp_path / "gone"
    (tmp_path / "retry.yaml").write_text(f"retry: {value}\noutput: {output}\n")
    for arguments in ([f"retry={value}", f"output={output}"], [str(tmp_path / "retry.yaml")]):
        assert grit.main(arguments) == 2
        assert "config.yaml does not exist; give the output folder of a job" in capsys.readouterr().err


def test_an_output_that_has_shards_of_a_larger_input_is_refused(
    tars: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_job(tars, finished, "limit=4") == 2
    error = capsys.readouterr().err
    assert "2 finished shards differ (changed: " in error
    assert "limit: none -> 4" in error


def test_a_damaged_weight_file_is_named(tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / "glip.pth"
    weights.write_bytes(b"nope")
    (tmp_path / "vocab.txt").write_text("a\n")
    assert run_job(tars, tmp_path / "out", f"grounder={weights}") == 2
    assert str(weights) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("input_name", "output"),
    [
        ("in", "in"),
        ("in", "in/out"),
        ("in", "in/a/b"),
        ("in", "link/out"),
        ("link", "in/out"),
        ("link/train/*.tar", "in"),
    ],
)
def test_an_output_within_the_input_or_behind_a_link_is_refused(
    tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], input_name: str, output: str
) -> None:
    shutil.copytree(tars, tmp_path / "in" / "train")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    assert run_job(tmp_path / input_name, tmp_path / output) == 2
    assert "within the input" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "in").rglob("*")] == ["train", "00000.tar"]


@pytest.mark.parametrize(
    ("changes", "named"),
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
        ("retry=yes dry_run=true", "exclude each other"),
        ("parse.model=none", "give grounder=none too"),
        ("scorer=none score.min_image_similarity=0.2", "score.min_image_similarity needs "),
        ("scorer=none score.head=h.safetensors", "score.head needs "),
        ("score.min_head_score=1", "give score.head=FILE"),
        (f"score.head={CLIP}", "is no hyperbolic model"),
        ("read.caption_column=caption,title", "random or all"),
    ],
)
def test_a_user_error_is_one_line_that_names_the_cause_and_exit_code_2(
    tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: str, named: str
) -> None:
    assert run_job(tars, tmp_path / "out", *changes.split()) == 2
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
