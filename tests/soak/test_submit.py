"""Jobs submitted in the ways of docs/cluster.md: from other folders, with a runtime environment, and beside another job
that has all CPUs."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from demo.local import LocalRay, local_ray, ray_command
from tests.pipeline.run.on_ray.jobs import make_tar

ROOT = Path(__file__).resolve().parents[2]
JOB = ["rows_per_shard=4", "formats=[arrow]", "grounder=miniature", "scorer=miniature"]
N_ROWS, N_CPUS, OTHER_JOB_S = 8, 2, 60

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    with local_ray(N_CPUS, tmp_path_factory.mktemp("log") / "ray.log") as running:
        yield running


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    return make_tar(tmp_path / "input", N_ROWS)


def submit(
    ray: LocalRay, cwd: Path, options: Sequence[str], entrypoint: Sequence[str]
) -> "subprocess.CompletedProcess[str]":
    """Run `ray job submit OPTIONS -- ENTRYPOINT` in the folder `cwd`."""
    command = [*ray_command(), "job", "submit", "--address", ray.address, "--log-color", "false", *options, "--"]
    env = {**ray.env, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    return subprocess.run([*command, *entrypoint], env=env, cwd=cwd, capture_output=True, text=True, check=False)


def finished(output: Path) -> bool:
    """True if the output accounts for all rows, which are all dropped: their images are equal, and show no dog."""
    counts = json.loads((output / "stats.json").read_text(encoding="utf-8"))
    return bool(counts["rows"]["read"] == N_ROWS)


def has_run(result: "subprocess.CompletedProcess[str]") -> bool:
    """True for a job that ended as it should. No row is kept (exit code 4), which `ray job submit` reports as 1."""
    return "Traceback" not in result.stdout + result.stderr and "exit code 4" in result.stdout + result.stderr


def check_job(ray: LocalRay, tar: Path, tmp_path: Path, options: Sequence[str], program: str) -> None:
    """Submit a job from another folder; it must account for all rows."""
    paths = [f"input={tar}", f"output={tmp_path / 'out'}"]
    result = submit(ray, tmp_path, options, [sys.executable, program, *JOB, *paths])
    assert has_run(result), result.stdout + result.stderr
    assert finished(tmp_path / "out")


def test_working_directory_is_uploaded_from_another_folder(ray: LocalRay, tar: Path, tmp_path: Path) -> None:
    check_job(ray, tar, tmp_path, ["--working-dir", str(ROOT)], "pipeline/grit.py")


def test_installed_checkout_needs_no_working_directory(ray: LocalRay, tar: Path, tmp_path: Path) -> None:
    check_job(ray, tar, tmp_path, [], str(ROOT / "pipeline" / "grit.py"))


def test_runtime_environment_reaches_the_workers(ray: LocalRay, tar: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    module = tmp_path / "extra" / "sitecustomize.py"
    module.parent.mkdir()
    module.write_text(
        "import os, sys\n"
        "if 'HYPERGRIT_SEEN' in os.environ and 'default_worker.py' in ' '.join(sys.orig_argv):\n"
        "    open(os.environ['HYPERGRIT_SEEN'], 'a').write('worker\\n')\n",
        encoding="utf-8",
    )
    variables = {"HYPERGRIT_SEEN": str(seen), "PYTHONPATH": str(module.parent)}
    options = ["--working-dir", str(ROOT), "--runtime-env-json", json.dumps({"env_vars": variables})]
    check_job(ray, tar, tmp_path, options, "pipeline/grit.py")
    assert "worker" in seen.read_text(encoding="utf-8")


def test_relative_output_of_a_submitted_job_is_refused(ray: LocalRay, tar: Path, tmp_path: Path) -> None:
    options = ["--working-dir", str(ROOT)]
    result = submit(ray, tmp_path, options, [sys.executable, "pipeline/grit.py", *JOB, f"input={tar}", "output=out"])
    assert result.returncode != 0
    assert "output=out is relative" in result.stdout + result.stderr


def test_job_waits_for_another_one_that_has_all_cpus(ray: LocalRay, tar: Path, tmp_path: Path) -> None:
    program = tmp_path / "other.py"
    program.write_text(
        "import sys, time, ray\n"
        "ray.init()\n"
        f"hold = ray.remote(num_cpus={N_CPUS})(lambda path: (open(path, 'w').close(), time.sleep({OTHER_JOB_S})))\n"
        f"ray.get(hold.remote({str(tmp_path / 'held')!r}))\n",
        encoding="utf-8",
    )
    command = [*ray_command(), "job", "submit", "--no-wait", "--address", ray.address, "--", sys.executable]
    env = {**ray.env, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    subprocess.run([*command, str(program)], env=env, check=True, capture_output=True)
    while not (tmp_path / "held").exists():
        time.sleep(0.5)
    start = time.monotonic()
    check_job(ray, tar, tmp_path, ["--working-dir", str(ROOT)], "pipeline/grit.py")
    assert time.monotonic() - start > OTHER_JOB_S / 2
