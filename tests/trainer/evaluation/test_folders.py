from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from common.errors import UserError
from trainer.evaluation.folders import read_folder, read_folders, read_images


def write(root: Path, **images: int) -> str:
    for name, n in images.items():
        (root / name).mkdir(parents=True)
        for i in range(n):
            PIL.Image.fromarray(np.full((12, 20, 3), 40 * i, np.uint8)).save(root / name / f"{i}.png")
    return str(root)


def test_classes_are_the_folders_names_in_order_with_blanks_for_underscores(tmp_path: Path) -> None:
    folder = read_folder(write(tmp_path / "animals", polar_bear=1, ant=2))
    assert (folder.name, folder.classes, folder.targets) == ("animals", ["ant", "polar bear"], [0, 0, 1])


def test_folders_of_one_name_are_told_apart_by_what_is_above_them(tmp_path: Path) -> None:
    places = [write(tmp_path / name / "val", ant=1) for name in ("cars", "pets")]
    assert [folder.name for folder in read_folders(places)] == ["cars/val", "pets/val"]
    assert [folder.name for folder in read_folders([places[0], places[0]])] == ["val", "val"]


def test_a_limit_takes_images_of_all_classes(tmp_path: Path) -> None:
    folder = read_folder(write(tmp_path, ant=5, bee=5, cat=5), limit=3)
    assert folder.targets == [0, 1, 2]


def test_the_middle_of_each_image_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "wide.png"
    pixels = np.zeros((8, 24, 3), np.uint8)
    pixels[:, 8:16] = 200
    PIL.Image.fromarray(pixels).save(path)
    (image,) = read_images([path], size_px=8)
    assert image.shape == (3, 8, 8)
    assert (image > 190).all()


def test_a_folder_without_images_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{tmp_path}.*holds no CLASS/IMAGE"):
        read_folder(str(tmp_path))
    with pytest.raises(UserError, match="missing is no folder"):
        read_folder(str(tmp_path / "missing"))


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnot a picture")
    with pytest.raises(UserError, match=r"broken\.png"):
        list(read_images([tmp_path / "broken.png"], size_px=8))
