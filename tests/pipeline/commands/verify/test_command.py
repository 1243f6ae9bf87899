"""The command pipeline.commands.verify: exit codes, messages, and broken shards that go back into the queue."""

import json
from pathlib import Path

import pytest

from pipeline.commands.verify import check_shards, main
from pipeline.config import PipelineConfig
from pipeline.output.lock import hold_lease
from pipeline.output.store import Store
from pipeline.run.job import run_job
from tests.pipeline.commands.verify.damage import edit_manifest, flip, write_two
from tests.pipeline.commands.verify.dying import Dying
from tests.pipeline.jobs import hash_output
from tests.pipeline.output.resume.test_damages import computed, config  # noqa: F401 (fixtures)

Printed = pytest.CaptureFixture[str]


def verify(*arguments: object) -> int:
    return main([*map(str, arguments), "processes=1"])


def test_an_intact_output_is_left_as_it_is(tmp_path: Path, capsys: Printed) -> None:
    write_two(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert verify(tmp_path) == 0
    text = capsys.readouterr().out
    assert "2 finished shards: 8 rows read, 5 kept" in text
    assert "everything is intact" in text
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_quiet_check_prints_only_what_is_broken(tmp_path: Path, capsys: Printed) -> None:
    write_two(tmp_path)
    assert verify(tmp_path, "quiet=true") == 0
    assert capsys.readouterr().out == ""
    flip(tmp_path / "arrow/00001.arrow")
    assert verify(tmp_path, "quiet=true") == 1
    broken, last = capsys.readouterr().out.splitlines()
    assert broken.startswith("shard 1: arrow/00001.arrow: other content")
    assert last.startswith("1 shard is broken: 1;")


def test_requeued_shards_are_computed_again_and_the_output_is_as_before(
    config: PipelineConfig,  # noqa: F811
    computed: list[int],  # noqa: F811
    capsys: Printed,
) -> None:
    output = Path(config.output)
    before = hash_output(output)
    flip(output / "arrow/00001.arrow")
    flip(output / "_index/00002.arrow")
    edit_manifest(output, lambda manifest: manifest.update(asked=7), index=3)
    assert verify(output) == 1
    assert verify(output, "requeue=true") == 1
    text = capsys.readouterr().out
    assert "shard 1: arrow/00001.arrow: other content" in text
    assert "3 shards are broken: 1, 2, 3; they are in the queue" in text
    assert sorted(path.name for path in output.glob("_manifests/*.json")) == ["00000.json", "00002.json"]
    assert not (output / "_index/00002.arrow").exists()
    assert not (output / "_lease.json").exists()
    assert run_job(config).n_failures == 0
    assert computed == [1, 3]  # the index is restored from the headers of the tars
    assert hash_output(output) == before
    assert verify(output) == 0


def test_other_files_are_compared_too(
    config: PipelineConfig,  # noqa: F811
    capsys: Printed,
) -> None:
    output = Path(config.output)
    stats = json.loads((output / "stats.json").read_text())
    stats["rows"]["dropped"]["download"]["http_error"] -= 1
    (output / "stats.json").write_text(json.dumps(stats))
    (output / "_job.json").write_text("{")
    assert verify(output) == 1
    text = capsys.readouterr().out
    assert "_job.json: damaged" in text
    assert "stats.json: 10 rows download: http_error, but 11 in the manifests; write it again with" in text
    (output / "stats.json").write_text("[]")
    assert verify(output) == 1
    assert "stats.json: damaged" in capsys.readouterr().out


def test_nothing_is_requeued_while_a_job_holds_the_output(tmp_path: Path, capsys: Printed) -> None:
    write_two(tmp_path)
    flip(tmp_path / "train/00001.tar")
    with hold_lease(Store(str(tmp_path))):
        assert verify(tmp_path, "requeue=true") == 2
        assert (tmp_path / "_manifests/00001.json").exists()
    assert "is in use by a job" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["missing"], "does not exist"),
        (["missing", "requeue=true"], "does not exist"),
        (["file"], "no finished shard in"),
        (["https://ann:secret@example.org/out"], "contains a user name or a password"),
        (["nonsense://bucket/out"], "give a path, or a URL such as"),
    ],
)
def test_a_wrong_output_is_an_error_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed, arguments: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert verify(*arguments) == 2
    error = capsys.readouterr().err
    assert text in error
    assert "secret" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_hostile_names_do_not_reach_the_terminal(tmp_path: Path, capsys: Printed) -> None:
    write_two(tmp_path)
    edit_manifest(tmp_path, lambda m: m["files"].update({"\x1b[2J\n../../etc/passwd": m["files"]["arrow/00001.arrow"]}))
    assert verify(tmp_path) == 1
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "shard 1: _manifests/00001.json: it lists \\x1b[2J\\n../../etc/passwd" in text


def test_a_shard_that_ends_the_process_of_its_check_is_a_problem_of_that_shard_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.commands.verify.Checker", Dying)
    findings = check_shards(Store(str(tmp_path)), dict.fromkeys(range(3)), 1)
    found = sorted(findings, key=lambda finding: finding.shard)
    assert [len(finding.problems) for finding in found] == [0, 1, 0]
    assert "ended with exit code 9" in str(found[1].problems[0])
