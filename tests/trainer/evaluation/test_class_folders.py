"""Folders of classes: what a user may have meant otherwise is logged, and equal names lose no result."""

from pathlib import Path

import PIL.Image
import pytest

from trainer.evaluation.sets.image_folders import read_folder
from trainer.evaluation.tasks.classification import distinct


def test_odd_folders_of_classes_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in (
        "blue_jay/1.png",
        "blue jay/2.png",
        "cat/old/3.png",
        "cat/notes.txt",
        "dog/4.xcf",
        ".ipynb_checkpoints/5.png",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            PIL.Image.new("RGB", (4, 4)).save(path)
        else:
            path.touch()
    (tmp_path / "emu").mkdir()
    folder = read_folder(str(tmp_path))
    assert folder.classes == ["blue jay", "blue jay", "cat", "dog", "emu"]
    assert len(folder.paths) == 3
    for text in (
        "2 classes without images, which count for the chance level: dog, emu",
        "1 classes with images in subfolders, which are taken together: cat",
        "2 classes with equal texts, which no prompt tells apart: blue jay, blue_jay",
        "which are skipped: notes.txt, 4.xcf",
    ):
        assert text in caplog.text


def test_results_of_classes_with_equal_names_are_all_kept() -> None:
    assert distinct(["maillot", "tank", "maillot"]) == ["maillot (0)", "tank", "maillot (2)"]
