"""The commands of the documents: verbs and keys of `hypergrit`, modules of `python -m`, files of the hub."""

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from hypergrit.__main__ import VERBS, main
from tests.pipeline.hub import hub

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    {*ROOT.glob("*.md"), *(path for name in ("docs", "docker", "jobs") for path in (ROOT / name).glob("*.md"))}
)
PAGES.remove(ROOT / "CHANGELOG.md")  # which also names what went
COMMAND = re.compile(r"(?:^ *|`|&& )(?:[A-Z_]+=\S+ )?hypergrit ([^`\n]*)", re.MULTILINE)
MODULE = re.compile(r"python -m ([\w.]+)")
JOB = re.compile(r"\bjobs/[\w/]+\.(?:yaml|sh)\b")
DOWNLOAD = re.compile(r"^ +(hf download .*)$", re.MULTILINE)
OTHERS = {"http.server", "open_clip_train.main", "spacy"}
"""Modules of Python, and of packages that the project does not need."""
KEY = re.compile(r"[a-z][\w.]*(?==)")
ELSEWHERE = {("run", "reasons"), ("run", "few_colours.min"), ("train", "model.centre_weight"), ("export", "trust")}
"""Keys in the help of `run retry=true` and of the export of models, and of the plug-ins in docs/extending.md."""


def commands(page: Path) -> set[tuple[str, tuple[str, ...]]]:
    """Return the verbs of the commands of a page, each with the keys that it sets."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    found = (re.split(r"\s#|\s{3,}|&&|[|;]", line)[0] for line in COMMAND.findall(text))
    words = (shlex.split(line) for line in found if line[:1].islower() or not line)
    return {(word[0], tuple(key[0] for item in word[1:] if (key := KEY.match(item)))) for word in words if word}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_have_known_verbs_and_keys(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = commands(page)
    wrong = {verb for verb, _ in found} - VERBS.keys()
    asked = {(verb, key) for verb, keys in found if verb in VERBS for key in keys} - ELSEWHERE
    wrong |= {f"{verb} {key}" for verb, key in sorted(asked) if main([verb, "--help", key])}
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_modules_and_jobs_of_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not [name for name in set(MODULE.findall(text)) - OTHERS if find_spec(name) is None]
    assert not [path for path in set(JOB.findall(text)) if not (ROOT / path).is_file()]


def test_files_of_the_hub_are_downloaded_as_the_pages_say(tmp_path: Path) -> None:
    found = [shlex.split(line) for page in PAGES for line in DOWNLOAD.findall(page.read_text(encoding="utf-8"))]
    assert len(found) >= 2
    for i, (_, _, name, *rest) in enumerate(found):
        files = [word for word in rest[: rest.index("--local-dir")] if "." in word] or ["a/part.parquet"]
        for file in files:
            path = tmp_path / "hub" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name} {file}", encoding="utf-8")
        target = tmp_path / f"target{i}"
        words = [str(Path(sys.executable).with_name("hf")), "download", name, *rest]
        words[words.index("--local-dir") + 1] = str(target)
        with hub(tmp_path / "hub") as url:
            environment = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "home")}
            subprocess.run(words, env=environment, check=True, capture_output=True)
        assert {file: (target / file).read_text(encoding="utf-8") for file in files} == {
            file: f"{name} {file}" for file in files
        }
