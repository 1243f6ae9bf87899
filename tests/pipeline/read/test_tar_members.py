"""Samples of tars: files with other names, apart, hidden or links are read right or named before the job."""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from pipeline.read import samples
from pipeline.read.config import ReadConfig
from pipeline.read.listing import list_files
from pipeline.read.plan import cut_files
from tests.pipeline.read.test_stage import read_all, write_tar


def write_members(path: Path, names: Sequence[str], links: dict[str, str] | None = None, kind: bytes = b"1") -> Path:
    """A tar (compressed by its suffix) whose members hold their own names; links come last."""
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(name)
            tar.addfile(info, io.BytesIO(name.encode()))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)
    return path


def pairs(path: Path, **config: object) -> list[tuple[bytes | None, str | None]]:
    rows = [read_all(path, n, **config) for n in (1, 100)]
    assert rows[0] == rows[1]
    return [(row["image"], row["caption_original"]) for row in rows[0]]


def tally(path: Path) -> dict[str, int]:
    (file,) = cut_files(list_files(str(path)), 100, None, ReadConfig())
    return dict(file.tally)


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
@pytest.mark.parametrize(
    "hidden", ["._cat.jpg", "d/.DS_Store", "__MACOSX/d/cat.jpg", "x/__MACOSX/cat.txt", ".git/cat.txt"]
)
def test_hidden_members_are_skipped_and_counted(tmp_path: Path, suffix: str, hidden: str) -> None:
    path = write_members(tmp_path / f"a{suffix}", ["./d/cat.jpg", hidden, "./d/cat.txt", "_dog.jpg", "_dog.txt"])
    assert pairs(path) == [(b"./d/cat.jpg", "./d/cat.txt"), (b"_dog.jpg", "_dog.txt")]
    assert tally(path) == {"hidden": 1, "pictures": 2}


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
@pytest.mark.parametrize(
    ("names", "fix", "setting", "expected"),
    [
        (["v.1.0.png", "v.1.0.txt", "v.1.1.png", "v.1.1.txt"], "read.tar_key=last_dot", {"tar_key": "last_dot"},
         [(b"v.1.0.png", "v.1.0.txt"), (b"v.1.1.png", "v.1.1.txt")]),
        (["v.jpg", "v.txt", "v.2.jpg", "v.2.txt"], "read.tar_key=last_dot", {"tar_key": "last_dot"},
         [(b"v.jpg", "v.txt"), (b"v.2.jpg", "v.2.txt")]),
        (["0.before.webp", "0.txt"], "read.image_member=before.webp", {"image_member": ".before.webp"},
         [(b"0.before.webp", "0.txt")]),
        (["0.a.jpg", "0.txt", "1.b.jpg", "1.txt"], "read.image_member=a.jpg", {"image_member": "a.jpg, B.JPG"},
         [(b"0.a.jpg", "0.txt"), (b"1.b.jpg", "1.txt")]),
        (["0.0.jpg", "0.1.jpg", "0.txt"], "read.image_member=0.jpg", {"image_member": "1.jpg"}, [(b"0.1.jpg", "0.txt")]),
        (["0.jpg", "0.prompt.txt"], "read.caption_member=prompt.txt", {"caption_member": "prompt.txt"},
         [(b"0.jpg", "0.prompt.txt")]),
    ],
)  # fmt: skip
def test_other_names_are_an_error_with_the_setting_that_reads_them(
    tmp_path: Path, suffix: str, names: list[str], fix: str, setting: dict, expected: list
) -> None:
    path = write_members(tmp_path / f"a{suffix}", names)
    with pytest.raises(UserError, match=fix) as error:
        read_all(path)
    assert names[0] in str(error.value)
    assert pairs(path, **setting) == expected


@pytest.mark.parametrize(
    "names", [["v.1.json", "v.2.json", "v.3.json"], ["v.json", "v.2.json"], ["v.1.txt", "v.2.txt"]]
)
def test_texts_without_pictures_are_not_merged(tmp_path: Path, names: list[str]) -> None:
    rows = {name: b'{"url": "http://a/%s", "caption": "x"}' % name.encode() for name in names}
    path = write_tar(tmp_path / "a.tar", {**rows, "w.json": rows[names[0]]} if names[0] != "v.1.txt" else rows)
    with pytest.raises(UserError, match=rf"{names[0]}, .*{names[-1]} have the same key.*set read.tar_key=last_dot"):
        read_all(path)
    assert len(read_all(path, tar_key="last_dot")) == len(names) + (names[0] != "v.1.txt")
    if names[0] == "v.json":
        assert read_all(path, caption_member="json")[0]["url"] == "http://a/v.json"


@pytest.mark.parametrize("suffix", ["jfif", "JPE", "pjpeg", "Pjp"])
def test_other_names_of_jpeg_are_pictures_after_the_usual_ones(tmp_path: Path, suffix: str) -> None:
    names = [f"0.{suffix}", "0.txt", f"1.{suffix}", "1.png", "1.txt"]
    path = write_members(tmp_path / "a.tar", names)
    assert pairs(path) == [(names[0].encode(), "0.txt"), (b"1.png", "1.txt")]
    for name in names[:2]:
        (tmp_path / name).write_text(name)
    path.unlink()
    assert pairs(tmp_path) == [(names[0].encode(), "0.txt")]


@pytest.mark.parametrize(
    ("value", "caption"),
    [
        ("null", "0.txt"),
        ('""', "0.txt"),
        ('" \\n\\u00a0"', "0.txt"),
        ("NaN", "0.txt"),
        ('"a cat"', "a cat"),
        ('"0"', "0"),
    ],
)
def test_the_text_beside_a_json_is_the_caption_if_that_has_none(tmp_path: Path, value: str, caption: str) -> None:
    members = {"0.jpg": b"0.jpg", "0.json": f'{{"caption": {value}}}'.encode(), "0.txt": b"0.txt"}
    assert pairs(write_tar(tmp_path / "a.tar", members)) == [(b"0.jpg", caption)]
    (tmp_path / "a.tar").unlink()
    for name, content in members.items():
        (tmp_path / name).write_bytes(content)
    assert pairs(tmp_path) == [(b"0.jpg", caption)]


def test_a_picture_beside_the_picture_of_a_sample_is_counted(tmp_path: Path) -> None:
    path = write_members(tmp_path / "a.tar", ["0.jpg", "0.depth.png", "0.txt", "0.cls", "1.txt", "README"])
    rows = read_all(path)
    assert [row["reason"] for row in rows] == [None, "missing_url", "missing_url"]
    assert [row["detail"] for row in rows[1:]] == [
        "the sample has neither a picture nor a URL: 1.txt", "the sample has neither a picture nor a URL: README"
    ]  # fmt: skip
    assert tally(path) == {".": 1, ".cls": 1, ".depth.png": 1, "pictures": 1, "without": 2}
    assert pairs(path, image_member="depth.png")[0] == (b"0.depth.png", "0.txt")


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
@pytest.mark.parametrize(
    ("names", "named"),
    [
        (["a.jpg", "b.jpg", "a.txt", "b.txt"], "a.jpg and a.txt"),
        (["z.jpg", "z.txt", "a.json", "b.jpg", "b.txt", "a.png"], "a.json and a.png"),
        (["pictures/1.jpg", "pictures/2.jpg", "texts/1.txt", "texts/2.txt"], "pictures/1.jpg and texts/1.txt"),
    ],
)
def test_samples_that_lie_apart_are_an_error(tmp_path: Path, suffix: str, names: list[str], named: str) -> None:
    path = write_members(tmp_path / f"a{suffix}", names)
    with pytest.raises(UserError, match=f"{named} are apart.*--sort=name"):
        read_all(path, skip_damaged=True)


@pytest.mark.parametrize(
    ("names", "fix"),
    [
        (
            ["images/0.jpg", "images/1.jpg", "captions/0.txt", "captions/1.txt", "LICENSE.txt"],
            "give them that, and write",
        ),
        (["p/0.jpg", "p/1.jpg", "p/2.jpg", "t/0.json", "t/1.json"], "give them that, and write"),
        (["caption_1.txt", "caption_2.txt", "image_1.jpg", "image_2.jpg", "image_3.jpg"], "give them that, and write"),
        (["a.jpg", "b.jpg", "c.jpg", "a.txt", "b.txt"], "write the tar with --sort=name"),
    ],
)
def test_samples_that_lie_apart_are_an_error_if_some_are_not_complete(
    tmp_path: Path, names: list[str], fix: str
) -> None:
    with pytest.raises(UserError, match=f"are apart: .* same folder; {fix}"):
        read_all(write_members(tmp_path / "a.tar", names))


def test_the_fix_for_samples_apart_helps(tmp_path: Path) -> None:
    names = ["a.jpg", "a.seg.png", "a.txt"]
    path = write_members(tmp_path / "a.tar", names)
    with pytest.raises(UserError, match=r"a\.jpg and a\.txt are apart.*; leave out read.tar_key=last_dot"):
        read_all(path, tar_key="last_dot")
    assert pairs(path) == [(b"a.jpg", "a.txt")]


@pytest.mark.parametrize(
    "names", [["0.jpg", "1.jpg", "2.jpg", "README.txt"], ["0.json", "1.json"], ["0.txt", "x.jpg", "x.txt"]]
)
def test_pictures_alone_and_texts_alone_are_samples(tmp_path: Path, names: list[str]) -> None:
    write_members(tmp_path / "a.tar", names)
    assert sum(tally(tmp_path / "a.tar").values()) == len({name.split(".")[0] for name in names})


def test_a_complete_sample_with_the_key_of_another_is_a_row(tmp_path: Path) -> None:
    names = ["a.jpg", "a.txt", "b.jpg", "b.txt"]
    assert len(pairs(write_members(tmp_path / "a.tar", [*names, *names]))) == 4


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_a_link_to_a_picture_is_an_error_and_another_link_is_counted(tmp_path: Path, kind: bytes) -> None:
    path = write_members(tmp_path / "a.tar", ["0.jpg", "0.txt"], {"latest": "0.jpg"}, kind)
    assert pairs(path) == [(b"0.jpg", "0.txt")]
    assert tally(path) == {"links": 1, "pictures": 1}
    write_members(path, ["0.jpg", "0.txt", "1.txt"], {"1.jpg": "0.jpg"}, kind)
    with pytest.raises(UserError, match=r"1\.jpg is a link to 0\.jpg; write the tar with --hard-dereference"):
        read_all(path)


def test_pictures_of_a_tar_that_are_in_no_sample_end_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_members(tmp_path / "a.tar", ["0.jpg", "0.txt", "1.jpg", "1.txt"])
    found = samples.find_samples

    def losing(*arguments: object) -> object:
        yield from list(found(*arguments))[:1]  # type: ignore[arg-type]

    monkeypatch.setattr(samples, "find_samples", losing)
    with pytest.raises(UserError, match="it has 2 pictures, its samples 1"):
        read_all(path)


def test_many_layouts_are_counted_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MAX_LAYOUTS", 3)
    monkeypatch.setattr(samples, "MAX_KINDS", 5)
    path = write_members(tmp_path / "a.tar", [name for i in range(9) for name in (f"{i}.jpg", f"{i}.x{i}")])
    assert sum(tally(path).values()) == 18
    assert len(tally(path)) <= 6
