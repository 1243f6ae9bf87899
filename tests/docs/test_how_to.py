"""The commands of the recipes run in order, with tars of drawn scenes and the miniature models."""

import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from hypergrit.__main__ import main
from pipeline.explore.marks import COLUMNS, line_of
from pipeline.explore.quality.boxes import read_rows
from tests.docs.test_commands import COMMAND
from tests.pipeline.hub import hub
from tests.pipeline.stages.ground.test_hf import tiny_mm_grounding_dino
from tests.pipeline.stages.score.test_scorers import small_transformers_clip as small_clip
from tests.s3.conftest import moto, server
from tests.trainer.evaluation.sets.test_sets import write_image
from tests.trainer.evaluation.tasks.test_retrieval import write_coco
from tests.trainer.released_files import write_released
from tests.trainer.tiny_open_clip import register, save, tiny
from trainer import Model
from trainer.encoders.config import TextConfig
from trainer.evaluation.metrics.hierarchy import read_tree
from trainer.models.config import HyperbolicConfig
from trainer.models.registry import build_model

__all__ = ["moto", "server"]

ROOT = Path(__file__).resolve().parents[2]
LOCAL = {"run", "rewrite", "takedown"}
"""Verbs that run on Ray by default."""
BASE = "jobs/train_demo/base.yaml"
REPLACED = {
    "jobs/train/small_machine.yaml": [BASE],
    "jobs/pipeline/grit.yaml": ["jobs/pipeline/grit.yaml", "scorer=miniature"],
    "jobs/train/hycoclip.yaml": ["jobs/train/hycoclip.yaml", BASE],
    "grounder=iSEE-Laboratory/llmdet_tiny": ["grounder=miniature"],
    "scorer=openai/clip-vit-base-patch32": ["scorer=miniature"],
}
QUICK = ["steps=2", "batch_size=4", "optim.warmup_steps=1", 'evaluation.shards=""', "evaluation.image_folders=[]"]
TINY = [f"model.{part}.name=open_clip/tiny-vit" for part in ("image", "text")]
PAGES: dict[str, list[str]] = {
    "pairs_only": [],
    "ground_laion_tars": ["models"],
    "dedupe_and_takedown": [],
    "resume_and_retry": [],
    "photographs": ["models"],
    "grit_to_hycoclip": [],
    "fine_tune_open_clip": [],
    "evaluate_a_checkpoint": [],
}
"""Recipe -> the verbs that need a network."""
RECIPES = {
    "grit_to_hycoclip": ("ablations", "From GRIT to HyCoCLIP's table"),
    "fine_tune_open_clip": ("training", "Start from a trained CLIP"),
    "evaluate_a_checkpoint": ("evaluation", "A released checkpoint on COCO"),
    "pairs_only": ("inputs", "Pairs without boxes"),
    "ground_laion_tars": ("inputs", "Ground your LAION tars"),
    "dedupe_and_takedown": ("outputs", "Remove duplicates, take rows down"),
    "resume_and_retry": ("outputs", "Resume and retry"),
    "photographs": ("quality", "Thresholds for photographs"),
    "s3": ("cluster", "S3, on one machine"),
    "publish": ("export", "Publish"),
}
"""Recipe -> its guide, and its heading there; others are pages of their own."""


def recipe_text(recipe: str) -> str:
    page, heading = RECIPES.get(recipe, (recipe, ""))
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0] if heading else text


def commands(recipe: str) -> list[list[str]]:
    """Return the arguments of the commands in the code blocks of a recipe."""
    text = recipe_text(recipe).replace("\\\n", " ")
    return [shlex.split(found[1]) for line in text.splitlines() if (found := COMMAND.match(line)) and line[0] == " "]


def adapted(word: str, tars: Path, folder: Path) -> list[str]:
    """Return an argument with the paths and models of this test."""
    if word in REPLACED:
        return REPLACED[word]
    word = re.sub(r"(^|[=\[])out/", rf"\g<1>{folder}/", word)
    word = f"input={tars}/*.tar" if word.startswith("input=/data/") else word
    word = word.replace("=takedown.txt", f"={folder}/takedown.txt").replace("data=data", f"data={folder}/data")
    return [word.replace("laion2b_s34b_b79k", f"{folder}/weights").replace("meru:", f"meru:{folder}/")]


def prepare(page: str, finished: Path, folder: Path) -> None:
    """Write what a page takes for given."""
    if page in ("dedupe_and_takedown", "fine_tune_open_clip"):
        shutil.copytree(finished, folder / "mine")
        (folder / "takedown.txt").write_text("example.org\n", encoding="utf-8")
    if page in ("fine_tune_open_clip", "evaluate_a_checkpoint"):
        shutil.copytree(finished, folder / "held_out")
    if page == "fine_tune_open_clip":
        (folder / "architectures").mkdir()
        register(folder / "architectures")
        save(tiny("tiny-vit"), "tiny-vit", folder, "folder")
    if page in ("grit_to_hycoclip", "evaluate_a_checkpoint"):
        write_coco(folder / "data")
        for i in range(10):
            write_image(folder / "data" / "eurosat" / f"Class{i}" / "a.png")
    if page == "grit_to_hycoclip":
        for name in read_tree().classes:
            (folder / "data" / "imagenet" / "val" / name).mkdir(parents=True)
        write_image(folder / "data" / "imagenet" / "val" / name / "ILSVRC2012_val_00000001.JPEG")
    if page == "evaluate_a_checkpoint":
        shutil.copytree(ROOT / "tests" / "trainer" / "finished_run", folder / "hycoclip")
        torch.manual_seed(0)
        model = build_model("meru", HyperbolicConfig(text=TextConfig(width=64, layers=1, heads=1), embed_dim=16))
        write_released(folder / "meru_vit_l.pth", model)


def mark_all(output: str, marks: str) -> None:
    """Mark all boxes of an output as right, as a person would in the explorer."""
    lines = [line_of(row, box, "right") for row in read_rows(output) for box in row.boxes]
    with open(marks, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *lines])


def run(verb: str, words: list[str], *more: str) -> int:
    extra = ["ray.runner=local"] if verb in LOCAL else QUICK if verb == "train" else []
    return main([verb, *words, *extra, *more])


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page: str, tars: Path, finished: Path, tmp_path: Path) -> None:
    assert len(commands(page)) >= 2
    prepare(page, finished, tmp_path)
    source = finished / "grit" if page == "grit_to_hycoclip" else tars
    for verb, *words in commands(page):
        if verb in PAGES[page]:
            continue
        more = [*TINY, "data.workers=0"] if verb == "train" and page == "fine_tune_open_clip" else []
        more += [f"plot={tmp_path}/calibration.png"] if any(word.startswith("marks=") for word in words) else []
        given = [new for word in words for new in adapted(word, source, tmp_path)]
        if verb == "explore" and not any(word.startswith("row=") for word in words):  # the page, for people
            assert Path(given[0], "report.html").is_file()
            for path in (word.partition("=")[2] for word in given if word.startswith("marks=")):
                mark_all(given[0], path)
            continue
        assert run(verb, given, *more) == 0, (verb, words)


@pytest.mark.rest
@pytest.mark.slow
def test_the_models_of_a_page_are_fetched_from_the_hub_and_run_without_it(tars: Path, tmp_path: Path) -> None:
    fetch, first = (commands("ground_laion_tars") + commands("photographs"))[:2]
    assert fetch in commands("photographs")
    repositories = {"iSEE-Laboratory/llmdet_tiny": tiny_mm_grounding_dino, "openai/clip-vit-base-patch32": small_clip}
    for name, save_model in repositories.items():
        (tmp_path / "hub" / name).mkdir(parents=True)
        save_model(tmp_path / "hub" / name)
    cache = {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    with hub(tmp_path / "hub") as url:
        found = hypergrit(fetch, {**cache, "HF_ENDPOINT": url})
    for name, key in zip(repositories, ("grounder", "scorer"), strict=True):
        assert f"{key} {name} of the hub" in found
    words = [word for word in first if "=" not in word or word.startswith(("grounder=", "scorer="))]
    words += [
        f"input={tars}/*.tar",
        f"output={tmp_path}/out",
        "read.where=null",
        "ground.keep_pairs=true",
        "ray.runner=local",
    ]
    assert "rows read" in hypergrit(words, {**cache, "HF_HUB_OFFLINE": "1"})


def hypergrit(words: list[str], environment: dict[str, str]) -> str:
    """Run a command in a process of its own, which reads the environment of huggingface_hub; return what it prints."""
    result = subprocess.run(
        [sys.executable, "-m", "hypergrit", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.rest
@pytest.mark.slow
def test_the_commands_for_s3_run(tars: Path, server: str, tmp_path: Path) -> None:
    bucket = fsspec.filesystem("s3")
    bucket.mkdir("bucket")
    bucket.put(str(tars / "00000.tar"), "bucket/pairs/00000.tar")
    used = [words for words in commands("s3") if any("s3://" in word for word in words)]
    assert [words[0] for words in used] == ["run", "verify", "train"]
    for verb, *words in used:
        assert run(verb, [new for word in words for new in adapted(word, tars, tmp_path)]) == 0, (verb, words)
    assert bucket.exists("bucket/runs/hycoclip/model/model.safetensors")


def test_a_model_is_published_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", recipe_text("publish"), re.DOTALL))
    pushed: dict[str, Any] = {}
    monkeypatch.setattr(Model, "push_to_hub", lambda self, name, **options: pushed.update({name: options}) or name)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "tests" / "trainer" / "finished_run", tmp_path / "out" / "hycoclip")
    exec(code, {})
    assert pushed == {"OWNER/NAME": {"private": True, "license": "apache-2.0"}}
    assert "apache-2.0" in (tmp_path / "out" / "published" / "README.md").read_text(encoding="utf-8")
