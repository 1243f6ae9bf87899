"""JSON objects in files: reading, atomic writing, errors that name the file."""

from pathlib import Path

import pytest

from hypergrit_common.json_file import fits, read_object, write_object


def test_an_object_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"naïve": [1]}', encoding="utf-8")
    assert read_object(tmp_path / "a.json") == {"naïve": [1]}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[1]", b"null"])
def test_a_file_without_a_json_object_is_a_value_error_with_its_path(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"/a\.json (is not valid JSON|holds no JSON object)"):
        read_object(tmp_path / "a.json")


def test_a_failed_write_keeps_the_old_object(tmp_path: Path) -> None:
    write_object({"b": 1, "a": "naïve"}, tmp_path / "a.json")
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_object({"b": object()}, tmp_path / "a.json")
    assert list(read_object(tmp_path / "a.json").items()) == [("b", 1), ("a", "naïve")]
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(("value", "expected"), [({"a": 1}, True), (None, True), ({"a": "1"}, False), (1, False)])
def test_a_union_may_hold_a_type_of_items(value: object, expected: bool) -> None:
    assert fits(value, dict[str, int] | None) == expected
