"""Every training job loads, builds its model, and says what it is for."""

from pathlib import Path

import pytest
import torch

from trainer.build import new_model
from trainer.config import TrainConfig, load_config

ROOT = Path(__file__).resolve().parents[2]
JOBS = sorted(
    path for path in (ROOT / "jobs").glob("train_*.yaml") if "\nmodel_name:" in path.read_text(encoding="utf-8")
)
PAPERS = [path for path in JOBS if "_vit_" in path.name]
MILLIONS = {"s": 85.2, "b": 149.5, "l": 367.1}
"""Trainable parameters with the papers' text tower; S is in the facts of the released models."""


def load(path: Path) -> TrainConfig:
    return load_config(str(path))


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_training_job_loads_and_its_header_gives_the_command(path: Path) -> None:
    config = load(path)
    assert config.model_name in path.name
    header = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    commands = [line for line in header if f"trainer.train jobs/{path.name}" in line]
    assert commands
    for command in commands:
        words = command.split(f"jobs/{path.name}")[1].split()
        assert load_config(str(path), [word for word in words if "=" in word]).batch == config.batch


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_a_job_of_a_paper_has_its_sizes_and_names_its_table(path: Path) -> None:
    config = load(path)
    with torch.device("meta"):
        model = new_model(config)
    millions = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad) / 1e6
    assert millions == pytest.approx(MILLIONS[path.stem[-1]], abs=0.5)
    header = path.read_text(encoding="utf-8")
    assert "# Reproduces:" in header
    assert "# Expected:" in header
    grit = config.model_name in ("hycoclip", "phyclip", "syntax_meru")
    assert (config.batch, config.optim.steps) == ((768, 500_000) if grit else (2048, 120_000))


def test_every_model_has_the_jobs_of_its_paper() -> None:
    names = {path.stem for path in PAPERS}
    sizes = {"clip": "sbl", "meru": "sbl", "hycoclip": "sbl", "phyclip": "sbl", "poinclip": "sbl", "syntax_meru": "s"}
    assert names == {f"train_{model}_vit_{size}" for model in sizes for size in sizes[model]}
