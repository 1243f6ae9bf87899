"""A job on Ray as a command, and the environment that workers get from the driver."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.paths import repository_root
from pipeline.run.ray import worker_variables
from tests.pipeline.jobs import hash_output


def test_workers_get_the_checkout_the_cache_of_models_and_the_offline_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "HYPERGRIT_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    assert worker_variables() == {"PYTHONPATH": str(repository_root())}
    given = {"HYPERGRIT_CACHE": "/local/models", "HF_HUB_OFFLINE": "1"}
    for name, value in {"PYTHONPATH": "/extra", **given}.items():
        monkeypatch.setenv(name, value)
    assert worker_variables() == {"PYTHONPATH": f"{repository_root()}{os.pathsep}/extra", **given}


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
