"""Sets that are fetched: tiny archives in the layouts of the official ones, without a network."""

import gzip
import hashlib
import io
import json
import logging
import re
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
from scipy.io import savemat
from torchvision import datasets

from tests.trainer.evaluation.sets.test_sets import write, write_image
from trainer.evaluation.catalog import SetInfo, set_infos
from trainer.evaluation.sets import fetch
from trainer.evaluation.sets.registry import read_split

FETCHED = [key for key, info in set_infos().items() if info.archives]
TASKS = ("classification",)


def write_layout(key: str, root: Path) -> None:
    """The test split of a set below `root`, which stands for DATA/KEY, as the archives hold it; labels are few."""
    if key == "food101":
        write(root / "food-101" / "meta" / "classes.txt", "apple_pie")
        write(root / "food-101" / "meta" / "test.txt", "apple_pie/1")
    elif key == "aircraft":
        write(root / "fgvc-aircraft-2013b" / "data" / "variants.txt", "707-320")
        write(root / "fgvc-aircraft-2013b" / "data" / "images_variant_test.txt", "1 707-320")
    elif key == "dtd":
        write(root / "dtd" / "labels" / "test1.txt", "woven/woven_1.jpg")
    elif key == "pets":
        write(root / "oxford-iiit-pet" / "annotations" / "test.txt", "great_cat_1 1 1 1")
        write_image(root / "oxford-iiit-pet" / "images" / "great_cat_1.jpg")
    elif key == "flowers102":
        write_image(root / "flowers-102" / "jpg" / "image_00001.jpg")
        savemat(root / "flowers-102" / "setid.mat", {"tstid": np.array([[1, 2]])})
        savemat(root / "flowers-102" / "imagelabels.mat", {"labels": np.array([[102, 1]])})
    elif key == "stl10":
        write(root / "stl10_binary" / "class_names.txt", *map(str, range(10)))
        (root / "stl10_binary" / "test_X.bin").write_bytes(bytes(3 * 96 * 96))
        (root / "stl10_binary" / "test_y.bin").write_bytes(bytes([1]))
    elif key == "mnist":
        for part in ("train", "t10k"):
            for name, head in (("images-idx3", (3, 1, 28, 28)), ("labels-idx1", (1, 1))):
                path = write(root / "MNIST" / "raw" / f"{part}-{name}-ubyte.gz")
                path.write_bytes(_gzip(struct.pack(f">3B{'B' + 'i' * (len(head) - 1)}", 0, 0, 8, *head), head))
    elif key == "clevr":
        scenes = {"scenes": [{"image_filename": "a.png", "objects": [{}] * 3}]}
        write(root / "CLEVR_v1.0" / "scenes" / "CLEVR_val_scenes.json", json.dumps(scenes))
    else:
        place = {"eurosat": "2750", "country211": "country211/test", "sst2": "rendered-sst2/test"}[key]
        write_image(root / place / "A" / "a.png")


def _gzip(head: bytes, axes: tuple[int, ...]) -> bytes:
    return gzip.compress(head + bytes(int(np.prod(axes[1:]))))


def pack(folder: Path, names: list[str], suffix: str) -> bytes:
    """An archive of files and folders."""
    file = io.BytesIO()
    if suffix == ".zip":
        with zipfile.ZipFile(file, "w") as archive:
            for path in sorted(folder.rglob("*")):
                archive.write(path, path.relative_to(folder))
    else:
        with tarfile.open(fileobj=file, mode="w:gz") as tar:
            for name in names:
                tar.add(folder / name, name)
    return file.getvalue()


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], SetInfo]:
    """A function that serves tiny archives of a set, whose MD5 it takes, and makes it the only set."""

    def serve(key: str) -> SetInfo:
        source, served = tmp_path / f"source_{key}", {}
        write_layout(key, source)
        info = set_infos()[key]
        for url in info.archives:
            name = url.rpartition("/")[2]
            folder = source / info.into
            # of the archives of Pets, each holds the folder of its name; the .mat and .gz files are no archives
            names = [name.split(".")[0]] if key == "pets" else ["jpg"] if key == "flowers102" else []
            is_file = (folder / name).is_file()
            names = names or [path.name for path in folder.iterdir()]
            served[url] = (folder / name).read_bytes() if is_file else pack(folder, names, Path(name).suffix)
        sums = {url: hashlib.md5(data).hexdigest() for url, data in served.items()}
        changed = replace(info, archives=sums)
        monkeypatch.setattr(fetch, "set_infos", lambda: {key: changed})
        monkeypatch.setattr(fetch, "open_url", lambda url: io.BytesIO(served[url]))
        return changed

    return serve


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("key", FETCHED)
def test_a_missing_set_is_fetched_and_read(key: str, data: Path, serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    info = serve(key)
    write(data / key / "classnames.txt", "what the user has prepared stays")
    caplog.set_level(logging.INFO)
    assert fetch.fetch_sets(data, TASKS) == {}
    assert f"{key}: {info.gb:.2f} GB to {data / key}; license: {info.license}" in caplog.messages[0]
    found = read_split(data / key, key, "test")
    assert found is not None
    assert len(found.images) == (2 if key == "flowers102" else 1)
    assert sorted(path.name for path in (data / key).iterdir()) == sorted(["classnames.txt", info.folder])
    caplog.clear()
    assert fetch.fetch_sets(data, TASKS) == {}
    assert not caplog.messages  # nothing is missing


def test_what_a_killed_process_left_is_not_read_and_is_fetched_again(
    data: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("dtd")
    write_layout("dtd", data / "dtd" / ".fetch")  # as after SIGKILL just before the last step
    write(data / "dtd" / ".fetch.lock")
    assert read_split(data / "dtd", "dtd", "test") is None

    def interrupt(path: Path, **_: Any) -> None:
        write_layout("dtd", path.parent)
        raise KeyboardInterrupt

    extract = fetch.extract_archive
    monkeypatch.setattr(fetch, "extract_archive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch_sets(data, TASKS)
    monkeypatch.setattr(fetch, "extract_archive", extract)
    assert [path.name for path in (data / "dtd").iterdir()] == []
    assert fetch.fetch_sets(data, TASKS) == {}
    assert read_split(data / "dtd", "dtd", "test") is not None


def fail(error: Exception) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


OFFLINE = fail(URLError("Name or service not known"))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("open_url", OFFLINE, "Name or service not known"),
        ("open_url", lambda url: io.BytesIO(b"<html>"), r"the MD5 of dtd-r1\.0\.1\.tar\.gz is not \w{32}"),
        ("extract_archive", fail(tarfile.ReadError("unexpected end")), "unexpected end"),
        ("extract_archive", lambda path, **_: None, r"the archives hold no dtd/\{labels"),
        (
            "shutil",
            SimpleNamespace(rmtree=shutil.rmtree, disk_usage=lambda _: SimpleNamespace(free=1e9)),
            "1.0 GB of free",
        ),
    ],
    ids=["offline", "md5", "damaged", "layout", "disk"],
)
def test_a_set_that_cannot_be_fetched_is_one_line_and_leaves_nothing(
    name: str, value: Any, reason: str, data: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = serve("dtd")
    monkeypatch.setattr(fetch, name, value)
    message = fetch.fetch_sets(data, TASKS)["dtd"]
    assert "\n" not in message
    assert re.search(reason, message)
    assert message.endswith(f"; fetch {next(iter(info.archives))} by hand, and unpack in {data / 'dtd'}")
    assert list((data / "dtd").iterdir()) == []


def test_a_folder_that_is_not_whole_is_left_alone(data: Path, serve: Any) -> None:
    serve("dtd")
    write(data / "dtd" / "dtd" / "images" / "mine.txt", "x")
    assert "dtd is there, but not whole; move it away" in fetch.fetch_sets(data, TASKS)["dtd"]
    assert (data / "dtd" / "dtd" / "images" / "mine.txt").is_file()


def test_only_what_the_tasks_lack_is_fetched(data: Path, serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    serve("dtd")
    caplog.set_level(logging.INFO)
    assert fetch.fetch_sets(data, ["retrieval", "hierarchical"]) == {}
    write_image(data / "linear_probe" / "dtd" / "train" / "a" / "a.png")
    assert fetch.fetch_sets(data, ["linear_probe"]) == {}
    write(data / "dtd" / "labels" / "test1.txt", "malformed")
    assert fetch.fetch_sets(data, TASKS) == {}  # the task names the row
    assert not caplog.messages
    assert not (data / "dtd" / "dtd").exists()


def test_addresses_without_encryption_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "urlopen", lambda *_, **__: SimpleNamespace(url="http://host/a.tgz"))
    with pytest.raises(OSError, match=r"^http://host/a\.tgz is not https"):
        fetch.open_url("https://host/a.tgz")


def test_archives_are_those_of_torchvision() -> None:
    found = {key: dict(set_infos()[key].archives) for key in FETCHED}
    assert all(url.startswith("https://") for archives in found.values() for url in archives)
    pets, flowers, mnist = datasets.OxfordIIITPet, datasets.Flowers102, datasets.MNIST
    expected = {
        "food101": {datasets.Food101._URL.replace("http:", "https:"): datasets.Food101._MD5},
        "dtd": {datasets.DTD._URL: datasets.DTD._MD5},
        "pets": dict(pets._RESOURCES),
        "flowers102": {flowers._download_url_prefix + name: md5 for name, md5 in flowers._file_dict.values()},
        "stl10": {datasets.STL10.url.replace("http:", "https:"): datasets.STL10.tgz_md5},
        "country211": {datasets.Country211._URL: datasets.Country211._MD5},
        "mnist": {mnist.mirrors[0] + name: md5 for name, md5 in mnist.resources},
        "clevr": {datasets.CLEVRClassification._URL: datasets.CLEVRClassification._MD5},
        "sst2": {datasets.RenderedSST2._URL: datasets.RenderedSST2._MD5},
    }
    assert {key: found[key] for key in expected} == expected
    assert list(found["aircraft"]) == [datasets.FGVCAircraft._URL]  # torchvision has no MD5 of it
    assert set(found) == {*expected, "aircraft", "eurosat"}
