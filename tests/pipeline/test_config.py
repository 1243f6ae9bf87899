"""The configuration: defaults, YAML, overrides, and what it refuses."""

import dataclasses
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from common.config import to_yaml
from common.config_help import list_keys
from common.errors import UserError
from pipeline.config import KEYS, PipelineConfig, content_hash, load_config
from pipeline.help import help_text

PLACES = ["input=in.parquet", "output=out"]


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("input: a\noutput: b\nrows_per_shard: 7\nlimit: 9\n")
    config = load_config([str(file), "limit=3"])
    assert (config.input, config.rows_per_shard, config.limit) == ("a", 7, 3)


def test_short_keys_reach_the_stage_they_stand_for(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("input: a\noutput: b\nscorer: some/clip\n")
    config = load_config([str(file), "grounder=glip_t", "formats=[arrow]"])
    assert config.ground.grounder == "glip_t"
    assert config.score.scorer == "some/clip"
    assert config.write.formats == ("arrow",)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("limitt=3", "limit"),
        ("download.timeoutt=3", "download.timeoutt"),
        ("rows_per_shard=many", "rows_per_shard"),
        ("rows_per_shard=0", "rows_per_shard"),
        ("limit=-1", "limit"),
        ("nonsense", "nonsense"),
    ],
)
def test_a_wrong_key_or_value_is_named(override: str, named: str) -> None:
    with pytest.raises(UserError, match=named):
        load_config([*PLACES, override])


def test_a_run_without_input_or_output_says_which_is_missing() -> None:
    with pytest.raises(UserError, match="output is not set"):
        load_config(["input=x"])


@pytest.mark.parametrize(
    "wish",
    [
        "download.concurrency=0",  # would wait for ever
        "download.concurrency_per_host=0",
        "download.decode_threads=0",
        "download.timeout_s=0",
        "download.deadline_s=.nan",
        "download.retries=-1",
        'download.contact="a\\nb"',
        "download.limits.min_side_px=0",
        "download.resize.size=0",
        "download.resize.jpeg_quality=101",
        "captions.max_characters=0",
        "ray.model_workers=0",
        "ray.retries=-1",
    ],
)
def test_a_number_that_cannot_work_is_named_before_anything_starts(wish: str) -> None:
    with pytest.raises(UserError, match=re.escape(wish.split("=")[0].split(".")[-1])):
        load_config([*PLACES, wish])


@pytest.mark.parametrize("text", ["just words", "a: [", "- 1\n- 2\n"])
def test_a_broken_yaml_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=r"broken\.yaml"):
        load_config([str(file), *PLACES])


def test_a_yaml_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml"):
        load_config(["nowhere.yaml", *PLACES])


def test_the_resolved_config_loads_to_itself(tmp_path: Path) -> None:
    config = load_config([*PLACES, "limit=5", "formats=[grit,arrow]"])
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    assert load_config([str(file)]) == config


def test_the_hash_changes_with_the_content_and_not_with_the_place() -> None:
    config = load_config(PLACES)
    elsewhere = dataclasses.replace(config, input="x", output="y", limit=3)
    other = load_config([*PLACES, "formats=[arrow]"])
    assert content_hash(config) == content_hash(elsewhere)
    assert content_hash(config) != content_hash(other)


def test_help_teaches_every_key_with_a_comment_and_its_default() -> None:
    text = help_text()
    for key, _, comment, _ in list_keys(PipelineConfig):
        assert comment, f"{key} has no comment beside it"
        assert comment in text
        assert key in text
    for short in KEYS.short:
        assert f"  {short} (= " in text
    leaves = OmegaConf.to_container(OmegaConf.structured(PipelineConfig(input="a", output="b")))
    assert isinstance(leaves, dict)
    assert {key.split(".")[0] for key, *_ in list_keys(PipelineConfig)} == set(leaves)
