"""Tests of jobs/ and docker/: YAML files, the commands of the README files, the image and the Kubernetes manifest."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from common.errors import UserError
from pipeline.config import PipelineConfig
from pipeline.config import load_config as load_pipeline
from trainer.build import new_model
from trainer.config import TrainConfig
from trainer.config import load_config as load_training
from trainer.models.registry import MODELS

ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "jobs"
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
PIPELINE = [JOBS / "demo.yaml", JOBS / "train_demo" / "shards.yaml", *sorted((JOBS / "pipeline").glob("*.yaml"))]
TOWERS = {"vit_s": (), "vit_b": ("vit_b",), "vit_l": ("vit_l",)}
MILLIONS = {"vit_s": 85.2, "vit_b": 149.5, "vit_l": 367.1}
"""Millions of trainable parameters with the papers' text tower."""


def commands(document: Path) -> list[list[str]]:
    """Return the arguments of all pipeline and training commands in a document, starting with the job file."""
    text = document.read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"(?:python pipeline/grit\.py|-m trainer\.train) (jobs/[^`\n]*)", text)
    return [shlex.split(command) for command in found]


COMMANDS = [*commands(JOBS / "README.md"), *commands(ROOT / "docker" / "README.md")]


def test_jobs_folder_has_few_files() -> None:
    assert len([path for path in JOBS.rglob("*") if path.is_file()]) <= 24


@pytest.mark.parametrize("path", PIPELINE, ids=lambda path: path.stem)
def test_pipeline_job_sets_input_and_output(path: Path) -> None:
    config = load_pipeline([str(path)])
    assert config.input
    assert config.output
    assert config.input != config.output


@pytest.mark.parametrize("path", PIPELINE, ids=lambda path: path.stem)
def test_misspelt_key_is_an_error_that_names_the_key(path: Path, tmp_path: Path) -> None:
    misspelt = tmp_path / path.name
    misspelt.write_text(path.read_text(encoding="utf-8") + "\nrows_per_shart: 3\n", encoding="utf-8")
    with pytest.raises(UserError, match="rows_per_shart"):
        load_pipeline([str(misspelt)])


def test_readme_mentions_every_job() -> None:
    text = (JOBS / "README.md").read_text(encoding="utf-8")
    files = [path.relative_to(JOBS).as_posix() for path in JOBS.rglob("*.yaml")]
    missing = [name for name in files if Path(name).name not in text and name != "demo.yaml"]
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
    assert millions == pytest.approx(MILLIONS[size], abs=0.5)
    on_grit = model in ("hycoclip", "phyclip", "syntax_meru")
    assert (config.batch_size, config.optim.steps) == ((768, 500_000) if on_grit else (2048, 120_000))


@pytest.fixture(scope="module")
def ray_job() -> dict[str, Any]:
    with (ROOT / "docker" / "kuberay.yaml").open(encoding="utf-8") as file:
        return dict(yaml.safe_load(file))


def test_kuberay_manifest_submits_a_valid_command(ray_job: dict[str, Any]) -> None:
    assert (ray_job["apiVersion"], ray_job["kind"]) == ("ray.io/v1", "RayJob")
    python, script, job, *overrides = shlex.split(ray_job["spec"]["entrypoint"])
    home = next(line.split()[1] for line in DOCKERFILE.splitlines() if line.startswith("WORKDIR"))
    assert python == "python"
    assert (ROOT / Path(script).relative_to(home)).is_file()
    assert load_pipeline([str(ROOT / Path(job).relative_to(home)), *overrides]).output.startswith("/data/")


def test_kuberay_cluster_uses_the_locked_ray_version_and_one_image(ray_job: dict[str, Any]) -> None:
    cluster = ray_job["spec"]["rayClusterSpec"]
    assert f"\nray=={cluster['rayVersion']} " in (ROOT / "requirements.lock").read_text(encoding="utf-8")
    for group in cluster["workerGroupSpecs"]:
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    containers = [container for group in groups for container in group["template"]["spec"]["containers"]]
    assert {container["image"] for container in containers} == {"hypergrit:latest"}
    assert all({"name": "data", "mountPath": "/data"} in container["volumeMounts"] for container in containers)


def test_image_has_a_compiler_and_declares_its_gpu_requirements() -> None:
    words = set(DOCKERFILE.split())
    assert {"gcc", "g++", "python3-dev"} <= words
    assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"} <= words
    assert re.search(r'NVIDIA_REQUIRE_CUDA="cuda>=13\.\d"', DOCKERFILE)
    assert "\nnvidia-cuda-runtime==13." in (ROOT / "requirements.lock").read_text(encoding="utf-8")
