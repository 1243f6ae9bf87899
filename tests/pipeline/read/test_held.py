"""Pictures that the input holds are used; a URL beside them is kept, and fetched only for rows without one."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.read.listing import list_files
from pipeline.stages.download.stage import Download, DownloadConfig
from schemas.rows import READ
from tests.hypergrit_common.test_image_types import encoded
from tests.pipeline.read.test_nested import lines
from tests.pipeline.read.test_stage import error_message, read_all, write_tar

PICTURE = encoded("JPEG")
URLS = ["http://x.invalid/0", "http://x.invalid/1"]


def table(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table({"url": URLS, "caption": ["x", "y"], **columns}), path)
    return path


def found(rows: list[dict[str, Any]]) -> list[tuple[Any, Any, Any]]:
    return [(row["image"], row["url"], row["reason"]) for row in rows]


EXPECTED = [(PICTURE, URLS[0], None), (None, URLS[1], None)]
STRUCT = pa.struct({"bytes": pa.binary(), "path": pa.string()})


@pytest.mark.parametrize("name", ["image", "JPG", "png", "webp", "img", "image_bytes", "bytes", "images"])
@pytest.mark.parametrize("kind", [pa.binary(), STRUCT, pa.list_(STRUCT)])
def test_bytes_in_a_column_with_the_name_of_one_are_used(tmp_path: Path, name: str, kind: pa.DataType) -> None:
    value: Any = PICTURE if kind == pa.binary() else {"bytes": PICTURE, "path": "a.jpg"}
    column = pa.array([[value] if kind == pa.list_(STRUCT) else value, None], kind)
    assert found(read_all(table(tmp_path / "a.parquet", **{name: column}))) == EXPECTED


def test_columns_with_such_names_that_hold_no_picture_travel_along(tmp_path: Path) -> None:
    more = {"bytes": [12, 13], "image": ["a/b.jpg", None], "png": [True, False], "jpg": [PICTURE, None]}
    rows = read_all(table(tmp_path / "a.parquet", **more))
    assert found(rows) == EXPECTED
    assert json.loads(rows[0]["extra"]) == {"bytes": 12, "image": "a/b.jpg", "png": True}


def no_pictures(kind: str) -> list[bytes]:
    hashes = [hashlib.sha256(name.encode()).digest() for name in URLS]
    return {"hash": hashes, "hex": [found.hex().encode() for found in hashes], "small": [b"x", b"thumb"]}[kind]


@pytest.mark.parametrize("config", [{}, {"image_column": "image"}])
@pytest.mark.parametrize("kind", ["hash", "hex", "small"])
def test_bytes_that_are_no_picture_do_not_stand_in_the_way_of_the_url(
    tmp_path: Path, kind: str, config: dict[str, Any]
) -> None:
    rows = read_all(table(tmp_path / "a.parquet", image=no_pictures(kind)), **config)
    assert [(*row, more["extra"]) for row, more in zip(found(rows), rows, strict=True)] == [
        (None, url, None, None) for url in URLS
    ]
    pq.write_table(pa.table({"image": no_pictures(kind), "caption": ["x", "y"]}), tmp_path / "b.parquet")
    assert [row["image"] for row in read_all(tmp_path / "b.parquet", **config)] == no_pictures(kind)


@pytest.mark.parametrize("kind", ["JPEG", "BMP", "PNG"])
def test_base64_in_a_column_of_bytes_is_a_picture_and_damaged_base64_leaves_the_url(tmp_path: Path, kind: str) -> None:
    text = base64.b64encode(encoded(kind))
    for image in (text, text.decode(), f"data:image/x;base64,{text.decode()}".encode()):
        damaged = image[:-9] + ("!" if isinstance(image, str) else b"!")
        rows = read_all(table(tmp_path / "a.parquet", image=[image, damaged]))
        assert found(rows) == [(encoded(kind), URLS[0], None), (None, URLS[1], None)]
        assert [row["extra"] for row in rows] == [None, None]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP"])
def test_bytes_as_text_of_python_and_hexadecimal_digits_are_pictures(tmp_path: Path, kind: str) -> None:
    picture = encoded(kind)
    code = base64.b64encode(picture)
    digits = picture.hex()
    texts = [str(picture), str(code), f'b"{code.decode()}"', digits, digits.upper(), f"\\x{digits}", f"0x{digits}"]
    rows = read_all(lines(tmp_path / "a.jsonl", [{"url": URLS[0], "caption": "x", "image": text} for text in texts]))
    assert [row[0] == picture for row in found(rows)] == [True] * len(texts)
    assert {row["extra"] for row in rows} == {None}
    for text in (hashlib.sha512(picture).hexdigest(), str(b"no picture" * 9), "0x" + "0" * 64):
        (row,) = read_all(lines(tmp_path / "b.jsonl", [{"url": URLS[0], "caption": "x", "image": text}]))
        assert (row["image"], json.loads(row["extra"])) == (None, {"image": text})


def test_pictures_that_are_not_used_stay_out_of_the_other_columns(tmp_path: Path) -> None:
    large = [[{"bytes": PICTURE + bytes(2_000_000), "path": f"{i}.jpg"} for i in range(3)], []]
    path = table(tmp_path / "a.parquet", images=pa.array(large, pa.list_(STRUCT)), n=[1, 2])
    assert found(read_all(path, max_image_bytes=3_000_000)) == [(None, url, None) for url in URLS]
    rows = read_all(path, max_row_bytes=1_000_000)
    assert found(rows) == [(None, url, None) for url in URLS]
    assert [json.loads(row["extra"]) for row in rows] == [
        {"images": [{"path": "0.jpg"}, {"path": "1.jpg"}, {"path": "2.jpg"}], "n": 1},
        {"images": [], "n": 2},
    ]


@pytest.mark.parametrize("column", ["bytes", "png", "images", "image", "webp"])
@pytest.mark.parametrize("values", [["2050", "17"], ["yes", ""], [None, None], [[], {}]])
def test_columns_without_pictures_leave_the_image_to_the_column_of_paths(
    tmp_path: Path, column: str, values: list[Any]
) -> None:
    for i in range(2):
        (tmp_path / f"{i}.jpg").write_bytes(PICTURE)
    rows = [{"file_name": f"{i}.jpg", "caption": "x", column: values[i]} for i in range(2)]
    lines(tmp_path / "metadata.jsonl", rows)
    text = "".join(f"{values[i] or ''},{i}.jpg,x\n" for i in range(2))
    (tmp_path / "b.csv").write_text(f"{column},image_path,caption\n{text}")
    lines(tmp_path / "c.jsonl", rows)
    for name, roots in (("metadata.jsonl", ()), ("b.csv", (str(tmp_path),)), ("c.jsonl", (str(tmp_path),))):
        assert found(read_all(tmp_path / name, image_roots=roots)) == [(PICTURE, None, None)] * 2, name
    lines(tmp_path / "d.jsonl", [{"filename": "", "caption": "x", "image": "1.jpg"}])
    assert found(read_all(tmp_path / "d.jsonl", image_roots=(str(tmp_path),))) == [(PICTURE, None, None)]


def test_several_pictures_of_a_row_are_named_if_one_is_needed(tmp_path: Path) -> None:
    pictures = [[PICTURE, b"other"], [PICTURE]]
    pq.write_table(pa.table({"images": pictures, "caption": ["x", "y"]}), tmp_path / "a.parquet")
    rows = read_all(tmp_path)
    assert "the row has 2 images; name one, such as read.image_column=images[0]" in rows[0]["detail"]
    assert [row["image"] for row in read_all(tmp_path, image_column="images[0]")] == [PICTURE, PICTURE]
    rows = read_all(table(tmp_path / "a.parquet", images=pictures))
    assert found(rows) == [(None, URLS[0], None), (PICTURE, URLS[1], None)]


def test_a_held_picture_is_not_fetched_and_keeps_its_hash(tmp_path: Path) -> None:
    rows = read_all(table(tmp_path / "a.parquet", image=[PICTURE, PICTURE]))
    (kept, repeated) = Download(DownloadConfig())(pa.Table.from_pylist(rows, schema=READ)).to_pylist()
    assert (kept["status"], kept["url"]) == ("kept", URLS[0])
    assert (repeated["reason"], kept["sha256"]) == (None, repeated["sha256"])  # another caption


def files(folder: Path) -> Path:
    """Write an output of img2dataset's format `files`: two shards, of which the second lost a picture."""
    for shard, names in (("00000", "01"), ("00001", "2")):
        (folder / shard).mkdir(parents=True)
        for name in names:
            (folder / shard / f"{name}.jpg").write_bytes(PICTURE)
            (folder / shard / f"{name}.txt").write_text(f"caption {name}")
            (folder / shard / f"{name}.json").write_text(json.dumps({"url": URLS[0], "key": name}))
        table(folder / f"{shard}.parquet")
        (folder / f"{shard}_stats.json").write_text("{}")
    return folder


def test_folders_of_img2dataset_are_read_as_they_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = read_all(files(tmp_path / "files"))
    assert found(rows) == [(PICTURE, URLS[0], None)] * 3
    assert [row["caption_original"] for row in rows] == ["caption 0", "caption 1", "caption 2"]
    (tmp_path / "parquet").mkdir()
    table(tmp_path / "parquet/00000.parquet", jpg=[PICTURE, None], status=["success", "failed_to_download"])
    (tmp_path / "parquet/00000_stats.json").write_text("{}")
    assert found(read_all(tmp_path / "parquet")) == EXPECTED
    assert caplog.text == ""


def test_what_is_not_read_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files(tmp_path)
    (tmp_path / "00000/clip.mp4").write_bytes(b"x")
    assert len(list_files(str(tmp_path))) == 2
    assert "1 file (1 .mp4) of the input are not read, only its folders of images (2)" in caplog.text
    caplog.clear()
    table(tmp_path / "urls.parquet")  # the list that was downloaded
    table(tmp_path / "00002.parquet")  # a shard of which no picture could be downloaded
    assert [path for path, _ in list_files(str(tmp_path))] == [f"{tmp_path}/00000/", f"{tmp_path}/00001/"]
    assert "3 files (2 .parquet, 1 .mp4) of the input are not read, only its folders of images (2)" in caplog.text
    for shard in ("00000", "00001"):
        (tmp_path / shard).rename(tmp_path / f"of_{shard}")  # no folders of shards
    assert len(list_files(str(tmp_path))) == 4
    assert "only its tables (4)" in caplog.text
    (tmp_path / "metadata").mkdir()  # as DataComp
    table(tmp_path / "metadata/0.parquet")
    write_tar(tmp_path / "00000.tar", {"0.jpg": b"x", "0.txt": b"y"})
    assert len(list_files(str(tmp_path))) == 1
    assert "only its tars (1)" in caplog.text


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_pictures_beside_a_metadata_file_are_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train/0.jpg").write_bytes(PICTURE)
    (tmp_path / "secret.jpg").write_bytes(PICTURE)
    names = ["0.jpg", "1.jpg", "../secret.jpg"]
    rows = [{"file_name": name, "text": "a dog"} for name in names]
    lines(tmp_path / "train/metadata.jsonl", rows)
    (tmp_path / "train/metadata.csv").write_text("file_name,text\n" + "".join(f"{name},a dog\n" for name in names))
    path = tmp_path / f"train/metadata.{kind}"
    assert [row["reason"] for row in read_all(path)] == [None, "image_not_found", "image_refused"]
    lines(path.with_suffix(".jsonl"), [row | {"url": URLS[1]} for row in rows])
    assert found(read_all(path.with_suffix(".jsonl"))) == [(PICTURE, URLS[1], None), *[(None, URLS[1], None)] * 2]
    assert kind == "jsonl" or "folders that read.image_roots" in error_message(path.rename(tmp_path / "pairs.csv"))
