"""The takedown list: what its entries name, and rows that the job refuses."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yarl import URL

from hypergrit_common.errors import UserError
from hypergrit_common.near_duplicates import normal_url
from hypergrit_common.urls import with_query_spaces
from pipeline import ReadConfig, plan_shards, read_shard
from pipeline.read.takedown import parse_takedown, read_takedown
from pipeline.stages.download.addresses import parse_url

HASH = "ab" * 32


@pytest.mark.parametrize(
    ("entry", "url", "kind"),
    [
        ("http://example.org/a.jpg", "https://Example.ORG:443/a.jpg#x", "url"),
        ("https://example.org/a%20b.jpg", "http://ann:pw@example.org/a b.jpg", "url"),
        ("http://example.org/a.jpg?q=b%20c+d", "http://example.org/a.jpg?q=b c d", "url"),
        ("http://example.org/a.jpg?q=b c", "http://example.org/a.jpg?q=b%20c", "url"),
        ("http://example.org/a.jpg?q=b+c", "http://example.org/a.jpg?q=b%20c", "url"),
        ("http://example.org", "http://example.org/", "url"),
        ("http://example.org/a.jpg?size=1", "http://example.org/a.jpg", None),
        ("http://example.org/a.jpg", "http://example.org/A.jpg", None),
        ("http://example.org/a.jpg", "http://example.org:8080/a.jpg", None),
        ("example.org", "http://img.example.org:8080/1.jpg", "host"),
        ("EXAMPLE.org.", "http://example.org./1.jpg", "host"),
        ("example.org", "http://badexample.org/1.jpg", None),
        ("example.org", "http://example.org.net/1.jpg", None),
        ("example.org", "http://example.net/?u=example.org", None),
        ("bücher.example", "http://xn--bcher-kva.example/1.jpg", "host"),
        ("10.0.0.1", "http://10.0.0.1/1.jpg", "host"),
        ("[::1]", "http://[::1]:80/1.jpg", "host"),
        ("::1", "http://[0:0::1]:8080/1.jpg", "host"),
        ("example.org", "not a URL", None),
        ("example.org", "http://[broken/1.jpg", None),
        ("example.org", "http://img.example.org:99999/1.jpg", "host"),
        ("http://example.org:99999/b/../ä.jpg", "https://ann:pw@Example.org.:99999/%C3%A4.jpg#x", "url"),
        ("http://xn--strae-oqa.de/a.jpg", "http://straße.de/a.jpg", "url"),
        ("straße.de", "http://xn--strae-oqa.de/a.jpg", "host"),
        ("strasse.de", "http://straße.de/a.jpg", None),
        ("http://xn--3xa.example/a.jpg", "http://ς.example/a.jpg", "url"),
        ("http://example.org/a.jpg", "http://example.org/b/../a.jpg", "url"),
        ("http://example.org/a.jpg", "http://example.org/./a.jpg", "url"),
        ("http://example.org/?q=%C3%A4", "http://example.org/?q=ä", "url"),
        ("http://example.org/?x=A", "http://example.org/?x=%41", "url"),
        ("bücher.example", "http://img_1.BÜCHER.EXAMPLE/b.jpg", "host"),
        ("http://img_1.bücher.example/a.jpg", "http://IMG_1.bücher.example/a.jpg", "url"),
        ("http://example.org/a%2Fb", "http://example.org/a/b", None),
        ("http://a.example/get/http://ann:pw@b.example/1.jpg", "http://a.example/get/http://b.example/1.jpg", "url"),
        (
            "http://a.example/get/http://ann:pw@b.example/1.jpg",
            "http://a.example/get/http://ann:pw@b.example/1.jpg",
            "url",
        ),
        ("http://a.example/get/http://b.example/1.jpg", "http://a.example/get/http://b.example/2.jpg", None),
    ],
)
def test_an_entry_names_all_spellings_of_a_url_and_no_other(entry: str, url: str, kind: str | None) -> None:
    assert parse_takedown([entry], "list").match(url, None) == kind


def test_a_hash_names_a_row_without_a_url_in_any_letter_case() -> None:
    entries = parse_takedown([HASH.upper(), "", "# a comment"], "list")
    assert (len(entries), entries.match(None, HASH), entries.match(None, "cd" * 32)) == (1, "sha256", None)


def test_queries_count_unless_the_output_has_none() -> None:
    entries = parse_takedown(["http://example.org/a.jpg?key=1"], "list")
    assert entries.match_url("http://example.org/a.jpg") is None
    assert entries.without_queries().match_url("http://example.org/a.jpg") == "url"


@pytest.mark.parametrize(
    "line",
    ["com", "example.org/a.jpg", "ftp://example.org/a", "a b.org", "example.org:80", "ab" * 31, "http://", "*.org"],
)
def test_a_line_that_is_no_entry_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(UserError, match=r"^list.txt, line 2: .* is no http"):
        parse_takedown(["example.org", line], "list.txt")


def test_a_file_that_is_no_text_or_does_not_exist_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(b"example.org\n\xff")
    for path, message in ((tmp_path / "list", "not UTF-8"), (tmp_path, "folder"), (tmp_path / "no", "cannot be read")):
        with pytest.raises(UserError, match=message):
            read_takedown(str(path))


def test_a_listed_row_is_dropped_before_its_download_without_what_describes_it(tmp_path: Path) -> None:
    file, path = tmp_path / "pairs.jsonl", tmp_path / "list.txt"
    file.write_text('{"url": "http://example.org/1.jpg", "caption": "a dog", "id": "x", "author": "Ann"}\n'
                    '{"url": "http://example.net/1.jpg", "caption": "a cat"}\n')  # fmt: skip
    path.write_text("example.org\n")
    config = ReadConfig(takedown=str(path))
    (plan,) = plan_shards(str(file), rows_per_shard=10, limit=None, config=config)
    refused, kept = read_shard(plan, config).to_pylist()
    assert kept["status"] == "kept"
    assert {name: value for name, value in refused.items() if value is not None} == {
        "key": "000000000000",
        "source": "0/pairs.jsonl",
        "source_row": 0,
        "status": "dropped",
        "stage": "read",
        "reason": "taken_down",
        "detail": "host",
    }


def test_the_form_of_a_url_is_its_own_form() -> None:
    for url in ("http://example.org/a%2Fb?x=%20", "http://[::1]:81/%ff", "https://example.org/ü"):
        normal = normal_url(url)
        assert normal is not None
        assert normal_url(f"http:{normal}") == normal


HOSTS = [
    ("h.org", "H.org", "xn--h.org"),
    ("straße.de", "xn--strae-oqa.de", "strasse.de"),
    ("ς.example", "xn--3xa.example", "σ.example"),
    ("bücher.de", "BÜCHER.de", "bu\u0308cher.de", "xn--bcher-kva.de", "bücher。de"),
    ("[::1]", "[0:0::1]", "[::2]"),
]
"""Spellings of a host, and names that look alike."""
PART = st.lists(
    st.sampled_from([*"aA~/.+ä;=&?% ", "/./", "/../", "%41", "%61", "%7e", "%7E", "%2F", "%2f", "%C3%A4", "%e4"]),
    max_size=4,
).map("".join)


@settings(max_examples=1000, deadline=None)
@given(
    hosts=st.sampled_from(HOSTS).flatmap(lambda names: st.tuples(*[st.sampled_from(names)] * 2)),
    parts=st.tuples(PART, PART, st.sampled_from(["", ":81"]), st.sampled_from(["", "#x"])),
    others=st.tuples(PART, PART, st.sampled_from(["", ":081"]), st.just("")),
    changed=st.tuples(*[st.booleans()] * 4),
)
def test_two_urls_have_one_key_exactly_if_they_differ_in_spelling_alone(
    hosts: tuple[str, str], parts: tuple[str, ...], others: tuple[str, ...], changed: tuple[bool, ...]
) -> None:
    mixed = tuple(new if is_new else old for old, new, is_new in zip(parts, others, changed, strict=True))
    first, second = (
        f"http://{host}{port}/{path}?{query}{fragment}"
        for host, (path, query, port, fragment) in zip(hosts, (parts, mixed), strict=True)
    )
    plain_first, plain_second = (URL(with_query_spaces(url.strip())).with_fragment(None) for url in (first, second))
    assert (normal_url(first) == normal_url(second)) == (plain_first == plain_second)
    if parse_url(first) == parse_url(
        second
    ):  # the downloader, which sends URLs as they are written, knows more of them
        assert normal_url(first) == normal_url(second)
