"""The commands of the how-to pages run in order, with tars of drawn scenes and the miniature models."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from hypergrit.__main__ import main
from tests.docs.test_commands import COMMAND
from trainer import Model

ROOT = Path(__file__).resolve().parents[2]
LOCAL = {"run", "rewrite", "takedown"}
"""Verbs that run on Ray by default."""
REPLACED = {
    "jobs/train/small_machine.yaml": "jobs/train_demo/base.yaml",
    "grounder=iSEE-Laboratory/llmdet_tiny": "grounder=miniature",
    "scorer=openai/clip-vit-base-patch32": "scorer=miniature",
}
QUICK = ["steps=2", "batch_size=4", "optim.warmup_steps=1", 'evaluation.shards=""', "evaluation.image_folders=[]"]
PAGES = {"pairs_only": [], "ground_laion_tars": ["models"], "dedupe_and_takedown": [], "resume_and_retry": []}
"""Page -> the verbs that need a network."""


def commands(page: str) -> list[list[str]]:
    """Return the arguments of the commands in the code blocks of a page."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").replace("\\\n", " ")
    return [shlex.split(found[1]) for line in text.splitlines() if (found := COMMAND.match(line)) and line[0] == " "]


def adapted(word: str, tars: Path, folder: Path) -> str:
    """Return an argument with the paths and models of this test."""
    word = REPLACED.get(word, word)
    word = f"input={tars}/*.tar" if word.startswith("input=/data/") else word
    word = word.replace("=takedown.txt", f"={folder}/takedown.txt")
    return word.replace("out/", f"{folder}/") if word.partition("=")[2][:4] == "out/" or word[:4] == "out/" else word


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page: str, tars: Path, finished: Path, tmp_path: Path) -> None:
    assert len(commands(page)) >= 3
    if page == "dedupe_and_takedown":
        shutil.copytree(finished, tmp_path / "mine")
        (tmp_path / "takedown.txt").write_text("example.org\n", encoding="utf-8")
    for verb, *words in commands(page):
        if verb in PAGES[page]:
            continue
        extra = ["ray.runner=local"] if verb in LOCAL else QUICK if verb == "train" else []
        assert main([verb, *(adapted(word, tars, tmp_path) for word in words), *extra]) == 0, (verb, words)


def test_a_model_is_published_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "publish.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    pushed: dict[str, Any] = {}
    monkeypatch.setattr(Model, "push_to_hub", lambda self, name, **options: pushed.update({name: options}) or name)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "tests" / "trainer" / "finished_run", tmp_path / "out" / "hycoclip")
    exec(code, {})
    assert pushed == {"OWNER/NAME": {"private": True, "license": "apache-2.0"}}
    assert "apache-2.0" in (tmp_path / "out" / "published" / "README.md").read_text(encoding="utf-8")
