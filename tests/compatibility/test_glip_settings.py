"""Settings of GLIP's training, saved by version 0.1: a run resumes with them, and old keys are explained."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from common.config import split_runtime
from common.errors import UserError
from pipeline.ground.glip.training.config import KEYS, GlipTrainConfig, load_config
from pipeline.ground.glip.training.settings import SETTINGS_FILE, check_settings

SAVED = Path(__file__).parent / "v0_1" / "glip" / SETTINGS_FILE
SAME_SETTINGS = (
    "output", "output=glip", "init=tiny", "device=cpu", "batch_size=2", "steps=4", "optim.warmup_steps=1",
    "optim.average_every=1", "log.every=1", "save.interval_s=0",
)  # fmt: skip


@pytest.fixture
def config() -> GlipTrainConfig:
    """The settings of the saved file, under the present keys."""
    return load_config(SAME_SETTINGS)


def test_the_translated_settings_equal_those_of_the_present_keys(config: GlipTrainConfig) -> None:
    translated = KEYS.translate(yaml.safe_load(SAVED.read_text(encoding="utf-8")))
    fixed, may_change = split_runtime(config)
    assert translated == json.loads(json.dumps(fixed | may_change))


def test_a_saved_device_of_null_means_auto() -> None:
    saved = yaml.safe_load(SAVED.read_text(encoding="utf-8")) | {"device": None}
    assert KEYS.translate(saved)["device"] == "auto"


def test_a_run_resumes_with_its_saved_settings(config: GlipTrainConfig, tmp_path: Path) -> None:
    path = tmp_path / SETTINGS_FILE
    path.write_bytes(SAVED.read_bytes())
    check_settings(path, config, resumes=True)
    rewritten = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(rewritten) == {*config.__dataclass_fields__}
    check_settings(path, config, resumes=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"init": "miniature"}, "init was 'tiny' and is now 'miniature'"), ({"batch_size": 4}, "batch_size was 2")],
)
def test_a_setting_that_differs_from_the_saved_one_is_named(
    config: GlipTrainConfig, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / SETTINGS_FILE
    path.write_bytes(SAVED.read_bytes())
    with pytest.raises(UserError, match=message):
        check_settings(path, replace(config, **change), resumes=True)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"optim\.lr was 0\.0001 and is now 0\.5"):
        check_settings(path, replace(config, optim=replace(config.optim, lr=0.5)), resumes=True)
    assert path.read_bytes() == SAVED.read_bytes()


@pytest.mark.parametrize(("old", "new"), KEYS.renamed.items())
def test_an_old_key_on_the_command_line_is_an_error_that_names_the_new_one(old: str, new: str) -> None:
    short = {"optim.steps": "steps", "optim.lr": "lr"}.get(new, new)
    with pytest.raises(UserError, match=f"^{re.escape(f'{old}=1: the key {old} is now called {short}')}$"):
        load_config(["output", f"{old}=1"])


def test_an_old_device_of_null_on_the_command_line_is_an_error_that_names_auto() -> None:
    with pytest.raises(UserError, match=r"device=null is now written device=auto"):
        load_config([*SAME_SETTINGS, "device=null"])
