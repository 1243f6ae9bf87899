"""The settings of commands: keys that a command does not use are refused, not ignored."""

from pathlib import Path

import pytest

from pipeline.commands import rewrite, takedown
from pipeline.grit import main as run
from tests.pipeline.commands.derive.outputs import make_output, random_shards


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        (["score.min_score=0.95"], "dry_run=true"),
        ([], "input=/etc/passwd"),
        (["dedupe=[url]"], "dry_run=3"),
        (["samples_per_shard=3"], "ground.device=cuda"),
        (["against=LIST"], "dry_run=true"),
    ],
)
def test_settings_of_the_job_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], argument: str
) -> None:
    make_output(tmp_path / "a", random_shards(2, 1))
    (tmp_path / "list.txt").write_text("http://example.org/x.jpg\n")
    arguments = [f"source={tmp_path / 'a'}", f"output={tmp_path / 'b'}", "ray.runner=local", argument]
    arguments += [option.replace("LIST", str(tmp_path / "list.txt")) for option in options]
    assert rewrite.main(arguments) == 2
    text = f"rewrite cannot change {argument.partition('=')[0]}, a setting of the job; it takes "
    assert text in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("foo.bar=1", "rewrite has no key foo.bar; it takes against, against_radius, dedupe, "),
        ("smaples_per_shard=3", "rewrite has no key smaples_per_shard (did you mean samples_per_shard?); it takes "),
        ("againts=list.txt", "rewrite has no key againts (did you mean against?); it takes "),
        ("score.min_scoer=0.9", "rewrite has no key score.min_scoer (did you mean score.min_score?); it takes "),
        ("score.floor=0.9", "rewrite has no key score.floor"),
        ("formats_=[train]", "rewrite has no key formats_; it takes "),
    ],
)
def test_an_unknown_key_is_answered_with_the_keys_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argument: str, text: str
) -> None:
    make_output(tmp_path / "a", random_shards(2, 1))
    assert rewrite.main([f"source={tmp_path / 'a'}", f"output={tmp_path / 'b'}", "ray.runner=local", argument]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert "rows_per_shard" not in error
    assert error.count("\n") == 1
    (tmp_path / "list.txt").write_text("http://example.org/x.jpg\n")
    assert takedown.main([str(tmp_path / "a"), f"list={tmp_path / 'list.txt'}", "dryrun=true"]) == 2
    text = "takedown has no key dryrun (did you mean dry_run?); it takes dry_run, list, log, quiet, ray, report"
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["input=/tmp/other", "limit=3"])
def test_settings_that_a_retry_does_not_use_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argument: str
) -> None:
    make_output(tmp_path / "a", random_shards(2, 1))
    assert run(["retry=true", f"output={tmp_path / 'a'}", argument]) == 2
    assert f"retry cannot change {argument.partition('=')[0]}, a setting of the job" in capsys.readouterr().err


def test_takedown_refuses_them_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_output(tmp_path / "a", random_shards(2, 1))
    (tmp_path / "list.txt").write_text("http://example.org/x.jpg\n")
    assert takedown.main([str(tmp_path / "a"), f"list={tmp_path / 'list.txt'}", "output=/tmp/other"]) == 2
    assert "takedown cannot change output, a setting of the job" in capsys.readouterr().err
