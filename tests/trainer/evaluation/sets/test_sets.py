"""The 20 data sets of zero-shot classification: invented files in the official formats, and the committed table."""

import gzip
import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from scipy.io import savemat

from hypergrit_common.errors import UserError
from trainer.evaluation.catalog import set_infos
from trainer.evaluation.sets.base import ZeroShotSet, read_own_set
from trainer.evaluation.sets.lists import read_mat
from trainer.evaluation.sets.registry import READERS, read_set
from trainer.evaluation.task import MissingFilesError

PLANES = np.arange(3 * 32 * 32, dtype=np.uint32).astype(np.uint8)


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def write_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(path)


@pytest.fixture
def eurosat(tmp_path: Path) -> Path:
    """Plain folders of ten classes with one image each."""
    for i in range(10):
        write_image(tmp_path / "eurosat" / f"Class{i}" / "a.png")
    return tmp_path / "eurosat"


def test_the_table_has_the_papers_sets_prompts_and_counts() -> None:
    infos = set_infos()
    assert infos.keys() == READERS.keys()
    assert [infos[key].n_classes for key in ("caltech101", "sun397", "clevr")] == [102, 397, 8]
    n_prompts = {key: len(info.prompts) for key, info in infos.items()}
    assert n_prompts["imagenet"] == 7
    assert n_prompts["cifar10"] == n_prompts["cifar100"] == n_prompts["resisc45"] == 18
    assert n_prompts["caltech101"] == 34
    assert n_prompts["cars"] == 8
    for info in infos.values():
        assert len(set(info.prompts)) == len(info.prompts)
        assert all(prompt.count("{}") == 1 for prompt in info.prompts)
        assert len(info.names) in (0, info.n_classes)
    assert infos["clevr"].names[0] == "10"
    assert 'a photo of the number: "{}".' in infos["mnist"].prompts


MERU_TABLE_6 = """
food101 101 68175 7575 25250, cifar10 10 45000 5000 10000, cifar100 100 45000 5000 10000, cub2011 200 4795 1199 5794,
sun397 397 15880 3970 19849, cars 196 6515 1629 8041, aircraft 100 3334 3333 3333, dtd 47 1880 1880 1880,
pets 37 2944 736 3669, caltech101 102 2448 612 6084, flowers102 102 1020 1020 6149, stl10 10 4000 1000 8000,
eurosat 10 5000 5000 5000, resisc45 45 3150 3150 25200, country211 211 31650 10550 21100, mnist 10 48000 12000 10000,
clevr 8 4500 500 5000, pcam 2 262144 32768 32768, sst2 2 6920 872 1821
"""
"""Classes and images of the three splits."""


def test_classes_and_images_are_those_of_the_papers_table() -> None:
    rows = [row.split() for row in MERU_TABLE_6.replace("\n", " ").split(",")]
    infos = {key: (info.n_classes, info.n_train, info.n_val, info.n_images) for key, info in set_infos().items()}
    assert infos == {"imagenet": (1000, 0, 0, 50000)} | {row[0]: tuple(map(int, row[1:])) for row in rows}


def test_imagenet_names_are_those_of_open_clip_in_the_order_of_the_wordnet_ids() -> None:
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    info = set_infos()["imagenet"]
    assert info.names == tuple(IMAGENET_CLASSNAMES)
    assert list(info.wnids) == sorted(set(info.wnids))
    assert len(info.wnids) == 1000


def test_plain_folders_are_read_with_and_without_class_names(tmp_path: Path, eurosat: Path) -> None:
    found = read_set(tmp_path, "eurosat")
    assert found.targets == list(range(10))
    assert found.names[0] == "Class0"
    assert found.rules["subset"].startswith("full (10 images; the papers use 5000)")
    write(eurosat / "classnames.txt", *(f"name {i}" for i in range(10)))
    write(eurosat / "indices.txt", "3", "Class7/a.png")
    found = read_set(tmp_path, "eurosat")
    assert (found.names[0], found.rules["class names"]) == ("name 0", "classnames.txt")
    assert found.targets == [3, 7]
    assert found.rules["subset"].startswith("indices.txt")
    assert {"eurosat/classnames.txt", "eurosat/indices.txt"} < found.checksums.keys()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        *((line, f"'{line}' is no image of the split") for line in ("10", "Class1/none.png", "-1", "²")),
        ("9" * 5000, "'9+ is not an integer of at most 18 digits"),
    ],
    ids=["10", "none", "-1", "exponent", "long"],
)
def test_an_index_that_does_not_exist_is_an_error(line: str, message: str, tmp_path: Path, eurosat: Path) -> None:
    path = write(eurosat / "indices.txt", "0", line)
    with pytest.raises(UserError, match=f"{path}: line 2: {message}"):
        read_set(tmp_path, "eurosat")


def test_a_wrong_number_of_class_names_is_an_error(tmp_path: Path, eurosat: Path) -> None:
    write(eurosat / "classnames.txt", "one")
    with pytest.raises(UserError, match=r"classnames\.txt has 1 lines; give 10"):
        read_set(tmp_path, "eurosat")


def test_sets_without_names_ask_for_them(tmp_path: Path) -> None:
    for name in ("0", "1"):
        write_image(tmp_path / "pcam" / name / "a.png")
    with pytest.raises(UserError, match=r"pcam/classnames\.txt is missing; the files of pcam carry no class names"):
        read_set(tmp_path, "pcam")


def test_codes_of_countries_are_no_names(tmp_path: Path) -> None:
    for i in range(211):
        write_image(tmp_path / "country211" / "test" / f"{chr(65 + i // 26)}{chr(65 + i % 26)}" / "a.jpg")
    with pytest.raises(UserError, match="the files of country211 carry no class names"):
        read_set(tmp_path, "country211")


FLOWERS, IMAGENET = set_infos()["flowers102"].names, set_infos()["imagenet"]
DIGITS = "zero one two three four five six seven eight nine"


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("flowers102", {str(number): name for number, name in enumerate(FLOWERS, 1)}),
        ("flowers102", {f"{number:03d}": name for number, name in enumerate(FLOWERS)}),
        ("flowers102", {name.replace(" ", "_"): name for name in FLOWERS}),
        ("mnist", {name: name for name in DIGITS.split()}),
        ("mnist", {name: name for name in "8306421795"}),
        ("clevr", {str(number): str(number) for number in range(10, 2, -1)}),
        ("pcam", {"tumor": "tumor", "normal": "normal"}),
        ("imagenet", {str(number): name for number, name in enumerate(IMAGENET.names)}),
        ("imagenet", dict(zip(IMAGENET.wnids, IMAGENET.names, strict=True))),
    ],
    ids=["from 1", "from 0", "flowers", "words", "digits", "counts", "tissue", "ranks", "wnids"],
)
def test_each_plain_folder_has_its_own_name(key: str, names: dict[str, str], tmp_path: Path) -> None:
    for number, name in enumerate(names):
        (tmp_path / key / "val" / name).mkdir(parents=True)
        if number < 12:
            write_image(tmp_path / key / "val" / name / "a.png")
    if key != "imagenet":
        (tmp_path / key / "val").rename(tmp_path / key / "test")
    found = named_folders(read_set(tmp_path, key))
    assert found == {name: names[name] for name in [*names][:12]}


def named_folders(found: ZeroShotSet) -> dict[str, str]:
    """The name of the class of each folder with images."""
    return {
        image.path.parent.name: found.names[target] for image, target in zip(found.images, found.targets, strict=True)
    }


@pytest.mark.parametrize(("key", "first"), [("flowers102", 2), ("clevr", 0), ("mnist", 1), ("stl10", 0)])
def test_numbers_that_may_mean_several_classes_are_refused(key: str, first: int, tmp_path: Path) -> None:
    for number in range(first, first + set_infos()[key].n_classes):
        write_image(tmp_path / key / str(number) / "a.png")
    with pytest.raises(UserError, match=rf"classnames\.txt is missing; the files of {key} carry no class names"):
        read_set(tmp_path, key)


def test_a_set_of_ones_own_without_pictures_names_the_suffixes(tmp_path: Path) -> None:
    write(tmp_path / "own" / "notes" / "a" / "x.svg", "<svg/>")
    with pytest.raises(UserError, match=r"own/notes has no test images; .* end in \.jpg, .*\.tif"):
        read_own_set(tmp_path, "notes")


def test_class_names_of_numbered_folders_are_in_the_order_of_the_numbers(tmp_path: Path) -> None:
    for number in (100, 7, 23, 9):
        write_image(tmp_path / "own" / "marks" / str(number) / "a.png")
    write(tmp_path / "own" / "marks" / "classnames.txt", "seven", "nine", "twenty-three", "hundred")
    found = read_own_set(tmp_path, "marks")
    assert named_folders(found) == {"7": "seven", "9": "nine", "23": "twenty-three", "100": "hundred"}


def test_wordnet_ids_have_their_names_and_unknown_ones_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("n02099601", "n09999999", "teddy_bear"):
        write_image(tmp_path / "own" / "toys" / name / "a.png")
    assert read_own_set(tmp_path, "toys").names == ["Golden Retriever", "n09999999", "teddy bear"]
    assert "1 classes with WordNet ids that are not in ImageNet's 1,000" in caplog.text
    assert "n09999999" in caplog.text


@pytest.mark.parametrize("key", READERS)
def test_a_missing_set_names_its_layout(key: str, tmp_path: Path) -> None:
    with pytest.raises(MissingFilesError, match=f"^expected {tmp_path / key}/"):
        read_set(tmp_path, key)


def test_cifar10_is_read_from_the_binary_version(tmp_path: Path) -> None:
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    write(folder / "batches.meta.txt", *(f"class {i}" for i in range(10)), "")
    (folder / "test_batch.bin").write_bytes(bytes([3]) + PLANES.tobytes() + bytes([9]) + bytes(3072))
    found = read_set(tmp_path, "cifar10")
    assert (found.targets, found.names[3]) == ([3, 9], "class 3")
    image = found.images[0]
    assert image.stack is not None
    assert image.index == 0
    pixels = image.stack[0]
    assert pixels.shape == (32, 32, 3)
    assert pixels[0, 5].tolist() == [PLANES[5], PLANES[1024 + 5], PLANES[2048 + 5]]
    (folder / "test_batch.bin").write_bytes(b"123")
    with pytest.raises(UserError, match=r"test_batch\.bin has 3 bytes, no multiple of 3073"):
        read_set(tmp_path, "cifar10")


@pytest.mark.parametrize(
    ("key", "file"), [("cifar10", "cifar-10-batches-py/test_batch"), ("cifar100", "cifar-100-python/test")]
)
def test_the_python_version_of_cifar_is_refused(key: str, file: str, tmp_path: Path) -> None:
    write(tmp_path / key / file, "pickle")
    with pytest.raises(UserError, match="is a pickle, which can run code"):
        read_set(tmp_path, key)


def test_a_folder_named_test_is_no_pickle(tmp_path: Path) -> None:
    classes = [f"fish_{i:02d}" for i in range(100)]
    for name in classes:
        write_image(tmp_path / "cifar100" / "test" / name / "a.png")
    assert read_set(tmp_path, "cifar100").names[7] == "fish 07"


def test_cifar100_uses_the_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar100" / "cifar-100-binary"
    write(folder / "fine_label_names.txt", *(f"maple_{i}" for i in range(100)))
    (folder / "test.bin").write_bytes(bytes([1, 42]) + PLANES.tobytes())
    found = read_set(tmp_path, "cifar100")
    assert (found.targets, found.names[42]) == ([42], "maple 42")


def test_stl10_stores_columns_first_and_labels_from_1(tmp_path: Path) -> None:
    folder = tmp_path / "stl10" / "stl10_binary"
    write(folder / "class_names.txt", *(f"c{i}" for i in range(10)))
    pixels = np.random.default_rng(0).integers(0, 255, (96, 96, 3), np.uint8)
    (folder / "test_X.bin").write_bytes(pixels.transpose(2, 1, 0).tobytes())
    (folder / "test_y.bin").write_bytes(bytes([10]))
    found = read_set(tmp_path, "stl10")
    assert found.targets == [9]
    assert found.images[0].stack is not None
    assert (found.images[0].stack[0] == pixels).all()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_read_as_rgb(suffix: str, tmp_path: Path) -> None:
    folder = tmp_path / "mnist" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    pixels = np.arange(2 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(2, 28, 28)
    pack = gzip.compress if suffix else bytes
    images = struct.pack(">4B3i", 0, 0, 8, 3, 2, 28, 28) + pixels.tobytes()
    (folder / f"t10k-images-idx3-ubyte{suffix}").write_bytes(pack(images))
    labels = folder / f"t10k-labels-idx1-ubyte{suffix}"
    labels.write_bytes(pack(struct.pack(">4Bi", 0, 0, 8, 1, 2) + bytes([7, 0])))
    found = read_set(tmp_path, "mnist")
    assert (found.targets, found.names[7]) == ([7, 0], "7")
    assert found.images[1].stack is not None
    assert (found.images[1].stack[1] == pixels[1][..., None]).all()
    labels.write_bytes(pack(struct.pack(">4Bi", 0, 0, 8, 1, 5) + bytes([7, 0])))
    with pytest.raises(UserError, match="is not an idx file with 1 axes of bytes"):
        read_set(tmp_path, "mnist")
    negative = struct.pack(">4B3i", 0, 0, 8, 3, -2, -28, 28) + pixels.tobytes()
    (folder / f"t10k-images-idx3-ubyte{suffix}").write_bytes(pack(negative))
    with pytest.raises(UserError, match="is not an idx file with 3 axes of bytes"):
        read_set(tmp_path, "mnist")


def test_cub_uses_the_test_split_and_numeric_class_ids(tmp_path: Path) -> None:
    folder = tmp_path / "cub2011" / "CUB_200_2011"
    write(folder / "classes.txt", *(f"{i} {i:03d}.Black_footed_{i}" for i in range(1, 201)))
    write(folder / "images.txt", "1 a/1.jpg", "2 b/2.jpg", "3 b/3.jpg")
    write(folder / "image_class_labels.txt", "1 1", "2 10", "3 200")
    split = write(folder / "train_test_split.txt", "1 1", "2 0", "3 0")
    found = read_set(tmp_path, "cub2011")
    assert found.targets == [9, 199]
    assert found.names[9] == "Black footed 10"
    assert found.images[0].path == folder / "images" / "b" / "2.jpg"
    classes = folder / "classes.txt"
    for name in ("9" * 5000, "one"):
        classes.write_text(f"{name} 001.Albatross\n")
        with pytest.raises(UserError, match=f"{classes}: line 1: '{name[:3]}.* is not an integer"):
            read_set(tmp_path, "cub2011")
    split.write_text("1 1\n2\n")
    with pytest.raises(UserError, match=r"train_test_split\.txt: line 2 has 1 columns, not 2"):
        read_set(tmp_path, "cub2011")


def test_aircraft_variants_may_contain_blanks(tmp_path: Path) -> None:
    folder = tmp_path / "aircraft" / "fgvc-aircraft-2013b" / "data"
    write(folder / "variants.txt", "707-320", *(f"Model {i}" for i in range(99)))
    write(folder / "images_variant_test.txt", "0034309 Model 5", "0034958 707-320")
    found = read_set(tmp_path, "aircraft")
    assert found.targets == [6, 0]
    assert found.images[0].path == folder / "images" / "0034309.jpg"
    write(folder / "images_variant_test.txt", "1 Model 5", "2 Zeppelin")
    with pytest.raises(UserError, match=r"images_variant_test\.txt and .*: KeyError: 'Zeppelin' at '2 Zeppelin"):
        read_set(tmp_path, "aircraft")


def test_text_lists_of_food_dtd_pets_sun_and_caltech(tmp_path: Path) -> None:
    food = tmp_path / "food101" / "food-101"
    write(food / "meta" / "classes.txt", *(f"apple_pie_{i:03d}" for i in range(101)))
    write(food / "meta" / "test.txt", "apple_pie_100/7")
    assert read_set(tmp_path, "food101").images[0].path == food / "images" / "apple_pie_100" / "7.jpg"
    write(food / "meta" / "test.txt", "apple_pie_003/7", "waffles/8")
    with pytest.raises(UserError, match=r"test\.txt: 'waffles/8\.jpg' has the unknown class 'waffles'"):
        read_set(tmp_path, "food101")
    dtd = tmp_path / "dtd" / "dtd"
    write(dtd / "labels" / "test1.txt", *(f"kind{i:02d}/kind{i:02d}_1.jpg" for i in range(47)))
    assert read_set(tmp_path, "dtd").targets == list(range(47))
    pets = tmp_path / "pets" / "oxford-iiit-pet"
    write(pets / "annotations" / "test.txt", *(f"great_cat_{i}_{i} {i} 1 1" for i in range(37, 0, -1)))
    found = read_set(tmp_path, "pets")
    assert (found.targets[0], found.names[36]) == (36, "great cat 37")
    sun = tmp_path / "sun397" / "SUN397"
    write(sun / "ClassName.txt", "/a/airplane_cabin", *(f"/b/room_{i}/indoor" for i in range(396)))
    with pytest.raises(UserError, match=r"has no list of test images; write test\.txt"):
        read_set(tmp_path, "sun397")
    write(sun / "Testing_01.txt", "/a/airplane_cabin/sun_1.jpg", "/b/room_3/indoor/sun_2.jpg")
    found = read_set(tmp_path, "sun397")
    assert (found.targets, found.names[0], found.names[4]) == ([0, 4], "airplane cabin", "room 3 indoor")
    caltech = tmp_path / "caltech101"
    write(caltech / "test.txt", *(f"thing_{i:03d}/image_0001.jpg" for i in range(102)))
    (caltech / "101_ObjectCategories").mkdir()
    assert read_set(tmp_path, "caltech101").targets == list(range(102))


def test_matlab_files_of_cars_and_flowers(tmp_path: Path) -> None:
    cars = tmp_path / "cars"
    (cars / "devkit").mkdir(parents=True)
    names = np.array([f"Car {i}" for i in range(196)], object)
    savemat(cars / "devkit" / "cars_meta.mat", {"class_names": names})
    rows = np.zeros(2, [("class", "f8"), ("fname", "O")])
    rows["class"], rows["fname"] = [196, 1], ["00001.jpg", "00002.jpg"]
    savemat(cars / "cars_test_annos_withlabels.mat", {"annotations": rows})
    found = read_set(tmp_path, "cars")
    assert (found.targets, found.names[195]) == ([195, 0], "Car 195")
    assert found.images[0].path == cars / "cars_test" / "00001.jpg"
    flowers = tmp_path / "flowers102" / "flowers-102"
    flowers.mkdir(parents=True)
    savemat(flowers / "setid.mat", {"tstid": np.array([[3, 1]])})
    savemat(flowers / "imagelabels.mat", {"labels": np.array([[77, 1, 102]])})
    found = read_set(tmp_path, "flowers102")
    assert found.targets == [101, 76]
    assert found.names[0] == "pink primrose"
    assert found.images[0].path.name == "image_00003.jpg"
    savemat(flowers / "setid.mat", {"tstid": np.array([[1, 4]])})
    with pytest.raises(UserError, match=r"setid\.mat and .*imagelabels\.mat: KeyError: 4 at 4; download again"):
        read_set(tmp_path, "flowers102")
    for value in (np.nan, np.inf, 1.5):
        savemat(flowers / "setid.mat", {"tstid": np.array([[1, value]])})
        with pytest.raises(UserError, match=r"setid\.mat and .*: \w+Error: .*; download again"):
            read_set(tmp_path, "flowers102")
        savemat(flowers / "setid.mat", {"tstid": np.array([[3, 1]])})
        savemat(flowers / "imagelabels.mat", {"labels": np.array([[77, 1, value]])})
        with pytest.raises(UserError, match=r"imagelabels\.mat: entry 0: .* is not an integer"):
            read_set(tmp_path, "flowers102")
        savemat(flowers / "imagelabels.mat", {"labels": np.array([[77, 1, 102]])})
        rows["class"] = [196, value]
        savemat(cars / "cars_test_annos_withlabels.mat", {"annotations": rows})
        with pytest.raises(UserError, match=r"withlabels\.mat: entry 1: .* is not an integer"):
            read_set(tmp_path, "cars")
    (flowers / "setid.mat").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"setid\.mat and .*: (ValueError|MatReadError): .*; download again"):
        read_set(tmp_path, "flowers102")


def test_a_matlab_file_takes_no_more_memory_than_its_lists(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    content = {
        "a": [[{"b": np.array([[1.5, 2]]), "c": np.array(["", "y\xf6"], object)}, "text"], []],
        "d": np.uint8([[7]]),
    }
    for is_compressed in (True, False):
        savemat(path, content, do_compression=is_compressed)
        assert [len(found) for found in read_mat(path, "a", "d")] == [2, 1]
    intact, n_refused = path.read_bytes(), 0
    for start in range(128, len(intact), 4):
        path.write_bytes(intact[:start] + (30_000_000).to_bytes(4, "little") + intact[start + 4 :])
        tracemalloc.start()
        try:
            read_mat(path, "a")
        except UserError:
            n_refused += 1
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        tracemalloc.stop()
    assert n_refused > 30


def test_clevr_classes_are_numbers_of_objects_in_merus_order(tmp_path: Path) -> None:
    folder = tmp_path / "clevr" / "CLEVR_v1.0"
    scenes = [{"image_filename": f"{n}.png", "objects": [{}] * n} for n in (10, 3, 9)]
    path = write(folder / "scenes" / "CLEVR_val_scenes.json", json.dumps({"scenes": scenes}))
    found = read_set(tmp_path, "clevr")
    assert (found.targets, list(found.names[:2])) == ([0, 1, 7], ["10", "3"])
    path.write_text(json.dumps({"scenes": [{"image_filename": "a.png", "objects": [{}]}]}))
    with pytest.raises(UserError, match="scene 0 has 1 objects"):
        read_set(tmp_path, "clevr")


def test_country211_and_sst2_are_class_folders_below_test(tmp_path: Path) -> None:
    for i in range(211):
        write_image(tmp_path / "country211" / "test" / f"C{i:03d}" / "a.jpg")
    write(tmp_path / "country211" / "classnames.txt", *(f"Country {i}" for i in range(211)))
    assert read_set(tmp_path, "country211").names[210] == "Country 210"
    for name in ("negative", "positive"):
        write_image(tmp_path / "sst2" / "rendered-sst2" / "test" / name / "a.png")
    assert list(read_set(tmp_path, "sst2").names) == ["negative", "positive"]


def test_pcam_needs_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    for part in "xy":
        write(tmp_path / "pcam" / f"camelyonpatch_level_2_split_test_{part}.h5", "x")
    with pytest.raises(UserError, match="h5py is not installed; install it with `pip install h5py`"):
        read_set(tmp_path, "pcam")


def test_a_damaged_archive_of_mnist_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "mnist" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    data = bytearray(gzip.compress(bytes(range(256)) * 40))
    data[12:40] = b"\xff" * 28
    for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        (folder / name).write_bytes(data)
    with pytest.raises(UserError, match=r"idx3-ubyte\.gz cannot be read"):
        read_set(tmp_path, "mnist")
