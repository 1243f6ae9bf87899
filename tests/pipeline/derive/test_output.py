"""Workers of a command that was killed: they end, and cannot write to the output of the next command."""

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import UserError
from common.processes import descendants, started_at
from pipeline import dedupe, merge, reshard
from pipeline.derive import output
from pipeline.derive.command import Run, derive_command
from pipeline.derive.options import ReshardOptions
from pipeline.derive.removal import remove_rows
from pipeline.derive.reshard import plan_reshard
from pipeline.derive.settings import new_config
from pipeline.derive.shuffle import ReshardedShard, make_table
from pipeline.derive.source import Source
from pipeline.faults.fault import ShardError
from pipeline.lease import hold_lease
from pipeline.write import stage
from pipeline.write.store import Store
from tests.pipeline.derive.outputs import make_output, random_shards
from tests.pipeline.jobs import hash_output

SCRIPT = """
import os, sys, time
from pipeline.config import RayConfig
from pipeline.derive.workers import map_shards

def work(path):
    open(path, "w").close()
    time.sleep(600)

if __name__ == "__main__":
    list(map_shards(work, sys.argv[1:], RayConfig(runner="local", cpu_workers=2)))
"""


def plan(source: Path, new: Path, seed: int) -> list[ReshardedShard]:
    found = Source(str(source))
    config = new_config(found.store, [], str(new), "reshard")
    return plan_reshard(found, found.config, config, ReshardOptions(samples_per_shard=4, seed=seed))  # type: ignore[return-value]


def test_workers_end_when_their_command_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    files = [tmp_path / "a", tmp_path / "b"]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    parent = subprocess.Popen([sys.executable, str(script), *map(str, files)], env=environment)
    workers: dict[int, str] = {}
    try:
        deadline = time.monotonic() + 60
        while not all(file.exists() for file in files):
            assert time.monotonic() < deadline
            assert parent.poll() is None
            time.sleep(0.05)
        workers = descendants(parent.pid)
        assert len(workers) >= 2
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)  # as if it were slow
        parent.kill()
        parent.wait()
        while any(started_at(pid) == started for pid, started in workers.items() if not is_tracker(pid)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        parent.kill()
        parent.wait()
        for pid, started in workers.items():
            if started_at(pid) == started:
                os.kill(pid, signal.SIGKILL)


def is_tracker(pid: int) -> bool:
    """True for multiprocessing's own process, which ends by itself once its input ends."""
    with contextlib.suppress(OSError):
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_a_worker_of_an_earlier_command_cannot_write_to_the_output(tmp_path: Path) -> None:
    source, new = tmp_path / "source", tmp_path / "new"
    make_output(source, random_shards(2, 3))
    arguments = [f"source={source}", f"output={new}", "samples_per_shard=4", "ray.runner=local", "ray.cpu_workers=1"]
    assert reshard.main([*arguments, "seed=2"]) == 0
    before, config = hash_output(new), Source(str(new)).config
    stale = plan(source, new, seed=1)[0]
    with pytest.raises(ShardError, match="nothing is written"):  # the next command has finished
        output.commit(make_table, config, "token of the killed command", stale)
    with hold_lease(Store(str(new))) as lease:
        with pytest.raises(UserError, match="nothing is written"):
            output.commit(make_table, config, "token of the killed command", stale)
        assert hash_output(new) == before
        output.commit(make_table, config, lease.token, stale)
    assert hash_output(new) != before


def test_a_takedown_that_has_lost_the_output_leaves_it_alone(tmp_path: Path) -> None:
    make_output(tmp_path / "a", random_shards(2, 1))
    before = hash_output(tmp_path / "a")
    manifest = Source(str(tmp_path / "a")).manifests[0]
    store = Store(str(tmp_path / "a"))
    with hold_lease(store), pytest.raises(UserError, match="nothing is written"):
        remove_rows(store, {"manifest": manifest, "rows": {"000000000001": "url"}}, "other")
    assert hash_output(tmp_path / "a") == before


def test_a_shard_that_an_earlier_command_commits_meanwhile_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, new = tmp_path / "source", tmp_path / "new"
    make_output(source, random_shards(2, 3))
    old, wanted = (plan(source, new, seed)[0] for seed in (1, 2))
    assert (old.plan, old.provenance) == (wanted.plan, wanted.provenance)
    config, exclusive = new_config(Store(str(source)), [], str(new), "reshard"), stage.exclusive
    with hold_lease(Store(str(new))) as lease:

        @contextlib.contextmanager
        def late(store: Store, index: int) -> Iterator[None]:
            with monkeypatch.context() as patch:
                patch.setattr(stage, "exclusive", exclusive)
                output.commit(make_table, config, lease.token, old)
            with exclusive(store, index):
                yield

        monkeypatch.setattr(stage, "exclusive", late)
        output.commit(make_table, config, lease.token, wanted)
    manifest = json.loads((new / "_manifests" / "00000.json").read_bytes())
    assert manifest["origin"]["settings"]["seed"] == 2


def test_lines_show_the_progress_where_there_is_no_terminal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    make_output(tmp_path / "a", random_shards(2, 2))
    arguments = [f"source={tmp_path / 'a'}", "ray.runner=local", "ray.cpu_workers=1", "log.interval_s=0.001"]
    assert merge.main([*arguments, f"output={tmp_path / 'b'}"]) == 0
    assert "written: 2 of 2 shards" in caplog.text
    assert dedupe.main([*arguments, f"output={tmp_path / 'c'}"]) == 0
    assert "read to compare: 2 of 2 shards" in caplog.text
    caplog.clear()
    assert merge.main([*arguments, f"output={tmp_path / 'd'}", "quiet=true"]) == 0
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
    def load() -> Run:
        logging.getLogger("hypergrit").info("working")
        return lambda _: 0

    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)
    derive_command("usage", load)(options)
    assert re.fullmatch(expected, capsys.readouterr().err)
