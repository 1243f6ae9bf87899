"""Workers of a command that was killed cannot write to the output of the next command."""

import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from pipeline.commands import rewrite
from pipeline.commands.frame import derive_command, new_config
from pipeline.commands.rewrite import RewriteOptions, make_table
from pipeline.commands.rewrite_rows import PartReader
from pipeline.commands.takedown import remove_rows
from pipeline.faults import ShardError
from pipeline.output.lock import hold_lease
from pipeline.output.source import Source
from pipeline.output.store import Store
from pipeline.output.write import stage
from pipeline.run import derived as output
from pipeline.run.derived import NewShard
from tests.pipeline.commands.derive.outputs import LOCAL, make_output, plan_shards, random_shards, read_rows
from tests.pipeline.jobs import hash_output

LEFTOVERS = """
import os, sys
from pathlib import Path
from hypergrit_common.disk import temporary_name
from pipeline.output.store import temporary_folder_prefix
for path in sys.argv[2:]:
    Path(temporary_name(path)).write_bytes(b"half")
Path(sys.argv[1], temporary_folder_prefix() + "abcdefgh").mkdir()
"""


@dataclass(frozen=True)
class NoOptions:
    """The options of a command that has none of its own."""


def plan(source: Path, new: Path, seed: int) -> Sequence[NewShard]:
    return plan_shards(Source(str(source)), new, RewriteOptions(samples_per_shard=4, seed=seed))


MAKE = partial(make_table, PartReader("unused"))


def test_a_worker_of_an_earlier_command_cannot_write_to_the_output(tmp_path: Path) -> None:
    source, new = tmp_path / "source", tmp_path / "new"
    make_output(source, random_shards(2, 3))
    arguments = [f"source={source}", f"output={new}", "samples_per_shard=4", *LOCAL]
    assert rewrite.main([*arguments, "seed=2"]) == 0
    before, config = hash_output(new), Source(str(new)).config
    stale = plan(source, new, seed=1)[0]
    with pytest.raises(ShardError, match="nothing is written"):  # the next command has finished
        output.commit(MAKE, config, "token of the killed command", stale)
    with hold_lease(Store(str(new))) as lease:
        with pytest.raises(UserError, match="nothing is written"):
            output.commit(MAKE, config, "token of the killed command", stale)
        assert hash_output(new) == before
        output.commit(MAKE, config, lease.token, stale)
    assert hash_output(new) != before


def test_a_takedown_that_has_lost_the_output_leaves_it_alone(tmp_path: Path) -> None:
    make_output(tmp_path / "a", random_shards(2, 1))
    before = hash_output(tmp_path / "a")
    manifest = Source(str(tmp_path / "a")).manifests[0]
    store = Store(str(tmp_path / "a"))
    with hold_lease(store), pytest.raises(UserError, match="nothing is written"):
        remove_rows(store, manifest, {"000000000001": ("url", read_rows(tmp_path / "a")["000000000001"])}, "other")
    assert hash_output(tmp_path / "a") == before


def test_a_shard_that_an_earlier_command_commits_meanwhile_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, new = tmp_path / "source", tmp_path / "new"
    make_output(source, random_shards(2, 3))
    old, wanted = (plan(source, new, seed)[0] for seed in (1, 2))
    assert (old.plan, old.provenance) == (wanted.plan, wanted.provenance)
    config, exclusive = new_config(Source(str(source)), [], str(new)), stage.exclusive
    with hold_lease(Store(str(new))) as lease:

        @contextlib.contextmanager
        def late(store: Store, index: int) -> Iterator[None]:
            with monkeypatch.context() as patch:
                patch.setattr(stage, "exclusive", exclusive)
                output.commit(MAKE, config, lease.token, old)
            with exclusive(store, index):
                yield

        monkeypatch.setattr(stage, "exclusive", late)
        output.commit(MAKE, config, lease.token, wanted)
    manifest = json.loads((new / "_manifests" / "00000.json").read_bytes())
    assert manifest["origin"]["settings"]["seed"] == 2


def test_half_written_files_and_databases_of_killed_commands_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output, temporary = tmp_path / "a", tmp_path / "b", tmp_path / "tmp"
    make_output(source, random_shards(2, 2))
    for folder in (temporary, output / "train", output / "_dedupe"):
        folder.mkdir(parents=True)
    files = [str(output / name) for name in ("train/00001.tar", "_dedupe/00000.drops.arrow", "stats.json")]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    subprocess.run([sys.executable, "-c", LEFTOVERS, str(temporary), *files], check=True, env=environment)
    assert len(list(output.rglob("*.tmp"))) == 3
    assert len(list(temporary.iterdir())) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert rewrite.main([f"source={source}", f"output={output}", "dedupe=[url]", *LOCAL]) == 0
    assert list(output.rglob("*.tmp")) == []
    assert list(temporary.iterdir()) == []


def test_lines_show_the_progress_where_there_is_no_terminal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.config.LogConfig.interval_s", 0.001)
    caplog.set_level(logging.INFO)
    make_output(tmp_path / "a", random_shards(2, 2))
    arguments = [f"source={tmp_path / 'a'}", *LOCAL]
    assert rewrite.main([*arguments, f"output={tmp_path / 'b'}"]) == 0
    assert "written: 2 of 2 shards" in caplog.text
    assert rewrite.main([*arguments, f"output={tmp_path / 'c'}", "dedupe=[url]"]) == 0
    assert "read to compare: 2 of 2 shards" in caplog.text
    caplog.clear()
    assert rewrite.main([*arguments, f"output={tmp_path / 'd'}", "quiet=true"]) == 0
    assert "written" not in caplog.text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], r"\d\d:\d\d:\d\d INFO working\n"),
        (["log.format=json"], r"\{.*\"message\": \"working\"\}\n"),
        (["quiet=true"], ""),
        (["log.format=xml"], r"error: log.format=xml: .*\n"),
    ],
)
def test_the_log_has_the_level_and_the_form_of_the_arguments(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str], expected: str
) -> None:
    def work(_: Sequence[str]) -> int:
        logging.getLogger("hypergrit").info("working")
        return 0

    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)
    derive_command("usage", work, NoOptions)(options)
    assert re.fullmatch(expected, capsys.readouterr().err)
