"""The configuration of a training run: precedence, errors, and --help."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hypergrit_common.config_help import list_keys
from hypergrit_common.errors import UserError
from hypergrit_common.removed import LAST_COMMIT
from tests.removed import INVENTED, YAML, invent
from tests.trainer.small_run import small_config
from trainer.config import KEYS, TrainConfig, as_dict, differences, help_text, load_config
from trainer.models.registry import MODELS, parse_config
from trainer.train import main

ROOT = Path(__file__).parents[2]
PATHS = ("output=out/run", "shards=in")


@pytest.mark.parametrize("name", MODELS)
def test_help_explains_every_key_of_every_model(name: str) -> None:
    keys = list_keys(TrainConfig, kinds={"model": MODELS[name].config})
    assert [key.name for key in keys if not key.comment] == []
    assert "model.image.name" in help_text("", [f"model_name={name}"])


def test_a_model_accepts_its_settings_and_no_others() -> None:
    assert load_config([*PATHS, "model_name=phyclip", "model.factor_dim=16"]).model_name == "phyclip"
    with pytest.raises(UserError, match=r"model\.factor_dim"):
        load_config([*PATHS, "model_name=meru", "model.factor_dim=16"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("modell_name=meru", "'model_name'"),
        ("optim.learning_rate=1", "optim.learning_rate"),
        ("model_name=mero", "clip, meru, hycoclip"),
        ("model=meru", "model_name=meru"),
        ("precision=fp8", "precision"),
        ("batch_size=0", "batch_size is 0"),
        ("model_name=phyclip model.factor_dim=7", "model.embed_dim is 512; give a multiple of factor_dim, 7"),
        ("precision=fp16 parallel.strategy=fsdp", "use precision=bf16"),
        (
            "model_name=syntax_meru model.relation_weights.nsbj=2",
            "model.relation_weights: 'nsbj' is not a dependency label",
        ),
        ("model_name=syntax_meru model.word_states=block model.word_block=12", "model.word_block is 12; give 0 to 11"),
        ("device=tpu", "device is 'tpu'"),
        ("lr=-1", "optim.lr is -1"),
        ("model.image.size_px=0", "model.image.size_px is 0"),
        ("model.text.context_length=0", "model.text.context_length is 0"),
        ("model.embed_dim=0", "model.embed_dim is 0"),
        ("model.temperature_init=0", "model.temperature_init is 0"),
        ("model.loss_chunk=0", "model.loss_chunk is 0"),
        ("model.pixel_std=[1,1,0]", "model.pixel_std is [1.0, 1.0, 0.0]"),
        ("model.curv_init=0", "model.curv_init is 0"),
        ("model_name=poinclip model.curv_max_ratio=0", "model.curv_max_ratio is 0"),
        ("model_name=phyclip model.factor_dim=0", "model.factor_dim is 0"),
        ("optim.warmup_steps=-1", "optim.warmup_steps is -1"),
        ("optim.beta2=1", "optim.beta2 is 1"),
        ("seed=-1", "seed is -1"),
        ("data.seed=-1", "data.seed is -1"),
        ("micro_batch_size=0", "micro_batch_size is 0"),
        ("lr=nan", "optim.lr is nan"),
        ("model_name=[clip]", "unknown model_name"),
        ("model.pixel_mean={red:1}", "model.pixel_mean must be a list, not a mapping"),
        ("evaluation.image_folders=/data/cars", "evaluation.image_folders must be a list; write [/data/cars] for one"),
        ("model.image.kwargs=[1]", "model.image.kwargs must be a mapping {name: value}, not a list"),
        ("model.pixel_mean=[.nan,0,0]", "model.pixel_mean is [nan, 0.0, 0.0]"),
        ("model.pixel_std=[1,1,.nan]", "model.pixel_std is [1.0, 1.0, nan]"),
        ("model.image.name=vit_smal", "model.image.name is 'vit_smal'; give one of vit_small"),
        ("model.text.name=bert", "model.text.name is 'bert'; give open_clip/NAME"),
        ("model.text.heads=7", "model.text.width is 512; give a multiple of heads, 7"),
        ("model.eps=1", "model.eps is 1"),
        ("model.entail_weight=nan", "model.entail_weight is nan"),
        ("model.eta_intra=-1", "model.eta_intra is -1"),
        ("model_name=syntax_meru model.syntax_weight=inf", "model.syntax_weight is inf"),
        (
            "model_name=syntax_meru model.relation_weights.nsubj=.nan",
            "model.relation_weights.nsubj is nan; give 0 or more",
        ),
        ("parallel.timeout_s=1e30", "parallel.timeout_s is 1e+30"),
        ("ray.cpus_per_worker=-1", "ray.cpus_per_worker is -1"),
        ("lr=inf", "optim.lr is inf"),
        ("model.temperature_init=nan", "model.temperature_init is nan"),
        ("parallel.timeout_s=-1", "parallel.timeout_s is -1"),
        ("ray.workers=-2", "ray.workers is -2"),
        ("save.keep=0", "save.keep is 0; give 1 or more"),
        ("steps=0", "optim.steps is 0"),
        ("steps=4000", "optim.warmup_steps is 4000 and steps is 4000, so the learning rate never reaches lr"),
        (
            "steps=10 optim.warmup_steps=5 optim.schedule=wsd optim.decay_steps=6",
            "optim.decay_steps is 6, more than the 5 steps after the warm-up",
        ),
        ("optim.final_lr_ratio=2", "optim.final_lr_ratio is 2"),
        ("optim.max_gradient_norm=0", "optim.max_gradient_norm is 0"),
        ("model.image.patch_dropout=1", "model.image.patch_dropout is 1"),
        ("data.weights=[1,2]", "data.weights are 2 numbers for the 1 sets in shards"),
        ("data.weights=[0]", "data.weights is [0.0]; give numbers above 0"),
        ("data.augment.flip=1.5", "data.augment.flip is 1.5"),
        ("data.augment.hue=0.6", "data.augment.hue is 0.6"),
        ("init_skip=[curv]", "init_skip is set without init"),
        ("model.contrast_terms.boxes=0", "model.contrast_terms: 'boxes' is not a term of the loss; give one of image"),
        ("model.entail_terms.cross_text=-1", "model.entail_terms.cross_text is -1"),
        ("model_name=phyclip model.logits=inner", "model.logits is inner, but this model compares points by distance"),
        ("model_name=poinclip model.logits=inner", "model.logits is inner, but this model compares points by distance"),
        ("data.crop_scale=[0.5,2]", "data.crop_scale is 0.5, 2.0"),
    ],
)
def test_a_wrong_key_or_value_is_an_error_with_the_fix(override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config([*PATHS, *override.split()])
    assert message in str(caught.value)


def test_a_missing_output_or_shards_is_an_error_that_names_it() -> None:
    with pytest.raises(UserError, match="output is not set"):
        load_config(["shards=in"])
    with pytest.raises(UserError, match=r"data\.shards is not set"):
        load_config(["output=out"])


def test_only_runtime_settings_may_differ_from_a_checkpoint(tmp_path: Path) -> None:
    first = as_dict(small_config(tmp_path / "a"))
    runtime_only = small_config(
        tmp_path / "b", "precision=bf16", "micro_batch_size=2", "shards=elsewhere", "log.every=3"
    )
    assert not differences(first, replace(runtime_only, tokenizer=first["tokenizer"]))
    fixed = small_config(tmp_path / "a", "data.crop_scale=[0.4,1]", "steps=13")
    assert differences(first, fixed) == ["data.crop_scale was [0.5, 1.0], is [0.4, 1.0]", "optim.steps was 12, is 13"]


def test_a_checkpoint_with_removed_settings_and_without_new_ones_fits_if_these_have_their_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path / "a")
    invent(monkeypatch, KEYS)
    saved = {**as_dict(config), "colour": "red", "garden": {"fence": [1, 2]}}
    saved["model"]["colour"] = 0.5
    del saved["seed"], saved["model"]["curv_init"]
    assert differences(saved, config) == []
    assert differences(saved | {"colour": "blue"}, config) == [
        f"colour was 'blue', is removed after commit {LAST_COMMIT}"
    ]
    assert differences(saved, replace(config, seed=1)) == ["seed was 0, is 1"]


def test_a_saved_configuration_with_removed_settings_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invent(monkeypatch, KEYS)
    file = tmp_path / "config.yaml"
    file.write_text(f"output: out/run\nshards: in\n{YAML}")
    assert load_config([str(file), *PATHS]) == load_config(PATHS)


def test_a_saved_model_with_removed_settings_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.models.registry.REMOVED_FROM_TRAIN", INVENTED)
    config = MODELS["meru"].config(embed_dim=64)
    assert parse_config("meru", {**asdict(config), "colour": 0.5}, tmp_path) == config
    with pytest.raises(ValueError, match=rf"model\.colour was removed .*{LAST_COMMIT}"):
        parse_config("meru", {**asdict(config), "colour": 1}, tmp_path)


def test_help_lists_the_settings_of_a_model_and_an_error_exits_with_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["--help", "model_name=phyclip"]) == 0
    assert "model.factor_dim = 8" in capsys.readouterr().out
    assert main([str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml' does not exist" in capsys.readouterr().err


def test_only_the_demo_deviates_from_the_authors_rule_for_equal_phrases_and_by_name() -> None:
    for path in (ROOT / "jobs" / "train").glob("*.yaml"):
        if path.stem in ("hyper3", "laptop"):  # whose authors clip the gradient, and which is no paper's
            continue
        assert not {"equal_phrase_weight", "max_gradient_norm"} & set(path.read_text().replace(":", " ").split()), path
    files = [f"{ROOT}/jobs/train_demo/{name}.yaml" for name in ("base", "few_steps", "few_steps_boxes")]
    plain, smooth = (load_config([*found, "model_name=hycoclip"]) for found in (files[:1], files))
    assert (plain.model.equal_phrase_weight, plain.optim.max_gradient_norm) == (1.0, None)
    assert (smooth.model.equal_phrase_weight, smooth.optim.max_gradient_norm) == (0.0, 1.0)


def test_a_setting_that_only_other_models_have_names_them() -> None:
    arguments = ("model_name=meru", "model.box_candidates=paper", "shards=in", "output=out")
    with pytest.raises(UserError, match=r"model_name=meru has no key model\.box_candidates, which hycoclip.* have"):
        load_config(arguments)
    with pytest.raises(UserError, match=r"there is no key model\.garden"):
        load_config((*arguments[:1], "model.garden=1", *arguments[2:]))
