"""The configuration of the pipeline: layers, errors, the content hash, and --help."""

import dataclasses
import re
from functools import partial
from pathlib import Path

import pytest

from hypergrit_common.config import to_yaml
from hypergrit_common.config_help import list_keys
from hypergrit_common.errors import UserError
from hypergrit_common.removed import LAST_COMMIT, NOT_IN_HASH
from pipeline.config import KEYS, PipelineConfig, content_hash, load_config, runtime_settings
from pipeline.grit import help_text
from pipeline.output.source import read_config
from pipeline.output.store import Store
from tests.removed import INVENTED, YAML, invent

PATHS = ["input=in.parquet", "output=out"]


def test_short_keys_set_the_settings_of_their_stage(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("input: a\noutput: b\nscorer: some/clip\n")
    config = load_config([str(file), "grounder=glip_t", "formats=[arrow]"])
    assert config.ground.grounder == "glip_t"
    assert config.score.scorer == "some/clip"
    assert config.write.formats == ("arrow",)


@pytest.mark.parametrize(
    "override",
    [
        "limitt=3",
        "download.timeoutt=3",
        "rows_per_shard=many",
        "rows_per_shard=0",
        "ray.step_timeout_s=3000000",
        "limit=-1",
        "nonsense",
        "nowhere.yaml",
        "download.concurrency=0",  # would wait indefinitely
        "download.concurrency_per_host=0",
        "download.timeout_s=0",
        "download.deadline_s=.nan",
        "download.retries=-1",
        'download.contact="a\\nb"',
        "download.min_side_px=0",
        "download.resize.size=0",
        "ground.batch_size=0",
        "ray.model_workers=0",
        "ray.retries=-1",
    ],
)
def test_an_error_names_the_wrong_key_or_value(override: str) -> None:
    with pytest.raises(UserError, match=re.escape(override.partition("=")[0])):
        load_config([*PATHS, override])


def test_a_missing_input_or_output_is_named() -> None:
    with pytest.raises(UserError, match="output is not set"):
        load_config(["input=x"])


@pytest.mark.parametrize("text", ["just words", "a: [", "- 1\n- 2\n"])
def test_an_invalid_yaml_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=r"broken\.yaml"):
        load_config([str(file), *PATHS])


def test_a_saved_configuration_loads_to_an_equal_one(tmp_path: Path) -> None:
    config = load_config([*PATHS, "limit=5", "formats=[grit,arrow]"])
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    assert load_config([str(file), *PATHS]) == config


@pytest.mark.parametrize(
    ("settings", "recorded"),
    [
        ([], "8a1b14d7bbba004a7f8cfabce321b4dae201922af7f7c9feffcfba54548c44c0"),
        (
            ["grounder=glip_t", "read.where=similarity > 0.3", "ray.retries=1", "limit=3"],
            "4b924852d2cee0cee9b1192251a23db78aec96664035a22f3ca1a4fc3ce0f482",
        ),
    ],
)
def test_the_hash_changes_with_no_removed_setting(settings: list[str], recorded: str) -> None:
    # Since version 0.7.0 it changed once: parse.model has another default, and nine settings are new (CHANGELOG.md).
    assert content_hash(load_config([*PATHS, *settings])) == recorded, (
        "a new setting needs new hashes here; a removed one, see NOT_IN_HASH in hypergrit_common/removed.py"
    )


def test_the_hash_holds_removed_settings_but_those_that_it_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(PATHS)
    before = content_hash(config)
    invent(monkeypatch, KEYS)
    monkeypatch.setattr("pipeline.config.NOT_IN_HASH", NOT_IN_HASH | set(INVENTED))
    assert content_hash(config) == before
    monkeypatch.setattr("pipeline.config.NOT_IN_HASH", NOT_IN_HASH | (INVENTED.keys() - {"garden.trees.number"}))
    assert content_hash(config) != before


def test_outputs_and_their_jobs_with_removed_settings_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invent(monkeypatch, KEYS)
    file = tmp_path / "config.yaml"
    file.write_text(f"input: a\noutput: b\nlimit: 3\n{YAML}")
    config = load_config(["input=a", "output=b", "limit=3"])
    assert read_config(Store(str(tmp_path))) == load_config([str(file), "input=a", "output=b"]) == config
    file.write_text(f"input: a\noutput: b\n{YAML}".replace("null", "blue"))
    for read in (partial(read_config, Store(str(tmp_path))), partial(load_config, [str(file)])):
        with pytest.raises(UserError, match=rf"config\.yaml: download\.colour was removed .*{LAST_COMMIT}"):
            read()


def test_the_hash_does_not_depend_on_input_output_and_rows() -> None:
    config = load_config(PATHS)
    moved = dataclasses.replace(config, input="x", output="y", limit=3, rows_per_shard=7)
    assert content_hash(moved) == content_hash(config)


def test_the_hash_does_not_depend_on_folders_of_models_and_images() -> None:
    def hash_of(folder: str, *names: str) -> str:
        models = [
            f"{key}={folder}/{name}" for key, name in zip(("grounder", "scorer", "score.head"), names, strict=True)
        ]
        return content_hash(load_config([*PATHS, *models, f"read.image_roots=[{folder}/images,s3://a/b]"]))

    assert hash_of("/home/jane", "glip", "clip", "head") == hash_of("/data/models", "glip", "clip", "head")
    assert hash_of("/home/jane", "glip", "clip", "head") != hash_of("/home/jane", "other", "clip", "head")
    assert content_hash(load_config([*PATHS, "read.image_roots=[/a]"])) != content_hash(load_config(PATHS))


RUNTIME = {
    "read.skip_damaged": "true",
    "download.concurrency": "8",
    "download.concurrency_per_host": "2",
    "download.timeout_s": "9",
    "download.deadline_s": "99",
    "download.retries": "0",
    "download.contact": "mail@example.org",
    "download.proxy_resolves": "true",
    "ground.device": "cpu",
    "ground.precision": "fp32",
    "ground.batch_size": "3",
    "score.device": "cuda:1",
    "recaption.concurrency": "3",
    "recaption.retries": "2",
}
"""Runtime settings of the stages, each with a value other than its default."""
SECRET = {"download.headers", "download.proxy", "recaption.api_key", "read.takedown"}
"""Runtime settings that are not recorded, all but the last secret (tests/pipeline/stages/download/test_extra.py)."""
NEEDS = {
    "download.client": "download.resize.kernel=area",
    "download.proxy_resolves": "download.proxy=http://proxy:1",
    "read.caption_column": "read.captions=first",
}
"""Settings that need another one."""
CONTENT = {
    "read.url_column": "address",
    "read.caption_column": "words",
    "read.id_column": "number",
    "read.image_column": "picture",
    "read.image_path_column": "path",
    "read.image_roots": "[/data]",
    "read.captions": "join",
    "read.where": "similarity > 0.3",
    "read.format": "pipeline.read.text:Csv",
    "read.encoding": "latin-1",
    "read.delimiter": ";",
    "read.columns": "[url, caption]",
    "read.quotes": "false",
    "read.escape": "\\",
    "read.tar_key": "last_dot",
    "read.image_member": "input.jpg",
    "read.caption_member": "output.txt",
    "read.json_key": "annotations",
    "read.json_layout": "columns",
    "read.levels": "kingdom,phylum",
    "download.client": "img2dataset",
    "download.max_bytes": "1000",
    "download.allowed_private_hosts": "[localhost]",
    "download.min_side_px": "9",
    "download.robots_txt": "true",
    "download.resize.mode": "border",
    "download.resize.size": "300",
    "captions.redcaps": "true",
    "captions.redact": "[email]",
    "parse.model": "en_core_web_md",
    "parse.min_visible": "0.4",
    "parse.extra_abstract": "[idea]",
    "parse.keep": "[city]",
    "parse.style": "grit",
    "parse.languages": "[en]",
    "ground.grounder": "glip_t",
    "ground.vocabulary": "vocab.txt",
    "ground.floor": "0.2",
    "ground.check_expressions": "true",
    "ground.min_expression_iou": "0.4",
    "score.keep_all": "true",
    "score.head": "head.npz",
    "score.min_head_score": "0.5",
    "captions.max_tokens": "20",
    "download.resize.kernel": "area",
    "recaption.captioner": "openai:http://localhost:8000/v1#m",
    "recaption.prompt": "What is this?",
    "recaption.max_tokens": "9",
    "score.min_image_similarity": "0.2",
    "score.min_presence": "0.2",
    "score.min_grounded_share": "0.5",
    "ground.keep_pairs": "true",
    "score.scorer": "some/clip",
    "score.min_side_px": "48",
    "score.size_rule": "side",
    "score.min_score": "0.6",
    "score.min_clip_score": "0.7",
    "write.formats": "[arrow]",
    "write.image_bytes": "true",
    "write.strip_url_queries": "true",
    "write.train_columns": "[license]",
}
"""All other settings of the stages, each with a value other than its default."""


def test_the_lists_above_name_every_setting_of_the_stages() -> None:
    others = ("ray.", "report.", "log.")
    keys = [key for key in list_keys(PipelineConfig) if "." in key.name and not key.name.startswith(others)]
    assert {key.name for key in keys if key.is_runtime} == set(RUNTIME) | SECRET
    assert {key.name for key in keys if not key.is_runtime} == set(CONTENT)


@pytest.mark.parametrize("key", RUNTIME)
def test_a_runtime_setting_keeps_the_hash_and_is_recorded(key: str) -> None:
    arguments = [*PATHS, *filter(None, [NEEDS.get(key)])]
    config, changed = load_config(arguments), load_config([*arguments, f"{key}={RUNTIME[key]}"])
    assert content_hash(changed) == content_hash(config)
    group, name = key.split(".")
    assert runtime_settings(changed)[group][name] == getattr(getattr(changed, group), name)
    assert runtime_settings(changed) != runtime_settings(config)


def test_the_place_of_a_takedown_list_is_in_no_manifest() -> None:
    plain, listed = (load_config([*PATHS, *more]) for more in ([], ["read.takedown=list.txt"]))
    assert content_hash(plain) == content_hash(listed)
    assert runtime_settings(plain) == runtime_settings(listed)


@pytest.mark.parametrize("key", CONTENT)
def test_any_other_setting_of_a_stage_changes_the_hash(key: str) -> None:
    arguments = [*PATHS, *filter(None, [NEEDS.get(key)])]
    config, changed = load_config(arguments), load_config([*arguments, f"{key}={CONTENT[key]}"])
    assert content_hash(changed) != content_hash(config)
    assert runtime_settings(changed) == runtime_settings(config)


@pytest.mark.parametrize("setting", ["ray.retries=0", "ray.model_workers=1", "log.format=json"])
def test_settings_of_ray_and_the_report_keep_the_hash_and_are_not_recorded(setting: str) -> None:
    config, changed = load_config(PATHS), load_config([*PATHS, setting])
    assert content_hash(changed) == content_hash(config)
    assert runtime_settings(changed) == runtime_settings(config)


def test_help_lists_every_key_with_its_comment() -> None:
    text = help_text(["--help", "all"])
    for key, _, comment, _ in list_keys(PipelineConfig):
        assert comment, f"{key} has no comment above it"
        assert comment in text
        assert key in text
    for short in KEYS.short:
        assert f"  {short} (= " in text
    leaves = dataclasses.asdict(PipelineConfig(input="a", output="b"))
    assert {key.split(".")[0] for key, *_ in list_keys(PipelineConfig)} == set(leaves)
