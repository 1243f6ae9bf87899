"""Training on Ray: resource requests, working folders, and a run that survives the loss of a worker."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hypergrit_common.errors import UserError
from tests.patience import PATIENCE_S, wait_until
from tests.trainer.data.samples import train_files, write_tar
from tests.trainer.small_run import overrides, small_config
from trainer.training import loop, on_ray
from trainer.training.on_ray import scaling_config, train_worker, with_absolute_output

ROOT = Path(__file__).resolve().parents[3]


def test_a_request_that_the_cluster_cannot_satisfy_is_an_error(tmp_path: Path) -> None:
    config = small_config(tmp_path / "run", "ray.workers=4", "ray.cpus_per_worker=2", "device=auto")
    assert scaling_config(config, cpus=8, gpus=0).use_gpu is False
    assert scaling_config(config, cpus=8, gpus=4).use_gpu is True
    with pytest.raises(UserError, match=r"need 8 CPUs, but the cluster has 7 CPUs and 0 GPUs; lower ray\.workers"):
        scaling_config(config, cpus=7, gpus=0)
    with pytest.raises(UserError, match="and 4 GPUs, but the cluster has 8 CPUs and 3 GPUs"):
        scaling_config(config, cpus=8, gpus=3)


def test_a_relative_output_becomes_absolute_and_other_settings_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    config = small_config(Path("run"), "shards=a, s3://b/c")
    assert with_absolute_output(config) == dataclasses.replace(config, output=str(tmp_path / "run"))
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    with pytest.raises(UserError, match="output=run is relative"):
        with_absolute_output(config)


def test_a_worker_trains_in_the_folder_of_the_command_and_on_its_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[tuple[str, str]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "train", lambda config: calls.append((os.getcwd(), config.device)))
    (tmp_path / "project").mkdir()
    config = {"config": small_config(tmp_path / "run", "device=auto"), "folder": str(tmp_path / "project")}
    for device in ("cuda:3", "cpu"):  # of the four workers of a machine with four GPUs, and without GPUs
        monkeypatch.setattr(on_ray, "get_device", lambda device=device: torch.device(device))
        assert train_worker(config) == ""
    assert calls == [(str(tmp_path / "project"), device) for device in ("cuda:3", "auto")]


@pytest.mark.parametrize(
    ("given", "expected"), [(None, "expandable_segments:True"), ("backend:native", "backend:native")]
)
def test_workers_start_with_the_setting_of_the_gpu_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str | None, expected: str
) -> None:
    found: dict[str, Any] = {}
    monkeypatch.setattr(on_ray, "init_ray", lambda _, **options: found.update(options))
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    if given:
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", given)
    on_ray.connect(small_config(tmp_path / "run"))
    assert found["runtime_env"]["env_vars"]["PYTORCH_ALLOC_CONF"] == expected


WAITING = """
import os, time
from pathlib import Path

from trainer.models.hycoclip import HyCoCLIP

class Waiting(HyCoCLIP):
    def losses(self, *arguments):
        while Path("run/checkpoints/step_00000005").exists() and not Path("killed").exists():
            Path(f"waiting_{os.getpid()}").touch()
            time.sleep(0.02)
        return super().losses(*arguments)
"""
"""A model whose workers wait after the first checkpoint, until one of them has been killed."""


@pytest.mark.rest
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE_S)
def test_a_run_on_ray_resumes_after_a_worker_is_killed(tmp_path: Path) -> None:
    shards, output = tmp_path / "shards", tmp_path / "run"
    shards.mkdir()
    for number in range(2):
        write_tar(shards / f"{number:05d}.tar", [(f"{number}-{i}", train_files(i)) for i in range(16)])
    (tmp_path / "waiting.py").write_text(WAITING)
    arguments = overrides(
        output, "shards=shards", "tokenizer=merges.txt", "data.index_folder=index", "steps=30", "data.workers=0",
        "ray.workers=2", "ray.cpus_per_worker=0.5", f"parallel.timeout_s={PATIENCE_S}", "model_name=waiting:Waiting",
    )  # fmt: skip
    command = [sys.executable, "-m", "trainer.train", *arguments]
    paths = f"{ROOT}{os.pathsep}{tmp_path}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    environment["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(PATIENCE_S)
    with (tmp_path / "log").open("w") as log:
        run = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
        wait_until(lambda: run.poll() is not None or list(tmp_path.glob("waiting_*")))
        workers = [int(path.name.removeprefix("waiting_")) for path in tmp_path.glob("waiting_*")]
        assert workers, (tmp_path / "log").read_text()
        os.kill(workers[0], signal.SIGKILL)
        (tmp_path / "killed").touch()
        assert run.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
    rows = (output / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in rows] == list(range(1, 31))
    assert "checkpoints/step_000000" in (tmp_path / "log").read_text()
    assert len(list((tmp_path / "index").iterdir())) == 2
