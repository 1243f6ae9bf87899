"""The splits of the linear probe: invented files in the official formats, plain folders, and index files."""

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.sets.test_sets import write, write_image
from trainer.evaluation.sets.probe import read_probe
from trainer.evaluation.task import MissingFilesError
from trainer.evaluation.tasks.linear_probe import NAMES


def sizes(root: Path, key: str) -> tuple[int, int, int]:
    data = read_probe(root, key)
    return len(data.train.images), len(data.val.images), len(data.test.images)


@pytest.mark.parametrize("key", NAMES)
def test_a_missing_set_is_one_line_that_names_its_layout(key: str, tmp_path: Path) -> None:
    with pytest.raises(MissingFilesError, match=f"^expected {tmp_path / key}/[^\n]+, or plain folders") as error:
        read_probe(tmp_path, key)
    assert len(str(error.value)) < 240 + 2 * len(str(tmp_path))


def test_test_files_alone_are_not_enough(tmp_path: Path) -> None:
    write(tmp_path / "dtd" / "dtd" / "labels" / "test1.txt", *(f"kind{i:02d}/a.jpg" for i in range(47)))
    with pytest.raises(MissingFilesError, match=r"dtd/labels/\{train,val\}1\.txt beside"):
        read_probe(tmp_path, "dtd")


def test_official_validation_splits_are_used(tmp_path: Path) -> None:
    labels = tmp_path / "dtd" / "dtd" / "labels"
    for part in ("train", "val", "test"):
        write(labels / f"{part}1.txt", *(f"kind{i:02d}/{part}.jpg" for i in range(47)))
    data = read_probe(tmp_path, "dtd")
    assert [split.images[3].path.name for split in (data.train, data.val, data.test)] == [
        "train.jpg",
        "val.jpg",
        "test.jpg",
    ]
    assert data.rules["val"] == "split of the files"
    assert data.rules["images"].endswith("the papers use 1880, 1880, 1880")
    assert set(data.checksums) == {f"dtd/dtd/labels/{part}1.txt" for part in ("train", "val", "test")}


def test_the_tail_of_a_mixed_order_is_the_validation_split(tmp_path: Path) -> None:
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    write(folder / "batches.meta.txt", *(f"class {i}" for i in range(10)))
    pixels = np.random.default_rng(0).integers(0, 255, (6, 40, 3072), np.uint8)
    for part in range(6):
        name = f"data_batch_{part + 1}.bin" if part < 5 else "test_batch.bin"
        rows = [bytes([i % 10]) + pixels[part, i].tobytes() for i in range(40)]
        (folder / name).write_bytes(b"".join(rows))
    data = read_probe(tmp_path, "cifar10")
    assert sizes(tmp_path, "cifar10") == (180, 20, 40)
    assert data.rules["val"] == "last 10% of train"
    assert data.val.images[0].path.name == "data_batch_5.bin"
    assert data.val.images[0].index == 20
    stack = data.val.images[0].stack
    assert stack is not None
    assert stack[20][0, 0].tolist() == pixels[4, 20, [0, 1024, 2048]].tolist()
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(MissingFilesError):
        read_probe(tmp_path, "cifar10")


def test_the_tail_of_each_class_is_taken_from_files_that_are_sorted_by_class(tmp_path: Path) -> None:
    meta = tmp_path / "food101" / "food-101" / "meta"
    classes = [f"dish_{i:03d}" for i in range(101)]
    write(meta / "classes.txt", *classes)
    write(meta / "train.txt", *(f"{name}/{i}" for name in classes for i in range(10)))
    write(meta / "test.txt", *(f"{name}/{i}" for name in classes for i in range(90, 93)))
    data = read_probe(tmp_path, "food101")
    assert sizes(tmp_path, "food101") == (909, 101, 303)
    assert data.rules["val"] == "last 10% of each class of train"
    assert {image.path.name for image in data.val.images} == {"9.jpg"}


def test_matlab_files_of_cars_and_flowers(tmp_path: Path) -> None:
    cars = tmp_path / "cars"
    (cars / "devkit").mkdir(parents=True)
    names = np.array([f"Car {i}" for i in range(196)], object)
    savemat(cars / "devkit" / "cars_meta.mat", {"class_names": names})
    for file, n in (("cars_train_annos.mat", 490), ("cars_test_annos_withlabels.mat", 196)):
        rows = np.zeros(n, [("class", "f8"), ("fname", "O")])
        rows["class"], rows["fname"] = np.arange(n) % 196 + 1, [f"{i:05d}.jpg" for i in range(n)]
        savemat(cars / "devkit" / file, {"annotations": rows})
    data = read_probe(tmp_path, "cars")
    assert sizes(tmp_path, "cars") == (294, 196, 196)
    assert data.rules["val"] == "last 20% of each class of train"
    assert data.train.images[0].path == cars / "cars_train" / "00000.jpg"
    flowers = tmp_path / "flowers102" / "flowers-102"
    flowers.mkdir(parents=True)
    savemat(flowers / "setid.mat", {"trnid": [[1, 2]], "valid": [[3, 3]], "tstid": [[4, 5, 6]]})
    savemat(flowers / "imagelabels.mat", {"labels": [[1, 2, 1, 2, 1, 102]]})
    assert sizes(tmp_path, "flowers102") == (2, 2, 3)
    assert read_probe(tmp_path, "flowers102").test.labels == [1, 0, 101]


def test_one_image_of_each_class_leaves_no_validation_split(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in ("bark", "leaf", "root"):
            path = tmp_path / "linear_probe" / "dtd" / split / name / "1.png"
            path.parent.mkdir(parents=True)
            path.touch()
    with pytest.raises(UserError, match=r"dtd/train has one image of each class.* give more, or val/"):
        read_probe(tmp_path, "dtd")


def test_cub_sun_pets_caltech_and_aircraft_lists(tmp_path: Path) -> None:
    cub = tmp_path / "cub2011" / "CUB_200_2011"
    write(cub / "classes.txt", *(f"{i} {i:03d}.Bird_{i}" for i in range(1, 201)))
    write(cub / "images.txt", *(f"{i} a/{i}.jpg" for i in range(600)))
    write(cub / "image_class_labels.txt", *(f"{i} {i % 200 + 1}" for i in range(600)))
    write(cub / "train_test_split.txt", *(f"{i} {int(i < 400)}" for i in range(600)))
    assert sizes(tmp_path, "cub2011") == (200, 200, 200)
    sun = tmp_path / "sun397" / "SUN397"
    names = [f"a/room_{i}" for i in range(397)]
    write(sun / "ClassName.txt", *(f"/{name}" for name in names))
    write(sun / "Testing_01.txt", *(f"/{name}/1.jpg" for name in names))
    with pytest.raises(UserError, match=r"no list of train images; write train\.txt .* Training_01\.txt"):
        read_probe(tmp_path, "sun397")
    write(sun / "Training_01.txt", *(f"/{name}/{i}.jpg" for name in names for i in (2, 3)))
    assert sizes(tmp_path, "sun397") == (397, 397, 397)
    pets = tmp_path / "pets" / "oxford-iiit-pet" / "annotations"
    for part in ("trainval", "test"):
        write(pets / f"{part}.txt", *(f"cat_{i}_{n} {i} 1 1" for n in range(5) for i in range(1, 38)))
    assert sizes(tmp_path, "pets") == (148, 37, 185)
    for part in ("train", "test"):
        write(tmp_path / "caltech101" / f"{part}.txt", *(f"t{i}/{n}.jpg" for i in range(102) for n in range(5)))
    assert sizes(tmp_path, "caltech101") == (408, 102, 510)
    aircraft = tmp_path / "aircraft" / "fgvc-aircraft-2013b" / "data"
    write(aircraft / "variants.txt", *(f"Model {i}" for i in range(100)))
    for n, part in enumerate(("train", "val", "test")):
        write(aircraft / f"images_variant_{part}.txt", *(f"{n}{i} Model {i}" for i in range(100)))
    assert sizes(tmp_path, "aircraft") == (100, 100, 100)


def test_packed_files_of_stl10_cifar100_and_mnist(tmp_path: Path) -> None:
    stl10 = tmp_path / "stl10" / "stl10_binary"
    write(stl10 / "class_names.txt", *(f"c{i}" for i in range(10)))
    for part, n in (("train", 50), ("test", 20)):
        (stl10 / f"{part}_X.bin").write_bytes(bytes(n * 3 * 96 * 96))
        (stl10 / f"{part}_y.bin").write_bytes(bytes(i % 10 + 1 for i in range(n)))
    assert sizes(tmp_path, "stl10") == (40, 10, 20)
    cifar = tmp_path / "cifar100" / "cifar-100-binary"
    write(cifar / "fine_label_names.txt", *(f"maple_{i}" for i in range(100)))
    for part, n in (("train", 1000), ("test", 100)):
        (cifar / f"{part}.bin").write_bytes(b"".join(bytes([0, i % 100]) + bytes(3072) for i in range(n)))
    assert sizes(tmp_path, "cifar100") == (900, 100, 100)
    mnist = tmp_path / "mnist" / "MNIST" / "raw"
    mnist.mkdir(parents=True)
    for part, n in (("train", 50), ("t10k", 10)):
        images = struct.pack(">4B3i", 0, 0, 8, 3, n, 28, 28) + bytes(n * 28 * 28)
        (mnist / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        labels = struct.pack(">4Bi", 0, 0, 8, 1, n) + bytes(i % 10 for i in range(n))
        (mnist / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    assert sizes(tmp_path, "mnist") == (40, 10, 10)


def test_clevr_country211_and_sst2(tmp_path: Path) -> None:
    scenes = tmp_path / "clevr" / "CLEVR_v1.0" / "scenes"
    for part, n in (("train", 6000), ("val", 80)):
        rows = [{"image_filename": f"{i}.png", "objects": [{}] * (3 + i % 8)} for i in range(n)]
        write(scenes / f"CLEVR_{part}_scenes.json", json.dumps({"scenes": rows}))
    data = read_probe(tmp_path, "clevr")
    assert sizes(tmp_path, "clevr") == (4500, 500, 80)
    assert data.train.images[0].path.parent.name == "train"
    for key, root, names in (
        ("country211", "country211", [f"C{i:03d}" for i in range(211)]),
        ("sst2", "rendered-sst2", ["negative", "positive"]),
    ):
        for part in ("train", "valid", "test"):
            for name in names:
                write_image(tmp_path / key / root / part / name / "a.png")
        n = len(names)
        assert sizes(tmp_path, key) == (n, n, n)
        assert read_probe(tmp_path, key).rules["val"] == "split of the files"


def test_plain_folders_of_two_classes_are_not_confused_with_splits(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name in ("negative", "positive"):
            for i in range(5):
                write_image(tmp_path / "sst2" / part / name / f"{i}.png")
    assert sizes(tmp_path, "sst2") == (8, 2, 10)


def test_sets_without_splits_need_index_files(tmp_path: Path) -> None:
    folder = tmp_path / "eurosat"
    for i in range(10):
        for n in range(6):
            write_image(folder / "2750" / f"Class{i}" / f"{n}.png")
    with pytest.raises(MissingFilesError, match=r"eurosat/indices_\{train,val\}\.txt beside"):
        read_probe(tmp_path, "eurosat")
    write(folder / "indices_train.txt", *map(str, range(0, 60, 6)))
    write(folder / "indices_val.txt", *map(str, range(1, 60, 6)))
    write(folder / "indices.txt", *map(str, range(2, 60, 3)))
    data = read_probe(tmp_path, "eurosat")
    assert sizes(tmp_path, "eurosat") == (10, 10, 20)
    assert data.train.labels == data.val.labels == list(range(10))
    assert not set(data.train.images) & set(data.val.images)
    assert "eurosat/indices_val.txt" in data.checksums
    write(folder / "indices_val.txt", "60")
    with pytest.raises(UserError, match=r"indices_val\.txt: line 1: '60' is no image of the split"):
        read_probe(tmp_path, "eurosat")
