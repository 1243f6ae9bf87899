"""Jobs: every YAML loads, every command of jobs/README.md is accepted, the Kubernetes manifest submits one of them."""

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
PIPELINE = [JOBS / "demo.yaml", JOBS / "train_demo" / "shards.yaml", *sorted((JOBS / "pipeline").glob("*.yaml"))]
TOWERS = {"vit_s": (), "vit_b": ("vit_b",), "vit_l": ("vit_l",)}
MILLIONS = {"vit_s": 85.2, "vit_b": 149.5, "vit_l": 367.1}
"""Trainable parameters with the papers' text tower."""


def commands() -> list[list[str]]:
    """The arguments of every command in jobs/README.md, from the first job file on."""
    text = (JOBS / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"(?:python pipeline/grit\.py|-m trainer\.train) (jobs/[^`\n]*)", text)
    return [shlex.split(command) for command in found]


def test_there_are_at_most_twenty_files() -> None:
    assert len([path for path in JOBS.rglob("*") if path.is_file()]) <= 20


@pytest.mark.parametrize("path", PIPELINE, ids=lambda path: path.stem)
def test_a_pipeline_job_names_its_input_and_output(path: Path) -> None:
    config = load_pipeline([str(path)])
    assert config.input
    assert config.output
    assert config.input != config.output


@pytest.mark.parametrize("path", PIPELINE, ids=lambda path: path.stem)
def test_a_misspelt_key_is_an_error_that_names_it(path: Path, tmp_path: Path) -> None:
    misspelt = tmp_path / path.name
    misspelt.write_text(path.read_text(encoding="utf-8") + "\nrows_per_shart: 3\n", encoding="utf-8")
    with pytest.raises(UserError, match="rows_per_shart"):
        load_pipeline([str(misspelt)])


def test_every_job_has_a_row_in_the_readme() -> None:
    text = (JOBS / "README.md").read_text(encoding="utf-8")
    files = [path.relative_to(JOBS).as_posix() for path in JOBS.rglob("*.yaml")]
    missing = [name for name in files if Path(name).name not in text and name != "demo.yaml"]
    assert missing == []


@pytest.mark.parametrize("arguments", commands(), ids=lambda arguments: arguments[0])
def test_a_command_of_the_readme_is_accepted(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config: PipelineConfig | TrainConfig
    config = load_training(arguments) if "jobs/train/" in arguments[0] else load_pipeline(arguments)
    assert config.output.startswith("/data/")


def test_grit_is_filtered_at_its_own_score_and_redcaps_cleans_its_captions() -> None:
    assert load_pipeline([str(JOBS / "pipeline" / "grit.yaml")]).score.min_score == 0.65
    redcaps = load_pipeline([str(JOBS / "pipeline" / "redcaps.yaml")])
    assert redcaps.captions.redcaps
    assert redcaps.read.caption_column == "raw_caption"


@pytest.mark.parametrize("size", TOWERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_has_the_sizes_and_the_schedule_of_its_paper(model: str, size: str) -> None:
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


def test_the_kuberay_manifest_submits_a_command_that_loads(ray_job: dict[str, Any]) -> None:
    assert (ray_job["apiVersion"], ray_job["kind"]) == ("ray.io/v1", "RayJob")
    python, script, job, *overrides = shlex.split(ray_job["spec"]["entrypoint"])
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    home = next(line.split()[1] for line in dockerfile.splitlines() if line.startswith("WORKDIR"))
    assert python == "python"
    assert (ROOT / Path(script).relative_to(home)).is_file()
    assert load_pipeline([str(ROOT / Path(job).relative_to(home)), *overrides]).output.startswith("/data/")


def test_the_kuberay_cluster_runs_the_locked_ray_and_has_a_fixed_size(ray_job: dict[str, Any]) -> None:
    cluster = ray_job["spec"]["rayClusterSpec"]
    assert f"\nray=={cluster['rayVersion']} " in (ROOT / "requirements.lock").read_text(encoding="utf-8")
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    containers = [container for group in groups for container in group["template"]["spec"]["containers"]]
    assert {container["image"] for container in containers} == {"hypergrit:cpu", "hypergrit:gpu"}
    assert all({"name": "data", "mountPath": "/data"} in container["volumeMounts"] for container in containers)
