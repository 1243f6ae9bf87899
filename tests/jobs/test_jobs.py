"""Every job file loads, does what its header says, and is held to the known keys."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.errors import UserError
from pipeline.config import PipelineConfig, load_config

ROOT = Path(__file__).resolve().parents[2]
# Those of the pipeline: a training job names its model.
JOBS = sorted(
    path
    for path in (ROOT / "jobs").glob("*.yaml")
    if path.name != "kuberay.yaml" and "\nmodel_name:" not in path.read_text(encoding="utf-8")
)


def load(path: Path, *overrides: str) -> PipelineConfig:
    return load_config(str(path), overrides)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_a_job_loads_and_names_its_input_and_output(path: Path) -> None:
    config = load(path)
    assert config.input
    assert config.output
    assert config.input != config.output


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_a_misspelt_key_stops_a_job_and_is_named(path: Path, tmp_path: Path) -> None:
    misspelt = tmp_path / path.name
    misspelt.write_text(path.read_text(encoding="utf-8") + "\nrows_per_shart: 3\n", encoding="utf-8")
    with pytest.raises(UserError, match="rows_per_shart"):
        load(misspelt)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_a_header_gives_the_command_and_what_to_expect(path: Path) -> None:
    header = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert any(f"jobs/{path.name}" in line or "make demo" in line for line in header)
    assert any("Expected:" in line for line in header)


def test_the_commands_of_the_headers_are_accepted() -> None:
    for path in JOBS:
        for line in path.read_text(encoding="utf-8").splitlines():
            words = line.lstrip("# ").split()
            if words[:2] == ["python", "pipeline/grit.py"]:
                assert load(ROOT / words[2], *words[3:]).output, line


def test_grit_is_filtered_at_its_own_score_and_redcaps_cleans_its_captions() -> None:
    assert load(ROOT / "jobs" / "grit.yaml").score.min_score == 0.65
    assert load(ROOT / "jobs" / "redcaps.yaml").captions.redcaps
    assert load(ROOT / "jobs" / "redcaps.yaml").read.caption_column == "raw_caption"


@pytest.fixture(scope="module")
def ray_job() -> dict[str, Any]:
    with (ROOT / "jobs" / "kuberay.yaml").open(encoding="utf-8") as file:
        return dict(yaml.safe_load(file))


def test_the_kuberay_manifest_submits_a_command_that_loads(ray_job: dict[str, Any]) -> None:
    assert (ray_job["apiVersion"], ray_job["kind"]) == ("ray.io/v1", "RayJob")
    python, script, job, *overrides = shlex.split(ray_job["spec"]["entrypoint"])
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    home = next(line.split()[1] for line in dockerfile.splitlines() if line.startswith("WORKDIR"))
    assert python == "python"
    assert (ROOT / Path(script).relative_to(home)).is_file()
    assert load(ROOT / Path(job).relative_to(home), *overrides).output.startswith("/data/")


def test_the_kuberay_cluster_runs_the_locked_ray_and_has_a_fixed_size(ray_job: dict[str, Any]) -> None:
    cluster = ray_job["spec"]["rayClusterSpec"]
    assert f"\nray=={cluster['rayVersion']} " in (ROOT / "requirements.lock").read_text(encoding="utf-8")
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    containers = [container for group in groups for container in group["template"]["spec"]["containers"]]
    assert {container["image"] for container in containers} == {"hypergrit:cpu", "hypergrit:gpu"}
    assert all({"name": "data", "mountPath": "/data"} in container["volumeMounts"] for container in containers)
