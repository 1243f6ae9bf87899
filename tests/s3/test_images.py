"""Images of rows that are objects of a bucket, and folders of images in one."""

import json
from pathlib import Path

import fsspec
import pytest
from s3fs import S3FileSystem

from hypergrit_common.errors import UserError
from tests.stores.jobs import read


@pytest.fixture(scope="module")
def bucket(server: str) -> S3FileSystem:
    fs = fsspec.filesystem("s3")
    for name in ("mine", "other"):
        fs.mkdir(name)
    for path in ("mine/set/a.jpg", "mine/set/b [1]*.jpg", "mine/set2/s.jpg", "mine/s.jpg", "other/s.jpg"):
        fs.pipe_file(path, path.encode())
    fs.pipe_file("mine/set/a.txt", b"a cat")
    fs.pipe_file("mine/set/empty.jpg", b"")
    return fs


def test_objects_below_the_root_are_read_and_no_others(bucket: S3FileSystem, tmp_path: Path) -> None:
    good = ["s3://mine/set/a.jpg", "s3a://mine/set/a.jpg", "S3://mine/set/b [1]*.jpg"]
    bad = [
        "s3://mine/s.jpg", "s3://mine/set2/s.jpg", "s3://other/s.jpg", "s3://mine/set/../s.jpg",
        "s3://mine/set/%2e%2e/s.jpg", "s3://key:secret@mine/set/a.jpg", "s3://mine/set/a.jpg?versionId=1",
    ]  # fmt: skip
    path = tmp_path / "rows.jsonl"
    urls = [*good, *bad, "s3://mine/set/none.jpg", "s3://mine/set/empty.jpg"]
    path.write_text("".join(json.dumps({"url": url, "caption": "x"}) + "\n" for url in urls))
    rows = read(str(path), image_roots=("s3://mine/set",))
    assert [row["image"] for row in rows[:3]] == [b"mine/set/a.jpg", b"mine/set/a.jpg", b"mine/set/b [1]*.jpg"]
    assert {row["reason"] for row in rows[3:-2]} == {"image_refused"}
    assert [(row["reason"], row["image"]) for row in rows[-2:]] == [("image_not_found", None), ("missing_url", None)]
    assert rows[-1]["detail"] == "s3://mine/set/empty.jpg is empty"


def test_a_bucket_that_cannot_be_reached_is_not_the_fault_of_the_rows(
    bucket: S3FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"url": "s3://mine/set/a.jpg", "caption": "x"}\n')

    async def fail(*_: object, **__: object) -> dict:
        raise OSError("no answer")

    monkeypatch.setattr(S3FileSystem, "_call_s3", fail)
    monkeypatch.setattr(S3FileSystem, "_ls_from_cache", lambda *_: None)
    with pytest.raises(UserError, match=r"cannot read the image s3://mine/set/a\.jpg: no answer"):
        read(str(path), image_roots=("s3://mine/set",))


def test_a_folder_of_images_in_a_bucket_is_read(bucket: S3FileSystem) -> None:
    rows = read("s3://mine/set")
    assert [row["image"] for row in rows] == [b"mine/set/a.jpg", b"mine/set/b [1]*.jpg", None]
    assert [row["caption_original"] for row in rows] == ["a cat", None, None]
    assert rows[0]["source"] == "s3://mine/set/"


def test_braces_stand_for_objects(bucket: S3FileSystem) -> None:
    for i in range(3):
        bucket.pipe_file(f"mine/rows/{i:02}.csv", f"url,caption\nhttp://a/{i},x\n".encode())
    assert [row["url"] for row in read("s3://mine/rows/{00..01}.csv")] == ["http://a/0", "http://a/1"]
    with pytest.raises(UserError, match=r"s3://mine/rows/03\.csv' does not exist"):
        read("s3://mine/rows/{00..03}.csv")
