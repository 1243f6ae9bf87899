"""--help of the commands is fast: it does not import torch."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["trainer.train", "--help"], "lr (= optim.lr) = "),
        (["trainer.train", "--help", "model_name=phyclip"], "model.factor_dim = 8"),
        (["trainer.evaluate", "--help"], "zero_shot/FOLDER/accuracy_micro"),
        (["trainer.export", "--help"], "local-dir:out/open_clip"),
        (["demo.paper", "--help"], "rows, for --rows"),
    ],
    ids=["train", "train phyclip", "evaluate", "export", "paper"],
)
def test_help_does_not_import_torch(arguments: list[str], text: str) -> None:
    command = [sys.executable, "-X", "importtime", "-m", *arguments]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in finished.stderr.splitlines()}
    assert "hypergrit_common.cli" in imported
    assert "torch" not in imported
    assert text in finished.stdout
