"""The settings of a run of GLIP's training, which it resumes with."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from hypergrit_common.errors import UserError
from pipeline.stages.ground.glip.training.config import GlipTrainConfig, load_config
from pipeline.stages.ground.glip.training.training_run import SETTINGS_FILE, check_settings


@pytest.fixture
def config() -> GlipTrainConfig:
    return load_config(
        ["output", "output=glip", "init=tiny", "device=cpu", "batch_size=2", "steps=4", "optim.warmup_steps=1"]
    )


def test_a_run_resumes_with_its_saved_settings(config: GlipTrainConfig, tmp_path: Path) -> None:
    path = tmp_path / SETTINGS_FILE
    check_settings(path, config, resumes=False)
    assert set(yaml.safe_load(path.read_text(encoding="utf-8"))) == {*config.__dataclass_fields__}
    check_settings(path, replace(config, device="cuda"), resumes=True)  # a runtime setting


def test_a_setting_that_differs_from_the_saved_one_is_named(config: GlipTrainConfig, tmp_path: Path) -> None:
    path = tmp_path / SETTINGS_FILE
    check_settings(path, config, resumes=False)
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"init was 'tiny' and is now 'miniature'"):
        check_settings(path, replace(config, init="miniature"), resumes=True)
    with pytest.raises(UserError, match=r"optim\.lr was 0\.0001 and is now 0\.5"):
        check_settings(path, replace(config, optim=replace(config.optim, lr=0.5)), resumes=True)
    assert path.read_bytes() == before
