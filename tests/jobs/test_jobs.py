"""Tests of jobs/: YAML files, and the commands of the README files."""

import dataclasses
import re
import shlex
from pathlib import Path

import pytest
import torch

from pipeline.config import PipelineConfig
from pipeline.config import load_config as load_pipeline
from trainer.config import TrainConfig
from trainer.config import load_config as load_training
from trainer.models.registry import MODELS
from trainer.optim.freeze import add_lora, freeze_for_good, is_update
from trainer.training.build import new_model

ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "jobs"
PIPELINE = [JOBS / "demo.yaml", JOBS / "train_demo" / "shards.yaml", *sorted((JOBS / "pipeline").glob("*.yaml"))]
OVERLAYS = {"pairs": JOBS / "pipeline" / "redcaps.yaml"}
"""Jobs that go behind another one, such as this."""
TOWERS = {"vit_s": (), "vit_b": ("vit_b",), "vit_l": ("vit_l",)}
MILLIONS = {"vit_s": 85.2, "vit_b": 149.5, "vit_l": 367.1}
"""Millions of trainable parameters with the papers' text tower."""


def commands(document: Path) -> list[list[str]]:
    """Return the arguments of all pipeline and training commands in a document, starting with the job file."""
    text = document.read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"(?:python pipeline/grit\.py|-m trainer\.train|hypergrit (?:run|train)) (jobs/[^`\n]*)", text)
    return [shlex.split(command) for command in found]


COMMANDS = [*commands(JOBS / "README.md"), *commands(ROOT / "docker" / "README.md")]


def files_of(path: Path) -> list[str]:
    """The job files of a command with this one: an overlay has another one before it."""
    return [str(file) for file in (OVERLAYS.get(path.stem), path) if file]


def test_jobs_folder_has_few_files() -> None:
    """One for each of 14 published data sets, 12 models and 4 sizes of towers, two for HAC, and a few others."""
    assert len([path for path in JOBS.rglob("*") if path.is_file()]) <= 48


@pytest.mark.parametrize("path", PIPELINE, ids=lambda path: path.stem)
def test_pipeline_job_sets_input_and_output(path: Path) -> None:
    config = load_pipeline(files_of(path))
    assert config.input
    assert config.output
    assert config.input != config.output


def test_readme_mentions_every_job() -> None:
    text = (JOBS / "README.md").read_text(encoding="utf-8")
    files = [path.relative_to(JOBS).as_posix() for path in JOBS.rglob("*.yaml")]
    missing = [name for name in files if Path(name).name not in text and f"`{Path(name).stem}`" not in text]
    assert missing == []


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_documented_command_is_accepted(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config: PipelineConfig | TrainConfig
    config = load_training(arguments) if "jobs/train/" in arguments[0] else load_pipeline(arguments)
    assert config.output.startswith("/data/")


def test_grit_job_filters_by_size_only_and_redcaps_job_cleans_captions() -> None:
    score = load_pipeline([str(JOBS / "pipeline" / "grit.yaml")]).score
    assert (score.size_rule, score.min_side_px, score.min_score, score.min_clip_score) == ("released", 32, 0, 0)
    redcaps = load_pipeline([str(JOBS / "pipeline" / "redcaps.yaml")])
    assert redcaps.captions.redcaps
    assert redcaps.read.caption_column == "raw_caption"


@pytest.mark.parametrize("size", TOWERS)
@pytest.mark.parametrize("model", MODELS)
def test_training_job_has_the_model_size_and_schedule_of_the_paper(model: str, size: str) -> None:
    config = load_training([str(JOBS / "train" / f"{name}.yaml") for name in (model, *TOWERS[size])])
    assert config.model_name == model
    with torch.device("meta"):
        built = new_model(config)
    millions = sum(parameter.numel() for parameter in built.parameters() if parameter.requires_grad) / 1e6
    if model == "hyper3":  # the pooling, which only the training uses
        millions -= sum(parameter.numel() for parameter in built.get_submodule("query_pooling").parameters()) / 1e6
    assert millions == pytest.approx(MILLIONS[size], abs=0.5)
    on_grit = model in ("hycoclip", "phyclip", "syntax_meru", "uncha", "argent", "hyper3")
    assert (config.batch_size, config.optim.steps) == ((768, 500_000) if on_grit else (2048, 120_000))


@pytest.mark.parametrize(
    ("jobs", "image", "text", "norm"),
    [(["vit_b", "hac"], "visual.blocks", "textual.resblocks", "visual.norm"),
     (["hac_open_clip"], "visual.transformer.resblocks", "textual.transformer.resblocks", "visual.ln_post")],
)  # fmt: skip
def test_hac_trains_updates_of_attention_projections_last_norms_and_scalars_alone(
    jobs: list[str], image: str, text: str, norm: str
) -> None:
    without = ["model.image.weights=null", "model.text.weights=null"]
    config = load_training([*(str(JOBS / "train" / f"{job}.yaml") for job in jobs), *without])
    with torch.device("meta"):
        built = new_model(dataclasses.replace(config, init=None, init_skip=()))
        add_lora(built, config.lora)
    freeze_for_good(built, config.optim)
    trained = {name for name, parameter in built.named_parameters() if parameter.requires_grad}
    updates = {name for name in trained if is_update(name)}
    assert trained - updates == {
        *("visual_proj.weight", "textual_proj.weight", f"{norm}.weight", f"{norm}.bias"),
        *("textual.ln_final.weight", "textual.ln_final.bias", "logit_scale", "curv", "visual_alpha", "textual_alpha"),
    }
    assert {name.partition(".attn")[0] for name in updates} == {
        *(f"{image}.{block}" for block in range(8, 12)),
        *(f"{text}.{block}" for block in range(4, 12)),
    }
    assert len(updates) == 2 * 2 * 12  # two matrices each of the fused projection and the output
