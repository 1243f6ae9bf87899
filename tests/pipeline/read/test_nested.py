"""Nested columns by dotted names, columns in names of folders, and pictures as text."""

import base64
import json
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hypergrit_common.errors import UserError
from pipeline.read.nested import holds_text_of_picture, path_columns, picture_in
from tests.hypergrit_common.test_image_types import encoded
from tests.pipeline.read.test_stage import read_all, write_tar

PICTURE = encoded("PNG")
TEXT = base64.b64encode(PICTURE).decode()
CHATS = [
    {"pic": {"url": "http://x/0"}, "chat": [{"value": "<image>"}, {"value": "a dog"}], "pic.url": None},
    {"pic": {"url": "http://x/1"}, "chat": [{"value": "<image>"}], "pic.url": "http://own/1"},
    {"pic": {"url": "http://x/2"}, "chat": None, "pic.url": None},
]


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def captions(rows: list[dict[str, Any]]) -> list[str | None]:
    return [row["caption_original"] for row in rows]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_fields_of_structs_and_lists_are_columns_and_a_name_with_a_dot_of_its_own_wins(
    tmp_path: Path, kind: str
) -> None:
    lines(tmp_path / "a.jsonl", CHATS)
    pq.write_table(pa.Table.from_pylist(CHATS), tmp_path / "a.parquet")
    rows = read_all(tmp_path / f"a.{kind}", url_column="pic.url", caption_column="chat[1].value")
    assert [row["url"] for row in rows] == [None, "http://own/1", None]
    assert captions(rows) == ["a dog", None, None]
    assert json.loads(rows[0]["extra"]) == {key: CHATS[0][key] for key in ("pic", "chat")}
    where = "column('chat[0].value') == '<image>' and len(chat) > 1"
    chosen = read_all(tmp_path / f"a.{kind}", url_column="pic.url", caption_column="chat[0].value", where=where)
    assert [row["reason"] for row in chosen] == ["missing_url", "not_selected", "not_selected"]
    several = read_all(tmp_path / f"a.{kind}", url_column="pic.url", caption_column="chat.value", captions="join")
    assert captions(several) == ["<image> a dog", "<image>", None]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", ["chat[1].valeu", "chats[1].value", "pic.text"])
def test_a_field_that_does_not_exist_is_an_error(tmp_path: Path, kind: str, name: str) -> None:
    lines(tmp_path / "a.jsonl", CHATS)
    pq.write_table(pa.Table.from_pylist(CHATS), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"has no caption column \(looked for .*; set read.caption_column=NAME"):
        read_all(tmp_path / f"a.{kind}", url_column="pic.url", caption_column=name)


def test_names_reach_into_maps_and_texts_of_json(tmp_path: Path) -> None:
    maps = pa.array([[("cap", "a dog")], [("x", "y")]], pa.map_(pa.string(), pa.string()))
    pictures = [{"raw": {"bytes": PICTURE, "path": "a.png"}}] * 2
    table = pa.table({"m": maps, "meta": ['{"urls": ["http://a"]}', "{"], "pic": pictures})
    pq.write_table(table, tmp_path / "a.parquet")
    names = {"url_column": "meta.urls[-1]", "caption_column": "m.cap", "image_column": "pic.raw.bytes"}
    rows = read_all(tmp_path / "a.parquet", **names)
    assert [(row["url"], row["caption_original"], row["image"]) for row in rows] == [
        ("http://a", "a dog", PICTURE),
        (None, None, PICTURE),
    ]


def test_columns_in_names_of_folders_travel_along_and_can_be_conditions(tmp_path: Path) -> None:
    for part in ("lang=en/dt=2024-01-01 12%3A30", "lang=de/dt=__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / "t" / part / "n=7").mkdir(parents=True)
        lines(tmp_path / "t" / part / "n=7/a.jsonl", [{"url": "http://a", "caption": "a dog", "n": 8}])
    rows = read_all(tmp_path / "t")
    assert [json.loads(row["extra"]) for row in rows] == [
        {"lang": "de", "dt": None, "n": 8},
        {"lang": "en", "dt": "2024-01-01 12:30", "n": 8},
    ]
    chosen = read_all(tmp_path / "t", where="lang == 'en' and dt > '2023' and n == 8")
    assert [row["reason"] for row in chosen] == ["not_selected", None]
    assert captions(read_all(tmp_path / "t", caption_column="lang")) == ["de", "en"]
    write_tar(tmp_path / "t/lang=en/a.tar", {"0.jpg": PICTURE, "0.json": b'{"caption": "x", "meta": {"n": 1}}'})
    tar = read_all(tmp_path / "t/*/a.tar", where="lang == 'en' and column('meta.n') == 1")
    assert [(row["image"], row["reason"]) for row in tar] == [(PICTURE, None)]
    with pytest.raises(UserError, match=r"has no column 'land'.*did you mean 'lang'"):
        read_all(tmp_path / "t", where="land == 'en'")


COLUMNS_OF_FOLDERS = {
    "/x": [{"lang": "de", "n": 2}, {"lang": "en", "n": 1}],
    "/x/": [{"lang": "de", "n": 2}, {"lang": "en", "n": 1}],
    "/x/lang=*/n=*/a": [{"lang": "de", "n": 2}, {"lang": "en", "n": 1}],
    "/x/lang={en,de}/n=*": [{"lang": "en", "n": 1}, {"lang": "de", "n": 2}],  # in the order of the input
    "/x/lang=en": [{"n": 1}],
    "/x/lang=en/n=1": [None],
    "/x/lang=en/n=1/a": [None],
    "/x/lang=en/*": [{"n": 1}],
    "/x/lang=en/n=1,ROOT/x/lang=de": [None, {"n": 2}],
}


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "tar", "images"])
@pytest.mark.parametrize("input", COLUMNS_OF_FOLDERS)
def test_only_folders_below_the_input_are_columns(tmp_path: Path, input: str, kind: str) -> None:
    """Folders above it are not, so that another place of the input gives the same rows."""
    rows = [{"url": "http://a", "caption": "a dog"}]
    for place in ("split=train", "elsewhere"):
        for part in ("lang=en/n=1", "lang=de/n=2"):
            folder = tmp_path / place / "x" / part
            folder.mkdir(parents=True)
            lines(folder / "a.jsonl", rows)
            pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
            write_tar(folder / "a.tar", {"0.jpg": PICTURE, "0.txt": b"a dog"})
            (folder / "a.jpg").write_bytes(PICTURE)
            for other in ("jsonl", "parquet", "tar", "jpg"):
                if other != {"images": "jpg"}.get(kind, kind):
                    (folder / f"a.{other}").unlink()
    if kind == "images":
        if input.endswith("/a"):
            return
        (tmp_path / "split=train/x/lang=en/n=1/a.txt").write_text("a dog")
    text = input + ("" if kind == "images" or not input.endswith("/a") else f".{kind}")
    found = []
    for place in ("split=train", "elsewhere"):
        root = f"{tmp_path}/{place}"
        found.append([row["extra"] for row in read_all(f"{root}{text.replace('ROOT', root)}")])
    expected = COLUMNS_OF_FOLDERS[input]
    assert found == [[extra and json.dumps(extra) for extra in expected]] * 2


@pytest.mark.parametrize(
    ("input", "extra"),
    [("/split=a", {"n": 1}), ("/split=a/n=1", None), ("/*", {"split": "a", "n": 1}), ("", {"split": "a", "n": 1})],
)
def test_only_folders_below_the_input_are_columns_in_a_store(input: str, extra: Any) -> None:
    fs = fsspec.filesystem("memory")
    with fs.open("/k=v/split=a/n=1/x.csv", "wb") as file:
        file.write(b"url,caption\nhttp://a,a dog\n")
    assert [row["extra"] for row in read_all(f"memory:///k=v{input}")] == [extra and json.dumps(extra, sort_keys=True)]
    fs.rm("/k=v", recursive=True)


def test_a_condition_on_a_folder_above_the_input_names_the_columns_there_are(tmp_path: Path) -> None:
    (tmp_path / "lang=en/x").mkdir(parents=True)
    write_tar(tmp_path / "lang=en/x/a.tar", {"0.jpg": PICTURE, "0.txt": b"a dog"})
    lines(tmp_path / "lang=en/a.jsonl", [{"url": "http://a", "caption": "a dog"}])
    for name in ("x", "a.jsonl"):
        with pytest.raises(UserError, match="has no column 'lang'"):
            read_all(tmp_path / "lang=en" / name, where="lang == 'en'")
    assert [row["reason"] for row in read_all(f"{tmp_path}/*/x/a.tar", where="lang == 'en'")] == [None]


def test_names_of_folders_are_no_captions_unless_a_setting_says_so(tmp_path: Path) -> None:
    (tmp_path / "text=short").mkdir()
    path = lines(tmp_path / "text=short/a.jsonl", [{"url": "http://a", "alt": "a dog"}])
    assert captions(read_all(path)) == ["a dog"]
    assert path_columns("https://x/a=1/b.csv?c=2/d=3/") == {"a": 1}
    assert path_columns("s3://b/k%3D=v=w/z=007/=x/p.tar") == {"k=": "v=w", "z": "007"}


@pytest.mark.parametrize(
    "text", [TEXT, f"data:image/png;base64,{TEXT}", TEXT[:40] + "\n" + TEXT[40:], TEXT.rstrip("=")]
)
@pytest.mark.parametrize("kind", ["jsonl", "tsv", "parquet"])
def test_pictures_in_base64_are_read(tmp_path: Path, text: str, kind: str) -> None:
    row = {"image": text.replace("\n", "") if kind == "tsv" else text, "caption": "a dog"}
    lines(tmp_path / "a.jsonl", [row])
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    (tmp_path / "a.tsv").write_text("\n".join(["\t".join(row), "\t".join(row.values())]))
    (found,) = read_all(tmp_path / f"a.{kind}")
    assert (found["image"], found["extra"]) == (PICTURE, None)


def test_damaged_base64_is_a_bad_row_and_paths_are_paths(tmp_path: Path) -> None:
    rows = [{"image": text, "caption": "a dog"} for text in (TEXT, TEXT[:-8] + "!" + TEXT[-8:], {"bytes": TEXT})]
    found = read_all(lines(tmp_path / "a.jsonl", rows))
    assert [(row["image"], row["reason"]) for row in found] == [(PICTURE, None), (None, "bad_row"), (PICTURE, None)]
    assert "not valid base64" in found[1]["detail"]
    for path in ("/9j/4AAQ/a.jpg", "/9j/4AAQ", "images/" + "a" * 60, "http://x.org/iVBORw0KGgo", ""):
        assert not holds_text_of_picture(path)
    assert picture_in(base64.urlsafe_b64encode(PICTURE).decode()) == PICTURE
