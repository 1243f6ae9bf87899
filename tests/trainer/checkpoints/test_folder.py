"""The folder of a run at a URL: one copy per machine, whatever the names of the machines."""

import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing import Pipe, get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from hypergrit_common import lease
from hypergrit_common.errors import UserError
from tests.patience import PATIENCE_S
from tests.trainer.small_run import run
from trainer.checkpoints import folder
from trainer.distributed.gather import all_ranks
from trainer.distributed.process import Process, process_group


def one_of_three(rank: int, work: str, port: int) -> None:
    """Open the folder on one of three ranks; rank 2 is on another machine with the same host name."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    folder.machine = lambda: "1" if rank == 2 else "0"  # type: ignore[assignment]
    with process_group("cpu", PATIENCE_S) as process, folder.open_run_folder(f"file://{work}/run", process) as found:
        Path(work, f"{rank}.json").write_text(json.dumps([str(found.path), found.newest_checkpoint()]))
        all_ranks(rank)  # the one that made the copy removes it


def test_nodes_with_equal_host_names_have_their_own_copies_of_the_newest_checkpoint(
    tmp_path: Path, free_port: int
) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "step_00000005"
    checkpoint.mkdir(parents=True)
    (checkpoint / folder.MARK).write_text("{}")
    torch.multiprocessing.start_processes(one_of_three, args=(str(tmp_path), free_port), nprocs=3, start_method="fork")
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert [newest for _, newest in found] == [f"file://{checkpoint}"] * 3
    assert found[0][0] == found[1][0] != found[2][0]


@contextmanager
def held(take: Callable[[], AbstractContextManager[object]]) -> Iterator[int]:
    """Let another process, whose id is yielded, hold what `take` takes, and kill it at the end of the block."""
    receiver, sender = Pipe(duplex=False)

    def hold() -> None:
        with take():
            sender.send(os.getpid())
            time.sleep(2 * PATIENCE_S)

    child = get_context("fork").Process(target=hold)
    child.start()
    try:
        yield receiver.recv()
    finally:
        child.kill()
        child.join()


def test_a_second_run_on_an_output_is_refused_with_host_and_process_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    output.mkdir()
    with held(lambda: folder.locked(output)) as pid:
        assert run(output) == 2
        message = capsys.readouterr().err
        assert f"another run writes to {output}: process {pid} on host {socket.gethostname()}" in message
    assert run(output) == 0


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "config.yaml", folder.LOCK, "new.txt", "checkpoints", "model", ".model", "disk"]
)
def test_links_through_which_a_run_would_change_other_files_are_refused(tmp_path: Path, name: str) -> None:
    mine, output, disk = tmp_path / "mine", tmp_path / "run", tmp_path / "disk"
    for path in (mine / "checkpoints", output, disk):
        path.mkdir(parents=True)
    with folder.locked(mine):
        pass
    (mine / "metrics.jsonl").write_text("{}")
    folders = {"disk": disk, "model": disk, ".model": disk, "checkpoints": mine / name}
    target = folders.get(name, mine / "metrics.jsonl")
    (output / name).symlink_to(target if name != "new.txt" else mine / "new.txt")
    with (
        nullcontext() if name == "disk" else pytest.raises(UserError, match=f"{name} is a link"),
        folder.locked(output),
    ):
        pass


@pytest.mark.parametrize("name", [folder.LOCK, folder.LOG_FILE])
def test_a_file_that_a_run_continues_is_no_pipe_and_has_no_second_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "other").write_text("kept")
    (tmp_path / name).hardlink_to(tmp_path / "other")
    for _ in range(2):
        with pytest.raises(UserError, match=f"{name} is no file, or has a second name"), folder.locked(tmp_path):
            pass
        assert (tmp_path / "other").read_text() == "kept"
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)


def test_files_that_a_run_replaces_are_not_written_through_a_second_name(tmp_path: Path) -> None:
    other, output = tmp_path / "other", tmp_path / "run"
    other.write_text(kept := '{"step": 0}\n')
    (output / "profile").mkdir(parents=True)
    for name in (names := ("config.yaml", "metrics.jsonl", "profile/trace.json.gz")):
        (output / name).hardlink_to(other)
    os.mkfifo(output / "shards.json")
    assert run(output, "log.profile=1") == 0
    assert other.read_text() == kept
    assert all((output / name).stat().st_size > len(kept) for name in names)


@pytest.mark.parametrize("name", folder.FILLED)
def test_a_folder_that_a_run_fills_may_be_a_link_to_an_empty_folder_only(tmp_path: Path, name: str) -> None:
    for other in ("full", "empty", "run"):
        (tmp_path / other).mkdir()
    (tmp_path / "full/step_00000001").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "full")
    with pytest.raises(UserError, match=f"{name} is a link to .*full, whose files"), folder.locked(tmp_path / "run"):
        pass
    (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / name).symlink_to(tmp_path / "empty")
    for _ in range(2):
        with folder.locked(tmp_path / "run"):
            (tmp_path / "empty/step_00000001").mkdir(exist_ok=True)


def test_a_second_run_on_a_url_is_refused_and_a_lease_of_a_killed_run_is_taken_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path}/store"
    with held(lambda: folder.UrlLease(url).held()) as pid:
        assert run(tmp_path / "run", f"output={url}") == 2
        message = capsys.readouterr().err
        assert f"the output {url} is in use by a job on host {socket.gethostname()} (process {pid}, " in message
        assert not (tmp_path / "store" / "metrics.jsonl").exists()
    assert run(tmp_path / "run", f"output={url}") == 0
    assert not (tmp_path / "store" / folder.LEASE).exists()


def test_the_lease_of_another_machine_is_respected_while_it_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WATCH_S": 0.1, "POLL_S": 0.02}.items():
        monkeypatch.setattr(lease, name, value)
    monkeypatch.setattr(folder, "SETTLE_S", 0.01)
    path = tmp_path / folder.LEASE
    far = {**json.loads(lease.new_lease()), "host": "far", "process": "01234567-1-1", "pid": 1, "token": "far"}
    path.write_text(json.dumps({**far, "heartbeat": 100}))

    def renew(_: float) -> None:
        path.write_text(json.dumps({**far, "heartbeat": 120}))

    with monkeypatch.context() as patched:
        patched.setattr(time, "sleep", renew)
        with pytest.raises(UserError, match=r"host far \(process 1"):
            folder.UrlLease(f"file://{tmp_path}").acquire()
    with folder.UrlLease(f"file://{tmp_path}").held() as ours:  # nobody renews it any more
        assert lease.token_of(ours.read()) == ours.token
        path.write_text(json.dumps({**far, "heartbeat": 140}))  # as after this machine was cut off
        (tmp_path / "copy").mkdir()
        with pytest.raises(UserError, match=r"has lost the output .* to a job on host far"):
            folder.RunFolder(ours.output, tmp_path / "copy", lease=ours).upload_files()
    assert path.exists()


@pytest.mark.parametrize("name", ["step_00000005/state.json", "checkpoints/step_00000005", "checkpoints/x/state.json"])
def test_only_state_json_in_a_step_marks_a_checkpoint(name: str) -> None:
    assert not folder.is_mark(name)
    assert folder.is_mark("checkpoints/step_00000005/state.json")


def test_messages_about_checkpoints_at_a_url_name_complete_ones_and_the_object_to_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, url, upload = tmp_path / "run", f"output=file://{tmp_path}/store", folder.RunFolder._upload

    def failing(self: folder.RunFolder, fs: Any, root: str, name: str) -> None:
        if "step_00000010" in name:
            raise OSError(5, "SlowDown")
        upload(self, fs, root, name)

    with monkeypatch.context() as patched:
        patched.setattr(folder.RunFolder, "_upload", failing)
        assert run(output, url) == 2
    error = capsys.readouterr().err
    assert f"the checkpoint of step 10 cannot be written to file://{tmp_path}/store" in error
    assert f"file://{tmp_path}/store/checkpoints/step_00000005 is complete; check the network" in error
    assert "hypergrit-run-" not in error

    damaged = tmp_path / "store" / "checkpoints" / "step_00000005"
    for name in ("state.safetensors", "rank_00000.json"):
        content = (damaged / name).read_bytes()
        (damaged / name).write_bytes(b"x")
        assert run(output, url) == 2
        (damaged / name).write_bytes(content)
        error = capsys.readouterr().err
        assert f"file://{damaged}/{name}" in error
        assert f"remove file://{damaged}/state.json to resume from" in error
        assert "hypergrit-run-" not in error


def test_files_that_vanish_and_temporary_ones_are_not_uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local, upload = tmp_path / "local", folder.RunFolder._upload
    for name in ("metrics.jsonl", "vanishing", "shards.json.tmp", "wandb/run", "model/config.json", ".model/draft"):
        (local / name).parent.mkdir(parents=True, exist_ok=True)
        (local / name).write_text("x")

    def vanishing(self: folder.RunFolder, fs: Any, root: str, name: str) -> None:
        if name == "vanishing":
            (local / name).unlink()
        upload(self, fs, root, name)

    monkeypatch.setattr(folder.RunFolder, "_upload", vanishing)
    folder.RunFolder(f"file://{tmp_path}/store", local).upload_files()
    found = sorted(str(path.relative_to(tmp_path / "store")) for path in (tmp_path / "store").rglob("*.*"))
    assert found == ["metrics.jsonl", "model/config.json"]


def test_copies_of_killed_runs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()

    def hold() -> None:
        with folder.open_run_folder(f"file://{tmp_path}/run", Process(device=torch.device("cpu"))):
            os.kill(os.getpid(), signal.SIGKILL)

    child = get_context("fork").Process(target=hold)
    child.start()
    child.join()
    (killed,) = (tmp_path / "tmp").glob("hypergrit-run-*")
    with folder.open_run_folder(f"file://{tmp_path}/run", Process(device=torch.device("cpu"))) as found:
        assert not killed.exists()
        folder.remove_abandoned_copies(tmp_path / "tmp")
        assert found.path.exists()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_newest_checkpoints_and_those_of_every_so_many_steps_are_kept() -> None:
    names = [f"step_{step:08d}" for step in (10, 15, 20, 25, 30)]
    assert folder.kept_checkpoints(names, 2, None) == {"step_00000025", "step_00000030"}
    assert folder.kept_checkpoints(names, 1, 10) == {"step_00000010", "step_00000020", "step_00000030"}
