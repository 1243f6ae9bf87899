"""A job on Ray as a command, and the environment that workers get from the driver."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec.config
import pytest

from hypergrit_common.paths import repository_root
from pipeline.config import load_config
from pipeline.grit import main
from pipeline.run.ray import connect, worker_variables
from tests.pipeline.jobs import hash_output


def test_workers_get_the_checkout_the_cache_of_models_and_the_offline_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "HYPERGRIT_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    assert worker_variables() == {"PYTHONPATH": str(repository_root())}
    given = {"HYPERGRIT_CACHE": "/local/models", "HF_HUB_OFFLINE": "1"}
    for name, value in {"PYTHONPATH": "/extra", **given}.items():
        monkeypatch.setenv(name, value)
    assert worker_variables() == {"PYTHONPATH": f"{repository_root()}{os.pathsep}/extra", **given}


def test_ray_env_reaches_workers_by_their_hook_and_not_by_what_ray_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("pipeline.run.ray.init_ray", lambda _, **options: given.update(options["runtime_env"]))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    connect(load_config(["input=a", "output=b", "ray.env={AWS_SECRET_ACCESS_KEY: null, FSSPEC_S3_KEY: k3y}"]).ray)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "s3cret" not in str(given["env_vars"])
    monkeypatch.setattr("hypergrit_common.paths.set_up_logging", lambda _: None)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with monkeypatch.context() as context:
        context.setattr(os, "environ", dict(os.environ))
        context.setattr(fsspec.config, "conf", {})
        given["worker_process_setup_hook"]()
        assert os.environ["AWS_SECRET_ACCESS_KEY"] == "s3cret"
        assert fsspec.config.conf["s3"] == {"key": "k3y"}


def test_a_variable_of_ray_env_that_is_not_set_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["input=a", "output=b", "ray.env.NOT_SET_HERE=null"]) == 2
    assert "ray.env: the variable 'NOT_SET_HERE' is not set in this process" in capsys.readouterr().err


@pytest.mark.ray
@pytest.mark.timeout(1000)
def test_ray_gives_the_same_bytes_as_the_local_runner_even_from_another_folder(
    ray_cluster: Any, tars: Path, finished: Path, tmp_path: Path
) -> None:
    output = tmp_path / "ray"
    command = [
        sys.executable,
        str(repository_root() / "pipeline" / "grit.py"),
        f"input={tars}",
        f"output={output}",
        "rows_per_shard=4",
    ]
    environment = {**os.environ, "RAY_ADDRESS": ray_cluster.address}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert hash_output(output) == hash_output(finished)
