"""Mistakes of the user: exit code 2, a message with the cause, and no output."""

from pathlib import Path

import pytest

from tests.e2e.commands import COMMANDS, run, run_alone


def test_a_misspelt_key_of_the_job_is_refused_with_the_right_one(tmp_path: Path) -> None:
    done = run_alone("job", "inptu=pairs.csv", f"output={tmp_path / 'out'}", cwd=tmp_path)
    assert done.returncode == 2
    assert "'input'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_unknown_input_is_named(tmp_path: Path) -> None:
    done = run("job", f"input={tmp_path / 'missing.parquet'}", f"output={tmp_path / 'out'}")
    assert done.returncode == 2
    assert "missing.parquet" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", [verb for verb in COMMANDS if verb not in ("job", "demo")])
def test_an_unknown_output_is_named_by_every_command(tmp_path: Path, verb: str) -> None:
    missing, new = tmp_path / "missing", tmp_path / "new"
    (tmp_path / "list.txt").write_text("example.org\n")
    more = {
        "rewrite": (f"source={missing}2", f"output={new}", "samples_per_shard=10", f"against={tmp_path / 'list.txt'}"),
    }
    last = {"takedown": (f"list={tmp_path / 'list.txt'}",), "quality": (f"marks={tmp_path / 'marks.csv'}",)}
    arguments = (f"source={missing}", *more[verb]) if verb in more else (missing, *last.get(verb, ()))
    arguments = (f"output={missing}",) if verb == "retry" else arguments
    done = run(verb, *arguments)
    assert done.returncode == 2
    assert "missing" in done.stderr
    assert "Traceback" not in done.stderr
    assert not new.exists()
