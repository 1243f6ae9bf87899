"""Text from outside in messages: no control characters, no passwords, bounded length."""

import unicodedata

import pytest

from hypergrit_common.text import MAX_CHARS, message, message_lines, one_line, printable, redact, without_controls


@pytest.mark.parametrize(
    "char", ["\x1b", "\r", "\n", "\t", "\x07", "\x9b", "\u202e", "\u2066", "\u2028", "\ud800", "\U000e0041"]
)
def test_characters_that_control_a_terminal_or_hide_others_are_escaped(char: str) -> None:
    text = printable(f"a{char}b")
    assert char not in text
    assert text.encode("utf-8").decode("utf-8") == "a" + char.encode("unicode_escape").decode() + "b"


def test_no_control_character_of_unicode_passes() -> None:
    passed = printable("".join(map(chr, range(0x3000))))
    assert not [char for char in passed if unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs")]


def test_ordinary_text_of_any_language_is_unchanged() -> None:
    text = "Ein Hund, 一只狗, كلب, \N{FAMILY} \N{WOMAN}\u200d\N{PERSONAL COMPUTER} é"
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://KEY:SECRET@bucket/a", "s3://***@bucket/a"),
        ("x https://u:p@ss@h/a?b=c@d y", "x https://***@h/a?b=c@d y"),
        ("https://h/a@b", "https://h/a@b"),
        ("abfs://container@account.dfs.core.windows.net/a", "abfs://container@account.dfs.core.windows.net/a"),
    ],
)
def test_user_names_and_passwords_are_redacted(text: str, expected: str) -> None:
    assert redact(text) == expected


def test_a_message_is_one_line_of_bounded_length() -> None:
    text = message("x\n" * 10**6)
    assert "\n" not in text
    assert len(text) < 2 * MAX_CHARS


def test_the_lines_of_a_traceback_are_kept() -> None:
    assert message_lines("a\n\x1b[2Jb") == "a\n\\x1b[2Jb"


def test_only_control_characters_of_a_document_are_escaped() -> None:
    text = "".join(map(chr, range(0xA1))) + "größe\u202e 🐕"
    found = without_controls(text)
    assert [char for char in found if unicodedata.category(char) == "Cc"] == ["\t", "\n"]
    assert "\\x1b" in found
    assert "\\x85" in found
    assert found.endswith("größe\u202e 🐕")


def test_the_message_of_an_exception_continues_in_a_sentence() -> None:
    assert one_line(OSError("Corrupt snappy\n compressed data.")) == "Corrupt snappy compressed data"
    assert one_line(OSError("and so on ...")) == "and so on ..."
    assert one_line(KeyError()) == "KeyError"
