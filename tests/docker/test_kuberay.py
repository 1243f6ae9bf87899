"""Tests of docker/kuberay.yaml: its fields exist in KubeRay's v1 resources, and its command is valid."""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config import load_config

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
OPEN = {"rayStartParams", "limits", "requests", "labels"}
"""Fields whose values are maps from names of the user to strings."""
LISTED = json.loads(Path(__file__).with_name("kuberay_fields.json").read_text(encoding="utf-8"))
FIELDS = {path: set(names.split()) for path, names in LISTED.items()}
"""Path of an object in the `ray.io/v1` resources of KubeRay 1.5.1 and 1.7.0 -> the names of its fields in both."""


def unknown(value: Any, path: str, fields: Mapping[str, set[str]]) -> list[str]:
    """List the fields of a manifest that `fields` does not have; the items of a list have the path of the list.

    Paths in a pod template begin with `template`, because head and workers have the same.
    """
    if isinstance(value, list):
        return [name for item in value for name in unknown(item, path, fields)]
    if not isinstance(value, dict) or path.rpartition(".")[2] in OPEN:
        return []
    found = [f"{path}.{name}" for name in value if name not in fields.get(path, set())]
    paths = {key: key if key == "template" else f"{path}.{key}" for key in value}
    return found + [name for key, item in value.items() for name in unknown(item, paths[key], fields)]


@pytest.fixture(scope="module")
def ray_job() -> dict[str, Any]:
    with (ROOT / "docker" / "kuberay.yaml").open(encoding="utf-8") as file:
        return dict(yaml.safe_load(file))


def test_every_field_is_one_of_the_v1_resources(ray_job: dict[str, Any]) -> None:
    assert (ray_job["apiVersion"], ray_job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(ray_job) == {"apiVersion", "kind", "metadata", "spec"}
    assert unknown(ray_job["spec"], "spec", FIELDS) == []


def test_misplaced_and_misspelt_fields_are_found() -> None:
    group = {"template": {"spec": {"containers": [{"image": "a", "resources": {"limit": 1}}]}}}
    spec = {"backofLimit": 3, "rayClusterSpec": {"minReplicas": 1, "workerGroupSpecs": [group]}}
    assert unknown(spec, "spec", FIELDS) == [
        "spec.backofLimit",
        "spec.rayClusterSpec.minReplicas",
        "template.spec.containers.resources.limit",
    ]


def test_manifest_submits_a_valid_command(ray_job: dict[str, Any]) -> None:
    python, script, job, *overrides = shlex.split(ray_job["spec"]["entrypoint"])
    home = next(line.split()[1] for line in DOCKERFILE.splitlines() if line.startswith("WORKDIR"))
    assert python == "python"
    assert (ROOT / Path(script).relative_to(home)).is_file()
    assert load_config([str(ROOT / Path(job).relative_to(home)), *overrides]).output.startswith("/data/")


def test_cluster_uses_the_locked_ray_version_one_image_by_digest_and_the_user_of_the_image(
    ray_job: dict[str, Any],
) -> None:
    cluster = ray_job["spec"]["rayClusterSpec"]
    assert f"\nray=={cluster['rayVersion']} " in (ROOT / "requirements.lock").read_text(encoding="utf-8")
    for group in cluster["workerGroupSpecs"]:
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    pods = [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    assert {pod["securityContext"]["fsGroup"] for pod in pods} == {10001}
    containers = [container for pod in pods for container in pod["containers"]]
    (image,) = {container["image"] for container in containers}
    assert re.fullmatch(r"[\w./-]+@sha256:[0-9a-f]{64}", image)
    assert all({"name": "data", "mountPath": "/data"} in container["volumeMounts"] for container in containers)


def test_groups_with_gpus_tolerate_their_taint_and_the_others_see_no_gpu(ray_job: dict[str, Any]) -> None:
    cluster = ray_job["spec"]["rayClusterSpec"]
    assert ray_job["spec"]["backoffLimit"] > 0
    seen = set()
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        has_gpu = "nvidia.com/gpu" in container["resources"]["limits"]
        tolerated = {toleration["key"] for toleration in pod.get("tolerations", ())}
        hidden = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container.get("env", ())
        assert (has_gpu, "nvidia.com/gpu" in tolerated, hidden) in {(True, True, False), (False, False, True)}
        seen.add(has_gpu)
    assert seen == {True, False}
