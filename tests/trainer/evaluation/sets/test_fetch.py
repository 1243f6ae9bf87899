"""Sets that are fetched: tiny archives in the layouts of the official ones, without a network."""

import gzip
import hashlib
import io
import logging
import re
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import pytest
from scipy.io import savemat
from torchvision import datasets

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.sets.test_sets import write, write_image
from trainer.evaluation.catalog import SetInfo, set_infos
from trainer.evaluation.sets import fetch
from trainer.evaluation.sets.registry import read_split

TASKS = ("classification",)


def mat(**variables: Any) -> bytes:
    savemat(file := io.BytesIO(), variables)
    return file.getvalue()


LAYOUTS: dict[str, dict[str, bytes]] = {
    "food101": {"food-101/meta/classes.txt": b"apple_pie", "food-101/meta/test.txt": b"apple_pie/1"},
    "aircraft": {
        "fgvc-aircraft-2013b/data/variants.txt": b"707-320",
        "fgvc-aircraft-2013b/data/images_variant_test.txt": b"1 707-320",
    },
    "dtd": {"dtd/labels/test1.txt": b"woven/woven_1.jpg"},
    "pets": {"oxford-iiit-pet/annotations/test.txt": b"cat_1 1 1 1", "oxford-iiit-pet/images/cat_1.jpg": b""},
    "flowers102": {
        "flowers-102/jpg/image_00001.jpg": b"",
        "flowers-102/setid.mat": mat(tstid=[[1, 2]]),
        "flowers-102/imagelabels.mat": mat(labels=[[102, 1]]),
    },
    "stl10": {
        "stl10_binary/class_names.txt": b"airplane",
        "stl10_binary/test_X.bin": bytes(3 * 96 * 96),
        "stl10_binary/test_y.bin": b"\1",
    },
    "country211": {"country211/test/AD/1.jpg": b""},
    "eurosat": {"2750/Forest/1.jpg": b""},
    "mnist": {
        f"MNIST/raw/{part}-{name}-ubyte.gz": gzip.compress(content)
        for part in ("train", "t10k")
        for name, content in (
            ("images-idx3", b"\0\0\b\3\0\0\0\1\0\0\0\1\0\0\0\1."),
            ("labels-idx1", b"\0\0\b\1\0\0\0\1\7"),
        )
    },
    "clevr": {"CLEVR_v1.0/scenes/CLEVR_val_scenes.json": b'{"scenes": []}'},
    "sst2": {"rendered-sst2/test/negative/1.png": b""},
}


def unpack(key: str, folder: Path) -> None:
    for name, content in LAYOUTS[key].items():
        write(folder / name).write_bytes(content)


def pack(files: dict[str, bytes], name: str) -> bytes:
    file = io.BytesIO()
    if name.endswith(".zip"):
        with zipfile.ZipFile(file, "w") as archive:
            for path, content in files.items():
                archive.writestr(path, content)
    else:
        with tarfile.open(fileobj=file, mode="w:gz") as tar:
            for path, content in files.items():
                member = tarfile.TarInfo(path)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], SetInfo]:
    """A function that serves the files of a set in tiny archives, and makes it the only set."""

    def serve(key: str) -> SetInfo:
        info = set_infos()[key]
        files = {path.removeprefix(info.into).lstrip("/"): content for path, content in LAYOUTS[key].items()}
        names = {url: url.rpartition("/")[2] for url in info.archives}
        packed = {path: content for path, content in files.items() if path not in names.values()}
        served = {url: files[name] if name in files else pack(packed, name) for url, name in names.items()}
        sums = {url: hashlib.md5(content).hexdigest() for url, content in served.items()}
        changed = replace(info, archives=sums)
        monkeypatch.setattr(fetch, "set_infos", lambda: {key: changed})
        monkeypatch.setattr(fetch, "open_url", lambda url: io.BytesIO(served[url]))
        return changed

    return serve


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("key", LAYOUTS)
def test_a_missing_set_is_fetched_and_read(key: str, data: Path, serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    info = serve(key)
    write(data / key / "classnames.txt", "what the user has prepared stays")
    caplog.set_level(logging.INFO)
    assert fetch.fetch_sets(data, TASKS) == {}
    assert f"{key}: {info.gb:.2f} GB to {data / key}; license: {info.license}" in caplog.messages[0]
    assert read_split(data / key, key, "test") is not None
    assert sorted(path.name for path in (data / key).iterdir()) == sorted(["classnames.txt", info.folder])
    caplog.clear()
    assert fetch.fetch_sets(data, TASKS) == {}
    assert not caplog.messages  # nothing is missing


def test_what_a_killed_process_left_is_not_read_and_is_fetched_again(
    data: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("dtd")
    unpack("dtd", data / "dtd" / ".fetch")  # as after SIGKILL just before the last step
    write(data / "dtd" / ".fetch.lock")
    assert read_split(data / "dtd", "dtd", "test") is None

    def interrupt(path: Path, **_: Any) -> None:
        unpack("dtd", path.parent)
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
    found = {key: dict(info.archives) for key, info in set_infos().items() if info.archives}
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
    assert set(found) == {*expected, "aircraft", "eurosat"} == LAYOUTS.keys()


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("dtd", "dtd"),
        ("pets", "oxford-iiit-pet"),
        ("aircraft", "fgvc-aircraft-2013b"),
        ("aircraft", "fgvc-aircraft-2013b/data"),
        ("flowers102", "flowers-102"),
    ],
)
def test_the_folder_of_an_archive_may_also_be_that_of_the_set(key: str, place: str, tmp_path: Path) -> None:
    unpack(key, tmp_path)
    inner, whole = (read_split(path, key, "test") for path in (tmp_path / place, tmp_path))
    assert inner is not None
    assert inner == whole


def test_food101_is_read_from_the_lists_of_torchvision_alone(tmp_path: Path) -> None:
    folder = tmp_path / "food-101"
    write(folder / "meta" / "train.json", '{"pho_soup": ["pho_soup/2"], "apple_pie": ["apple_pie/1"]}')
    (folder / "images").mkdir()
    found, theirs = read_split(tmp_path, "food101", "train"), datasets.Food101(tmp_path, "train", loader=Path)
    assert found is not None
    assert [(image.path, n) for image, n in zip(found.images, found.targets, strict=True)] == list(theirs)
    assert found.classes == ["apple pie", "pho soup"]
    write(folder / "meta" / "train.json", "[]")
    with pytest.raises(UserError, match=r"meta/train\.json: AttributeError: .*; download again"):
        read_split(tmp_path, "food101", "train")


@pytest.mark.parametrize("line", ["banded", "a/b/c.jpg"])
def test_a_malformed_row_is_named(line: str, tmp_path: Path) -> None:
    path = write(tmp_path / "labels" / "test1.txt", "woven/woven_1.jpg", line)
    with pytest.raises(UserError, match=f"^{path}: ValueError: .* at '{line}"):
        read_split(tmp_path, "dtd", "test")
