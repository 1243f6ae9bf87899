"""Sources that lack shards: no command leaves out their rows without a word."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.verify import VerifyOptions, verify
from pipeline.output.manifest import write_failed
from pipeline.output.store import Store
from tests.pipeline.commands.derive.outputs import make_output, random_shards, read_rows, record_job
from tests.pipeline.commands.derive.outputs import run_rewrite as run

N_ROWS = 37
"""Rows of the job: four shards of 8, and one of 5."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An output with a record of the job, of which verify has requeued shard 1, and shard 3 has failed."""
    shards = random_shards(2, 5)
    del shards[1], shards[3]
    record_job(make_output(tmp_path / "a", shards), N_ROWS)
    failed: Any = {"shard": 3, "rows": 8, "step": "write", "error": "x", "traceback": "", "attempts": 1}
    write_failed(Store(str(tmp_path / "a")), failed)
    return tmp_path / "a"


@pytest.mark.parametrize(
    "arguments",
    [[], ["dedupe=[url,bytes]"], ["samples_per_shard=1000", "shuffle=false"], ["against=SET"]],
    ids=["formats", "dedupe", "reshard", "decontaminate"],
)
def test_rows_of_unfinished_shards_are_left_out_only_when_asked_for(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
    arguments: Sequence[str],
) -> None:  # fmt: skip
    (tmp_path / "set.txt").write_text("http://example.org/x.jpg\n")
    arguments = [argument.replace("SET", str(tmp_path / "set.txt")) for argument in arguments]
    assert run(source, tmp_path / "new", *arguments) == 2
    text = "lacks 2 of its 5 shards (16 rows), such as shard 1; run the job again with the same settings to finish it"
    assert text in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert run(source, tmp_path / "new", *arguments, "incomplete=true") == 0
    assert "lacks 2 of its 5 shards (16 rows)" in caplog.text
    assert len(read_rows(tmp_path / "new")) == N_ROWS - 16
    record = json.loads((tmp_path / "new" / "_command.json").read_bytes())
    assert record["left_out"] == [{"output": str(source), "shards": [1, 3], "rows": 16}]
    capsys.readouterr()
    assert verify(str(tmp_path / "new"), VerifyOptions(processes=1)) == 0
    text = "2 more not finished" if not arguments else f"(incomplete=true): 2 shards (16 rows) of {source}"
    assert text in capsys.readouterr().out


def test_a_failed_shard_counts_without_a_record_of_the_job_too(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "_job.json").unlink()
    assert run(source, tmp_path / "new", "dedupe=[url]") == 2
    assert "lacks 1 of its 4 shards (8 rows), such as shard 3" in capsys.readouterr().err


def test_the_output_of_an_incomplete_command_warns_the_next_one(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(source, tmp_path / "b", "incomplete=true", "dedupe=[url]") == 0
    caplog.clear()
    assert run(tmp_path / "b", tmp_path / "c", "dedupe=[url]") == 0
    assert f"left out of {tmp_path / 'b'}: 2 shards (16 rows) of {source}" in caplog.text


def test_an_unfinished_output_of_a_command_is_always_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(source, tmp_path / "b", "incomplete=true", "samples_per_shard=5") == 0
    (last := max((tmp_path / "b" / "_manifests").iterdir())).unlink()
    assert last.name > "00001"
    assert run(tmp_path / "b", tmp_path / "c", "incomplete=true") == 2  # its other shards may hold its last keys
    error = capsys.readouterr().err
    assert "run hypergrit rewrite again" in error
    assert "incomplete=true" not in error
