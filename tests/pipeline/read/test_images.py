"""Images in parquet columns and in files and objects; hostile paths; folders of images; captions; listings."""

import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hypergrit_common.errors import UserError
from pipeline.read import source
from pipeline.read.config import ReadConfig
from pipeline.read.plan import plan_shards
from pipeline.read.roots import Location, RefusedError, Roots, open_local
from pipeline.read.samples import list_folder
from pipeline.read.source import read_parts, read_shard
from tests.memory import memory_below
from tests.pipeline.read.test_stage import read_all

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def hugging_face(path: Path, images: list[dict[str, Any] | None], **columns: list[Any]) -> Path:
    """Write a parquet file as `datasets` does: images in a column of structs."""
    values = columns or {"text": [f"a cat {i}" for i in range(len(images))]}
    table = pa.table({"image": pa.array(images, IMAGE), **values})
    pq.write_table(table, path, row_group_size=3)
    return path


@pytest.mark.parametrize("rows_per_shard", [1, 4, 100])
def test_images_of_a_parquet_column_are_read(tmp_path: Path, rows_per_shard: int) -> None:
    images = [{"bytes": bytes([i]) * 1000, "path": f"{i}.jpg"} for i in range(10)]
    rows = read_all(hugging_face(tmp_path / "a.parquet", images), rows_per_shard)
    assert [row["image"] for row in rows] == [image["bytes"] for image in images]
    assert [row["caption_original"] for row in rows] == [f"a cat {i}" for i in range(10)]
    assert json.loads(rows[3]["extra"]) == {"image": {"path": "3.jpg"}}


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_images_may_be_in_a_plain_binary_column(tmp_path: Path, kind: pa.DataType) -> None:
    pq.write_table(pa.table({"jpg": pa.array([b"one", None], kind), "caption": ["x", "y"]}), tmp_path / "a.parquet")
    rows = read_all(tmp_path, image_column="jpg")
    assert [(row["image"], row["reason"]) for row in rows] == [(b"one", None), (None, "missing_url")]


def test_an_image_column_beside_a_url_column_is_used_and_the_others_are_downloaded(tmp_path: Path) -> None:
    columns = {"url": ["http://a", "http://b"], "caption": ["x", "y"]}
    path = hugging_face(tmp_path / "a.parquet", [{"bytes": b"GIF89a", "path": None}, None], **columns)
    rows = read_all(path)
    assert rows == read_all(path, image_column="image")
    assert [(row["image"], row["url"], row["reason"]) for row in rows] == [
        (b"GIF89a", "http://a", None),
        (None, "http://b", None),  # is downloaded
    ]


def test_a_row_whose_image_has_a_path_only_is_downloaded_if_no_place_is_named(tmp_path: Path) -> None:
    columns = {"url": ["http://a", None, "s3://bucket/c"], "caption": ["x", "y", "z"]}
    path = hugging_face(tmp_path / "a.parquet", [{"bytes": None, "path": "y.jpg"}] * 3, **columns)
    rows = read_all(path, image_column="image")
    assert [(row["url"], row["reason"]) for row in rows] == [
        ("http://a", None),
        (None, "image_refused"),
        ("s3://bucket/c", "image_refused"),
    ]
    rows = read_all(path, image_column="image", image_roots=(str(tmp_path),))
    assert [row["reason"] for row in rows] == [None, "image_not_found", "image_not_found"]


def test_huge_images_of_a_parquet_column_cost_their_rows_and_no_memory(tmp_path: Path) -> None:
    sizes = [1000, 30_000_000, 1000]
    path = hugging_face(tmp_path / "a.parquet", [{"bytes": bytes(n), "path": None} for n in sizes])
    with memory_below(10_000_000):
        rows = read_all(path, max_image_bytes=1_000_000)
    assert [row["reason"] for row in rows] == [None, "bad_row", None]
    assert "the image has 3000000" in rows[1]["detail"]


def test_a_shard_with_images_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PART_BYTES", 2000)
    path = hugging_face(tmp_path / "a.parquet", [{"bytes": bytes([i]) * 1000, "path": None} for i in range(7)])
    (plan,) = plan_shards(str(path), 100, None, ReadConfig())
    assert [table.num_rows for table, _ in read_parts(plan, ReadConfig())] == [2, 2, 2, 1]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with images, links and a pipe, beside a secret file."""
    folder = tmp_path / "images"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.jpg").write_bytes(b"image a")
    (folder / "sub" / "b c%41.jpg").write_bytes(b"image b")
    (folder / "%2e%2e").mkdir()
    (tmp_path / "secret.txt").write_bytes(b"secret")
    (tmp_path / "images2").mkdir()
    (tmp_path / "images2" / "s.jpg").write_bytes(b"secret")
    (folder / "out.jpg").symlink_to("../secret.txt")
    (folder / "out").symlink_to(tmp_path / "images2")
    (folder / "in.jpg").symlink_to("sub/b c%41.jpg")
    (folder / "loop.jpg").symlink_to("loop.jpg")
    os.mkfifo(folder / "pipe.jpg")
    return folder


def refer(folder: Path, *values: str, column: str = "image_path") -> Path:
    path = folder.parent / "rows.jsonl"
    path.write_text("".join(json.dumps({column: value, "caption": "x"}) + "\n" for value in values))
    return path


def test_files_below_a_root_are_read_by_path_relative_path_and_url(root: Path) -> None:
    values = [
        "a.jpg",
        f"{root}/sub/b c%41.jpg",
        f"file://{root}/sub/b%20c%2541.jpg",
        f"file://localhost{root}/a.jpg",
        "in.jpg",
    ]
    for column in ("image_path", "url", "image", "file_name"):
        used = values if column != "url" else [value for value in values if ":" in value]
        rows = read_all(refer(root, *used, column=column), 2, image_roots=(str(root),))
        assert [row["image"] for row in rows] == [b"image a" if "a.jpg" in x else b"image b" for x in used], column


@pytest.mark.parametrize("column", ["image_path", "FilePath"])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_file_comes_before_a_web_url_which_serves_rows_without_the_file(root: Path, column: str, suffix: str) -> None:
    names = ["a.jpg", "none.jpg", None, "", "../secret.txt", "pipe.jpg", "sub"]
    records = [{"url": f"https://h/{i}.jpg", column: name, "text": "x"} for i, name in enumerate(names)]
    path = root.parent / f"rows.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    else:
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    rows = read_all(path, image_roots=(str(root),))
    assert [row["image"] for row in rows] == [b"image a", *[None] * 6]
    assert [(row["url"], row["reason"]) for row in rows] == [(record["url"], None) for record in records]


def test_a_name_beside_the_url_of_a_store_is_no_path(root: Path) -> None:
    path = root.parent / "rows.csv"
    path.write_text(f"link,filename,caption\nfile://{root}/a.jpg,cat.jpg,x\nfile://{root}/sub/b%20c%2541.jpg,a.jpg,y\n")
    assert [row["image"] for row in read_all(path, image_roots=(str(root),))] == [b"image a", b"image b"]
    rows = read_all(path, image_roots=(str(root),), image_path_column="filename")
    assert [row["reason"] or row["image"] for row in rows] == ["image_not_found", b"image a"]


@pytest.mark.parametrize("url", [None, "https://h/0.png"])
def test_an_empty_picture_is_named_unless_it_can_be_fetched(tmp_path: Path, url: str | None) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    text = json.dumps({"caption": "x", "url": url})
    (folder / "0.png").touch()
    (folder / "0.json").write_text(text)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(folder / "0.png", "b/0.png")
        tar.add(folder / "0.json", "b/0.json")
    (tmp_path / "b.jsonl").write_text(json.dumps({"image_path": "pictures/0.png", **json.loads(text)}))
    pq.write_table(pa.Table.from_pylist([{"img": b"", "caption": "x"}]), tmp_path / "c.parquet")
    pq.write_table(pa.Table.from_pylist([{"img": {"bytes": b"", "path": ""}, "caption": "x"}]), tmp_path / "d.parquet")
    expected = {"a.tar": "b/0.png is empty", "pictures": "0.png is empty", "b.jsonl": "pictures/0.png is empty"}
    if url is None:
        expected |= dict.fromkeys(("c.parquet", "d.parquet"), "the column 'img' is empty")
    for name, detail in expected.items():
        (row,) = read_all(tmp_path / name, image_roots=(str(tmp_path),))
        wanted = (None, None) if url else ("missing_url", detail)
        assert (row["reason"], row["detail"], row["url"]) == (*wanted, url), name
        assert not row["image"]


HOSTILE = [
    "../secret.txt", "sub/../../secret.txt", "/etc/passwd", "{parent}/secret.txt", "{parent}/images2/s.jpg", "out.jpg",
    "out/s.jpg", "{root}/out/s.jpg", "{root}/../secret.txt", "file://{root}/../secret.txt", "file:///etc/passwd",
    "file:/etc/passwd", "FILE:///etc/passwd", "file://{root}/%2e%2e/secret.txt", "file://{root}/%2E%2E%2Fsecret.txt",
    "file://{root}%2f..%2fsecret.txt", "file://example.org{root}/a.jpg", "file:////etc/passwd", "pipe.jpg", "/dev/zero",
    "/proc/self/environ", "local:///etc/passwd", "memory://bucket/a.jpg", "s3://bucket/a.jpg", "gs://bucket/a.jpg",
    "a.jpg\0.png", "file://{root}/a.jpg%00", "sub/\ud800.jpg", "simplecache::file:///etc/passwd", "\n/etc/passwd",
    "http:/x", "data:/text", "file://{root}/%ff.jpg", "filecache://x", "zip://a::file:///etc/passwd",
]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE)
def test_nothing_outside_of_the_roots_is_read(root: Path, value: str) -> None:
    text = value.format(root=root, parent=root.parent)
    for column in ("image_path", "url"):
        rows = read_all(refer(root, text, column=column), image_roots=(str(root),))
        assert rows[0]["image"] is None
        if column == "image_path":
            assert rows[0]["reason"] in ("image_refused", "image_not_found", "bad_row"), rows[0]
        assert "secret" not in (rows[0]["detail"] or "").replace("secret.txt", "")


@pytest.mark.parametrize(
    "value", ["none.jpg", "sub", "%2e%2e/secret.txt", "a.jpg/b", "loop.jpg", "y" * 300, "~/x", "..."]
)
def test_a_missing_file_is_named(root: Path, value: str) -> None:
    rows = read_all(refer(root, value), image_roots=(str(root),))
    assert rows[0]["reason"] in ("image_not_found", "image_refused"), rows
    assert rows[0]["detail"].startswith(value)


def test_without_roots_nothing_is_read(root: Path) -> None:
    with pytest.raises(UserError, match=r"rows\.jsonl has paths of images in its column 'image_path'.*image_roots"):
        read_all(refer(root, "a.jpg"))
    row = read_all(refer(root, f"file://{root}/a.jpg", column="url"))[0]
    assert (row["image"], row["reason"]) == (None, None)  # the download stage drops it as invalid_url


def test_a_folder_that_becomes_a_link_is_refused_at_the_open_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Location(Roots([str(root)]).locate("a.jpg", "").root, f"{root}/out/s.jpg")
    monkeypatch.setattr("pipeline.read.roots.os.path.realpath", lambda path: str(path))  # as if it changed afterwards
    with pytest.raises(RefusedError, match="a link leads out"):
        open_local(place)


def test_a_relative_path_starts_at_its_input_file_if_that_is_below_a_root(root: Path) -> None:
    for folder, name in ((root / "sub", "b c%41.jpg"), (root.parent, "a.jpg")):
        path = folder / "rows.csv"
        path.write_text(f"file_name,text\n{name},x\n")
        assert read_all(path, image_roots=(str(root),))[0]["image"]


def test_roots_are_checked(tmp_path: Path) -> None:
    for bad, message in (
        (f"{tmp_path}/none", "is not a folder"),
        ("https://example.org/x", "without this setting"),
        ("s3://", "names no bucket"),
        ("s3://key:secret@bucket/x", "user name or a password"),
        ("zip://a::file:///x", "chain"),
    ):
        with pytest.raises(UserError, match=message) as found:
            Roots([bad])
        assert "secret@" not in str(found.value)


@pytest.fixture
def store() -> str:
    fs = fsspec.filesystem("memory")
    for name in (
        "bucket/set/a.jpg",
        "bucket/set/sub/b.jpg",
        "bucket/other/s.jpg",
        "bucket/set2/s.jpg",
        "bucket2/s.jpg",
    ):
        fs.pipe_file(f"/{name}", name.encode())
    return "memory://bucket/set"


def test_objects_below_a_root_are_read_and_no_others(root: Path, store: str) -> None:
    good = [f"{store}/a.jpg", f"{store}/sub/b.jpg", "sub/b.jpg"]
    bad = [
        "memory://bucket/other/s.jpg", "memory://bucket/set2/s.jpg", "memory://bucket2/s.jpg", f"{store}/../other/s.jpg",
        f"{store}/%2e%2e/other/s.jpg", f"{store}/%252e%252e/other/s.jpg", f"{store}//a.jpg", f"{store}/./a.jpg",
        f"{store}/a.jpg?versionId=1", f"{store}/a.jpg#1", f"{store}/..%2fother", f"{store}\\..\\other/s.jpg",
        "memory:/bucket/set/a.jpg", "memory:///bucket/set/a.jpg", f"{store}/a.jpg::memory://bucket2/s.jpg", "/etc/passwd",
    ]  # fmt: skip
    rows = read_all(refer(root, *good, *bad, f"{store}/none.jpg", f"{store}/sub"), image_roots=(store,))
    assert [row["image"] for row in rows[:3]] == [b"bucket/set/a.jpg", b"bucket/set/sub/b.jpg", b"bucket/set/sub/b.jpg"]
    assert {row["reason"] for row in rows[3:-2]} == {"image_refused"}
    assert [row["reason"] for row in rows[-2:]] == ["image_not_found"] * 2


def test_a_store_that_fails_is_not_the_fault_of_a_row(root: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> bytes:
        raise OSError("connection reset")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", fail)
    with pytest.raises(UserError, match=r"cannot read the image memory://bucket/set/a\.jpg: connection reset"):
        read_all(refer(root, f"{store}/a.jpg"), image_roots=(store,))


def test_many_large_files_are_not_in_memory_together(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "GROUP_BYTES", 2_000_000)
    monkeypatch.setattr(source, "PART_BYTES", 1)
    for i in range(16):
        (root / f"{i}.jpg").write_bytes(bytes(1_000_000))
    path = refer(root, *(f"{i}.jpg" for i in range(16)), "a.jpg")
    config = ReadConfig(image_roots=(str(root),))
    (plan,) = plan_shards(str(path), 100, None, config)
    with memory_below(8_000_000):
        assert sum(table.num_rows for table, _ in read_parts(plan, config)) == 17
    rows = read_all(path, image_roots=(str(root),), max_image_bytes=1000)
    assert [row["reason"] for row in rows] == ["bad_row"] * 16 + [None]


def test_rows_that_are_not_selected_read_no_file(root: Path) -> None:
    rows = read_all(refer(root, "a.jpg", "none.jpg"), image_roots=(str(root),), where="image_path == 'a.jpg'")
    assert [row["reason"] for row in rows] == [None, "not_selected"]


def image_folder(folder: Path) -> Path:
    (folder / "deep" / "er").mkdir(parents=True)
    for i, name in enumerate(["1.jpg", "2.PNG", "3.v1.jpeg", "deep/4.webp", "deep/er/5.jpg"]):
        (folder / name).write_bytes(bytes([i]) * 100)
    (folder / "1.txt").write_text("a cat\n")
    (folder / "2.json").write_text('{"caption": "a dog", "score": 0.5, "url": "http://a/2"}')
    (folder / "2.txt").write_text("not used")
    (folder / "3.v1.txt").write_text("größe")
    (folder / "deep/4.json").write_text("{broken")
    (folder / "notes.txt").write_text("no image")
    (folder / "_stats.json").write_text("{}")
    (folder / ".hidden.jpg").write_bytes(b"x")
    return folder


@pytest.mark.parametrize("rows_per_shard", [1, 2, 100])
def test_a_folder_of_images_has_the_captions_beside_them(tmp_path: Path, rows_per_shard: int) -> None:
    folder = image_folder(tmp_path / "in")
    rows = read_all(folder, rows_per_shard)
    assert [row["image"][0] if row["image"] else None for row in rows] == [0, 1, 2, None, 4]
    assert [row["caption_original"] for row in rows] == ["a cat\n", "a dog", "größe", None, None]
    assert [row["reason"] for row in rows] == [None, None, None, "bad_row", None]
    assert (rows[1]["url"], json.loads(rows[1]["extra"])) == ("http://a/2", {"score": 0.5})
    assert [row["source"] for row in rows] == ["0/", "0/", "0/", "0/deep/", "0/deep/er/"]
    assert "4.json: not valid JSON" in rows[3]["detail"]


def test_a_glob_of_a_part_of_a_folder_of_images_is_an_error(tmp_path: Path) -> None:
    for name in ("a1.png", "a2.png", "b1.png"):
        (tmp_path / name).write_bytes(b"image")
    with pytest.raises(UserError, match=r"a\[12\]\.png' matches 2 of the . images of .*give the folder"):
        read_all(f"{tmp_path}/a[12].png")
    assert len(read_all(tmp_path)) == len(read_all(f"{tmp_path}/{{a,b}}*")) == len(read_all(f"{tmp_path}/*.png")) == 3


def test_links_out_of_an_image_folder_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    for name in ("1.jpg", "3.jpg"):
        (folder / name).write_bytes(b"x")
    (folder / "1.txt").symlink_to("../secret.txt")
    (folder / "2.jpg").symlink_to("../secret.txt")
    rows = read_all(folder)
    assert [row["reason"] for row in rows] == ["bad_row", "image_refused", None]
    assert [row["caption_original"] for row in rows] == [None] * 3


def test_a_folder_in_a_store_is_read(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    fs.put(f"{image_folder(tmp_path / 'in')}/", "/bucket3/in/", recursive=True)
    rows = read_all("memory://bucket3/in", 2)
    assert [row["caption_original"] for row in rows] == ["a cat\n", "a dog", "größe", None, None]
    assert rows[0]["image"] == bytes(100)


def test_a_change_of_an_image_folder_is_noticed(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "in")
    (plan, *_) = plan_shards(str(folder), 3, None, ReadConfig())
    known = replace(plan, pieces=(replace(plan.pieces[0], version=list_folder(f"{folder}/").version),))
    assert len(read_shard(known, ReadConfig())) == 3
    os.utime(folder / "1.jpg", ns=(2, 2))
    assert len(read_shard(plan, ReadConfig())) == 3  # without a version, as in a plan that no job has recorded
    with pytest.raises(UserError, match="has changed since the job was planned"):
        read_shard(known, ReadConfig())


def test_braces_stand_for_several_files(tmp_path: Path) -> None:
    for i in range(8, 12):
        (tmp_path / f"{i:03}.csv").write_text(f"url,caption\nhttp://a/{i},x\n")
    assert [row["url"][-2:] for row in read_all(tmp_path / "{008..010}.csv")] == ["/8", "/9", "10"]
    assert len(read_all(tmp_path / "{008,01*}.csv")) == 3
    with pytest.raises(UserError, match=r"012\.csv' does not exist"):
        read_all(tmp_path / "{008..012}.csv")
    with pytest.raises(UserError, match="stands for 10000000000 files"):
        read_all(tmp_path / "{1..100000}{1..100000}.csv")
    with pytest.raises(UserError, match="close each brace"):
        read_all(tmp_path / "{008..010.csv")
    (tmp_path / "{008..010}.csv").write_text("url,caption\nhttp://a,literal\n")
    assert [row["caption_original"] for row in read_all(tmp_path / "{008..010}.csv")] == ["literal"]


CAPTIONS = ["a dog", " ", "a small cat", None, "a big dog "]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("first", "a dog"), ("longest", "a small cat"), ("join", "a dog a small cat a big dog")],
)
def test_one_of_several_captions_is_chosen(tmp_path: Path, rule: str, expected: str) -> None:
    row = {"url": "http://a", "caption": CAPTIONS}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    assert [row["caption_original"] for row in read_all(tmp_path, captions=rule)] == [expected]


def test_a_list_of_captions_without_a_rule_is_a_bad_row_that_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"url": "http://a", "caption": ["x"]}))
    (row,) = read_all(tmp_path)
    assert "the caption is a list, not text; set read.captions=first, longest, join, random or all" in row["detail"]


def test_random_captions_depend_on_seed_and_content_and_are_spread(tmp_path: Path) -> None:
    rows = [{"url": f"http://a/{i}", "caption": ["a", "b", "c"]} for i in range(300)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rows[::-1])))
    chosen = [
        [row["caption_original"] for row in read_all(tmp_path / name, captions="random")]
        for name in ("a.jsonl", "b.jsonl")
    ]
    assert chosen[0] == chosen[1][::-1]
    counts = np.unique(chosen[0], return_counts=True)[1]
    assert counts.min() > 60
    assert [
        row["caption_original"] for row in read_all(tmp_path / "a.jsonl", captions="random", captions_seed=1)
    ] != chosen[0]


def test_captions_of_several_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("url,text,blip,other\nhttp://a,,a dog,y\nhttp://b,x,a cat,y\n")
    rows = read_all(tmp_path, captions="first", caption_column="text,blip")
    assert [row["caption_original"] for row in rows] == ["a dog", "x"]
    assert json.loads(rows[0]["extra"]) == {"other": "y"}
    with pytest.raises(UserError, match="needs a rule"):
        ReadConfig(caption_column="text,blip")
    with pytest.raises(UserError, match=r"has no caption column \(looked for 'blup'"):
        read_all(tmp_path, captions="first", caption_column="text,blup")


@pytest.mark.parametrize("value", [[1], [["x"]], [{"raw": "x"}], {"a": "b"}])
def test_captions_of_other_types_are_bad_rows(tmp_path: Path, value: Any) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"url": "http://a", "caption": value}))
    assert read_all(tmp_path, captions="longest")[0]["reason"] == "bad_row"


def test_given_boxes_need_the_caption_that_they_refer_to(tmp_path: Path) -> None:
    row = {"url": "http://a", "caption": ["a cat", "a dog"], "noun_chunks": [[0, 5, 0.1, 0.2, 0.3, 0.4, 0.9]]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    assert "set read.captions=first" in read_all(tmp_path, captions="join")[0]["detail"]
    assert read_all(tmp_path, captions="first")[0]["caption_original"] == "a cat"
