"""No wrong caption: text in another encoding, NUL bytes, escapes and quotes end in the right text or a named reason."""

import gzip
import json
import tarfile
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hypergrit_common.errors import UserError
from tests.pipeline.read.test_stage import read_all

TEXT = "ein Hund läuft 走る"
ROW = {"url": "http://a/1.jpg", "caption": TEXT}
WIDE = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")


def captions(path: Path, **config: object) -> list[str | None]:
    return [row["caption_original"] for row in read_all(path, **config)]


@pytest.mark.parametrize("encoding", WIDE)
@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a.csv", "a.tsv"])
def test_wide_text_is_refused_by_name_and_read_by_the_setting(tmp_path: Path, name: str, encoding: str) -> None:
    table = "url,caption\n" + ",".join(ROW.values()) + "\n"
    text = json.dumps(ROW, ensure_ascii=False) + "\r\n" if "js" in name else table
    path = tmp_path / name
    path.write_bytes((text.replace(",", "\t") if name == "a.tsv" else text).encode(encoding))
    with pytest.raises(UserError, match=f"it looks like {encoding}.*set read.encoding, such as {encoding}"):
        read_all(path)
    assert captions(path, encoding=encoding) == [TEXT]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_json_is_decoded_strictly(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    good, bad = json.dumps(ROW).encode(), json.dumps({**ROW, "caption": "café"}, ensure_ascii=False).encode("latin-1")
    path.write_bytes(good + b"\n" + bad + b"\n")
    rows = read_all(path)
    assert [row["reason"] for row in rows] == [None, "bad_row"]
    assert "not valid utf-8; see read.encoding" in rows[1]["detail"]
    assert captions(path, encoding="latin-1") == [TEXT, "café"]


@pytest.mark.parametrize("escape", [r"\ud83d", r"\udc83"])
def test_half_of_an_escaped_pair_is_named_with_its_fix(tmp_path: Path, escape: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"url": "http://a", "caption": "a {escape} b"}}\n')
    (row,) = read_all(path)
    assert row["detail"] == (
        f"0/a.jsonl, line 1: the caption has '{escape}', half of a pair for one character; write that "
        "character, or both halves"
    )


def test_bytes_in_another_encoding_have_a_fix_that_their_format_has(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"url,caption\nhttp://a,caf\xe9\n")
    (row,) = read_all(tmp_path / "a.csv")
    assert row["detail"] == "0/a.csv, line 2: the caption has bytes that are not valid utf-8; see read.encoding"
    assert captions(tmp_path / "a.csv", encoding="latin-1") == ["café"]
    pq.write_table(pa.table({"url": ["http://a"], "caption": [b"caf\xe9"]}), tmp_path / "a.parquet")
    (row,) = read_all(tmp_path / "a.parquet")
    assert row["detail"] == (
        "0/a.parquet, row 0 (from 0): the caption has bytes that are not UTF-8, at byte 3; write it as text"
    )


@pytest.mark.parametrize("member", ["txt", "json"])
@pytest.mark.parametrize("encoding", WIDE)
@pytest.mark.parametrize("in_tar", [True, False])
def test_texts_of_pictures_are_decoded_strictly(tmp_path: Path, member: str, encoding: str, in_tar: bool) -> None:
    for text in ("a dog", TEXT):
        content = (json.dumps({"caption": text}, ensure_ascii=False) if member == "json" else text).encode(encoding)
        folder = tmp_path / text
        folder.mkdir()
        files = {"0.jpg": b"x", f"0.{member}": content}
        for name, data in files.items() if not in_tar else ():
            (folder / name).write_bytes(data)
        if in_tar:
            with tarfile.open(folder / "a.tar", "w") as tar:
                for name, data in files.items():
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, BytesIO(data))
        (row,) = read_all(folder)
        assert row["reason"] == "bad_row"
        assert f"0.{member}" in row["detail"]
        assert "read.encoding" in row["detail"]
        assert captions(folder, encoding=encoding) == [text]


@pytest.mark.parametrize("n", [3, 2_000_000])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_reserved_space_at_the_end_is_explained(tmp_path: Path, name: str, n: int) -> None:
    path = tmp_path / name
    rows = json.dumps(ROW) + "\n" if name == "a.jsonl" else "url,caption\nhttp://a,a dog\n"
    path.write_bytes(rows.encode() + bytes(n))
    *kept, last = read_all(path)
    assert [row["reason"] for row in kept] == [None]
    assert "NUL bytes: space that was reserved and never written" in last["detail"]


@pytest.mark.parametrize(("suffix", "mark"), [(".csv", ","), (".tsv", "\t")])
def test_text_behind_a_closing_quote_is_a_bad_row_with_a_hint(tmp_path: Path, suffix: str, mark: str) -> None:
    lines = [
        '"a" dog',
        r'"the \"big\" one"',
        '"a dog"',
        'a "red" dog',
        '"a ""red"" dog"',
        r'"\"yes\""',
        '"two\nlines" x',
    ]
    path = tmp_path / f"a{suffix}"
    path.write_text(
        "".join(
            f"{a}{mark}{b}\n" for a, b in [("url", "caption"), *((f"http://a/{i}", x) for i, x in enumerate(lines))]
        )
    )
    rows = read_all(path)
    assert [row["caption_original"] for row in rows if row["reason"] is None] == ["a dog", 'a "red" dog', 'a "red" dog']
    hints = [row["detail"] for row in rows if "text after a closing quote" in (row["detail"] or "")]
    assert len(hints) == 3
    assert all("set read.escape" in hint and "read.quotes=false" in hint for hint in hints)


@pytest.mark.parametrize("name", ["a.csv", "b.jsonl", "c.json", "d.tsv.gz"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf_32"])
def test_a_file_without_the_mark_of_its_encoding_is_named(tmp_path: Path, name: str, encoding: str) -> None:
    text = b'[{"url": "http://a/0", "caption": "a"}]'
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    with pytest.raises(UserError, match=rf"{name}: it does not begin with the mark of {encoding}; set read.encoding"):
        read_all(tmp_path, encoding=encoding)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_lines_that_end_with_carriage_returns_are_an_error_that_says_so(tmp_path: Path, name: str) -> None:
    lines = ["url,caption", "http://a/0,x"] if name == "a.csv" else ['{"url": "http://a/0", "caption": "x"}'] * 2
    (tmp_path / name).write_bytes("\r".join([*lines, ""]).encode())
    with pytest.raises(
        UserError, match=rf"{name}: .*a carriage return \(\\r\) that is not part of a line end; end lines"
    ):
        read_all(tmp_path)
    if name == "a.jsonl":
        (tmp_path / name).write_bytes("\n".join([lines[0], "\r".join(lines), f"{lines[0]}\r", "{\r}"]).encode())
        assert [(row["reason"], "carriage" in (row["detail"] or "")) for row in read_all(tmp_path)] == [
            (None, False), ("bad_row", True), (None, False), ("missing_url", False)
        ]  # fmt: skip


def test_escapes_of_spark_and_mysql_are_read_by_the_setting(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('url,caption,n\nhttp://a/0,"the \\"big, red\\" one",1\nhttp://a/1,\\N,\\N\nhttp://a/2,C:\\\\N\\, x,2\n'
                    'http://a/3,two\\\nlines,3\nhttp://a/4,"a \\\\ b",4\n')  # fmt: skip
    rows = read_all(path, escape="\\")
    expected = ['the "big, red" one', "", "C:\\N, x", "two\nlines", "a \\ b"]
    assert [row["caption_original"] or "" for row in rows] == expected
    assert json.loads(rows[1]["extra"]) == {"n": ""}
    tsv = tmp_path / "a.tsv"
    tsv.write_text('url\tcaption\nhttp://a/0\t5" pipe\\\tnew\nhttp://a/1\t\\N\n')
    assert captions(tsv, escape="\\", quotes=False) == ['5" pipe\tnew', ""]


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (r"AC\DC live", r"AC\DC live"),
        (r"C:\new\table", r"C:\new\table"),
        (r'"C:\new, red"', r"C:\new, red"),
        (r'"C:\dir\, red"', r"C:\dir\, red"),
        (r'"two\nlines\t\r\0"', r"two\nlines\t\r\0"),
        (r'"a \"b\" \\ c"', r'a "b" \ c'),
        (r'"say \"\N\", \N"', r'say "\N", \N'),
        (r"\\N", r"\N"),
        (r'"\N"', r"\N"),
        (r"\N", ""),
        (r"x\N", r"x\N"),
        ("two\\\nlines", "two\nlines"),
        ('"two\n\\N\nC:\\d"', "two\n\\N\nC:\\d"),
        (r'"\\server\share"', r"\server\share"),
    ],
)
def test_an_escape_before_any_other_character_is_a_character(tmp_path: Path, field: str, expected: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"url,caption,x\\y\na\\b.jpg,{field},1\nhttp://a,next,\\N\n")
    first, second = read_all(path, rows_per_shard=1, escape="\\")
    assert (first["url"], first["caption_original"] or "", first["extra"]) == (r"a\b.jpg", expected, r'{"x\\y": "1"}')
    assert (second["caption_original"], second["extra"]) == ("next", r'{"x\\y": ""}')
    path.write_text(path.read_text().replace("\\", "^"))
    if "N" not in field:
        assert read_all(path, escape="^")[0]["caption_original"] == expected.replace("\\", "^")


@pytest.mark.parametrize("escape", ['"', ",", "", "ab"])
def test_other_escapes_are_refused(tmp_path: Path, escape: str) -> None:
    with pytest.raises(UserError, match="escape is"):
        read_all(tmp_path, escape=escape, delimiter=",")


def test_a_footer_that_counts_other_rows_than_its_groups_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"url": ["http://a"], "caption": ["a"]}), tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    # the number of rows follows the schema in the footer, as a zigzag varint: field 3, i64
    place = data.rindex(b"\x16\x02\x19\x1c")
    (tmp_path / "a.parquet").write_bytes(data[:place] + b"\x16\x04" + data[place + 2 :])
    with pytest.raises(UserError, match="its footer counts 2 rows, its row groups have 1"):
        read_all(tmp_path)
