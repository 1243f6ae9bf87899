"""The environment that workers get from the driver."""

import os

import pytest

from hypergrit_common.paths import repository_root
from pipeline.run.ray import worker_variables


def test_workers_get_the_checkout_the_cache_of_models_and_the_offline_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "HYPERGRIT_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    assert worker_variables() == {"PYTHONPATH": str(repository_root())}
    given = {"HYPERGRIT_CACHE": "/local/models", "HF_HUB_OFFLINE": "1"}
    for name, value in {"PYTHONPATH": "/extra", **given}.items():
        monkeypatch.setenv(name, value)
    assert worker_variables() == {"PYTHONPATH": f"{repository_root()}{os.pathsep}/extra", **given}
