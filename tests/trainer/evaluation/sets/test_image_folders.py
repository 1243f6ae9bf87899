"""Image folders: classes, names, limits and unreadable images."""

from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from hypergrit_common.errors import UserError
from trainer.evaluation.sets.image_folders import read_folder, read_folders, read_images


def write(root: Path, **images: int) -> str:
    for name, n in images.items():
        (root / name).mkdir(parents=True)
        for i in range(n):
            PIL.Image.fromarray(np.full((12, 20, 3), 40 * i, np.uint8)).save(root / name / f"{i}.png")
    return str(root)


def test_classes_are_the_sorted_folder_names_with_spaces_for_underscores(tmp_path: Path) -> None:
    folder = read_folder(write(tmp_path / "animals", polar_bear=1, ant=2, **{".ipynb_checkpoints": 1}))
    assert (folder.name, folder.classes, folder.targets) == ("animals", ["ant", "polar bear"], [0, 0, 1])


def test_folders_with_the_same_name_are_named_with_their_parent(tmp_path: Path) -> None:
    paths = [write(tmp_path / name / "val", ant=1) for name in ("cars", "pets")]
    assert [folder.name for folder in read_folders(paths)] == ["cars/val", "pets/val"]
    assert [folder.name for folder in read_folders([paths[0], paths[0]])] == ["val", "val"]


def test_images_are_cropped_to_their_centre(tmp_path: Path) -> None:
    path = tmp_path / "wide.png"
    pixels = np.zeros((8, 24, 3), np.uint8)
    pixels[:, 8:16] = 200
    PIL.Image.fromarray(pixels).save(path)
    (image,), _ = read_images([path], size_px=8)
    assert image.shape == (3, 8, 8)
    assert (image > 190).all()


def test_a_folder_without_images_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{tmp_path}.*holds no images CLASS/IMAGE"):
        read_folder(str(tmp_path))
    with pytest.raises(UserError, match="missing is not a folder"):
        read_folder(str(tmp_path / "missing"))


@pytest.mark.parametrize("name", ["1.TIFF", "2.tif", "3.avif", "4.jfif", "5.jp2"])
def test_what_is_decoded_is_listed(name: str, tmp_path: Path) -> None:
    path = tmp_path / "moss" / name
    path.parent.mkdir()
    PIL.Image.new("RGB", (8, 6), "green").save(path)
    assert read_images(read_folder(str(tmp_path)).paths, size_px=4)[1] == [""]


def test_hidden_files_are_no_images(tmp_path: Path) -> None:
    root = Path(write(tmp_path / "animals", ant=1))
    (root / "ant" / "._0.png").write_bytes(b"of macOS")
    assert [path.name for path in read_folder(str(root)).paths] == ["0.png"]
