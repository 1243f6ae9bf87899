from dataclasses import replace
from typing import Any

import pytest

from hypergrit_common.errors import UserError
from trainer.data.config import DataConfig


@pytest.mark.parametrize(
    "fields",
    [
        {"workers": -1},
        {"crop_scale": (0.9, 0.2)},
        {"subreddit_probability": 2.0},
        {"caption_weights": {"title": -1.0}},
    ],
)
def test_invalid_setting_is_named_in_the_error(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(UserError, match=rf"^{name} (is|are)"):
        replace(DataConfig(), **fields)


@pytest.mark.parametrize(("cores", "processes", "workers"), [(2, 1, 1), (1, 1, 1), (6, 1, 5), (96, 8, 8), (8, 4, 1)])
def test_the_loader_processes_follow_from_the_cores_that_the_processes_of_a_machine_share(
    monkeypatch: pytest.MonkeyPatch, cores: int, processes: int, workers: int
) -> None:
    monkeypatch.setattr("trainer.data.config.n_cpus", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert DataConfig().n_workers == workers
    assert DataConfig(workers=3).n_workers == 3
