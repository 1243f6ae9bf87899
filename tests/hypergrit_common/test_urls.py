"""URLs without secrets."""

import json
from urllib.parse import quote

import pytest

from hypergrit_common.config import to_yaml
from hypergrit_common.text import redact
from hypergrit_common.urls import json_without_secrets, text_without_secrets, without_secrets, without_user
from pipeline.config import load_config
from pipeline.output.write.samples import remove_url_secrets
from tests.patience import linear_time


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://u:p@h/1.jpg", "http://h/1.jpg"),
        ("http://u:p@ss w@h", "http://h"),
        ("ht\ntp:/\t/u:p@h/a", "ht\ntp:/\t/h/a"),
        ("//u:p@h/a", "//h/a"),
        ("http://h/a@b", "http://h/a@b"),
        ("/data/u@x/a.csv", "/data/u@x/a.csv"),
        ("abfss://c@a.dfs.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x"),
        ("", ""),
    ],
)
def test_user_info_is_removed(url: str, expected: str) -> None:
    assert without_user(url) == expected


def test_a_query_is_removed_only_on_request() -> None:
    url = "https://h/1.jpg?X-Amz-Signature=1f&a=b#c"
    assert without_secrets(url, strip_query=False) == url
    assert without_secrets(url, strip_query=True) == "https://h/1.jpg#c"
    assert text_without_secrets(f"see {url} and x?y", strip_query=True) == "see https://h/1.jpg#c and x?y"


def test_only_a_document_with_a_secret_is_written_again() -> None:
    text = '{"b":1,  "a":"http://h/x?y"}'
    assert json_without_secrets(text, strip_query=False) == text
    found = json.loads(json_without_secrets('{"a": [{"http://u:\\"p@h": "s3://k:s@b"}], "b": 1}', strip_query=False))
    assert found == {"a": [{"http://h": "s3://b"}], "b": 1}


def test_the_saved_configuration_has_no_passwords() -> None:
    config = load_config(["input=https://ann:secret@h/a.csv", "output=s3://KEY:SECRET@bucket/out"])
    saved = to_yaml(config)
    assert "secret" not in saved.lower()
    assert "input: https://h/a.csv\noutput: s3://bucket/out\n" in saved


@pytest.mark.parametrize(
    "url",
    [
        "http:/ann:S3CRET@127.0.0.1/1.jpg", "http:\\\\ann:S3CRET@h/x", "ann:S3CRET@h/x", "http://ann:S3CRET/x@h/y",
        "http://ann:S3CRET#x@h", "//ann:S3CRET@h/x", "http://ann:S3CRET word@h/1",
    ],
)  # fmt: skip
def test_passwords_of_malformed_urls_are_removed(url: str) -> None:
    assert "S3CRET" not in without_user(url)
    row = remove_url_secrets({"url": url, "id": "see http://ann:S3CRET@h/1"}, strip_query=False)
    assert "S3CRET" not in str(row)


@pytest.mark.parametrize(
    "url",
    [
        "https://medium.com/@user/a.jpg", "http://h:8080/a@b.jpg", "http://h/a:b@c.jpg", "https://h/p?x=a:b@c",
        "http://[::1]:80/a@b", "/data/a@b.csv", "data/a:b@c.csv", "http://h/x y@z",
        "https://medium.com/%40user/a.jpg", "http://h/?u=http%3A//h/a%40b", "http://h/?u=http%3A%2F%2Fh%2Fa%40b",
        "http://h/?u=http://h&to=a%40b", "http://h/100%25/a.jpg?to=ann%40h",
    ],
)  # fmt: skip
def test_an_at_sign_in_a_path_or_query_is_no_user(url: str) -> None:
    assert without_user(url) == text_without_secrets(url, strip_query=False) == redact(url) == url
    assert remove_url_secrets({"url": url}, strip_query=False) == {"url": url}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "https://web.archive.org/web/2020/http://ann:S3CRET@h/x.jpg"), ("url", "http://h/?u=http://ann:S3CRET@h2/"),
        ("url", "http://h/?u=http%3A%2F%2Fann%3AS3CRET%40h2%2F"), ("url", "abfs://ann:S3CRET@h/x"),
        ("id", "ann:S3CRET@h"), ("id", "http:ann:S3CRET@h"), ("detail", "see http:ann:S3CRET@h"),
        ("detail", "see http:// ann:S3CRET@h"), ("extra", '{"a": "wasb://ann:S3CRET@h"}'),
        ("extra", '{"a": "http:// ann:S3CRET@h"}'), ("caption_original", "a dog (http://ann:S3CRET@h/x)"),
    ],
)  # fmt: skip
def test_no_field_of_a_row_holds_a_password(field: str, value: str) -> None:
    assert "S3CRET" not in str(remove_url_secrets({field: value}, strip_query=False))
    assert field != "detail" or "S3CRET" not in redact(value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "https://h/a.jpg#x?sig=S3CRET"), ("url", "cdn.h/a.jpg?S3CRET"), ("id", "h/a.jpg?S3CRET"),
        ("id", "//h/a.jpg#x?S3CRET"), ("detail", "no https://h/a.jpg ?sig=S3CRET"), ("detail", "http:/h/a?S3CRET"),
        ("extra", json.dumps({"raw": '{"u": "https:\\/\\/h\\/a.jpg?sig=S3CRET"}'})),
        ("extra", '{"u": "http:/h/a?sig=S3CRET"}'), ("extra", '{"u": "cdn.h/a.jpg?X-Amz-Signature=S3CRET"}'),
        ("extra", '{"u": "https://h/a b.jpg?sig=S3CRET"}'), ("extra", '{"u": "https://h/a.jpg?x=1 &sig=S3CRET"}'),
        ("extra", '{"u": "https://h/a.jpg?x=1#c?S3CRET"}'),
    ],
)  # fmt: skip
def test_no_field_of_a_row_holds_a_query_if_queries_are_removed(field: str, value: str) -> None:
    row = {field: value}
    assert remove_url_secrets(row, strip_query=False) == row
    assert "S3CRET" not in str(remove_url_secrets(row, strip_query=True))


INNER = "http://ann:S3CRET@h.org/a.jpg"


@pytest.mark.parametrize(
    "inner",
    [
        *(quote(INNER, safe=safe) for safe in ("", "/", "/:", "@", "/:@", ":")), quote(quote(INNER)), quote(quote(INNER, "")),
        "http://ann:S3CRET%40h.org", "http%3A%2F%2Fann%3AS3CRET@h.org", "http://ann%3AS3CRET%40h.org",
        "http%3a//ann:p%40S3CRET%40h.org", "http:/\t/ann:S3CRET@h", "http//ann:S3CRET@h", "http://ann:S3CRET&#64;h",
        "http://ann:S3CRET\uff20h", "http%253A%252F%252Fann%253aS3CRET%2540h",
    ],
)  # fmt: skip
def test_the_password_of_an_encoded_url_is_removed(inner: str) -> None:
    for text in (f"https://proxy.org/img?url={inner}", f"https://web.archive.org/web/2020/{inner}"):
        assert "S3CRET" not in redact(text)
        for field in ("url", "id", "detail", "caption_original"):
            assert "S3CRET" not in str(remove_url_secrets({field: text}, strip_query=False)), field


@pytest.mark.parametrize("text", ["12345@N00", "mailto:ann@h.org", "is it a dog? yes", "what?", "3/4 of it? = 2"])
def test_an_id_that_is_no_url_stays(text: str) -> None:
    assert remove_url_secrets({"id": text}, strip_query=True) == {"id": text}


@pytest.mark.parametrize(
    "text", ["." * 1_000_000, " " * 1_000_000 + "?@", "/ " * 500_000 + "@"], ids=["dots", "?@", "@"]
)
def test_an_id_or_a_url_of_a_megabyte_takes_linear_time(text: str) -> None:
    with linear_time():
        remove_url_secrets({"id": text, "url": text}, strip_query=True)
        without_user(text)


@pytest.mark.parametrize(
    "unit",
    [
        "http:",
        "//",
        "http://",
        ":/",
        "http:/ \0",
        "%3A%2F%2F",
        "%253A//a%40",
        "://a%2540",
        "http//a:",
        "http:/\t/",
        "%25",
        "&#64;",
        "abfs://a:",
        "?a ",
        "  &a=",
        "?",
        "@",
    ],
)
def test_long_texts_take_linear_time(unit: str) -> None:
    with linear_time():
        text_without_secrets("? @ " + unit * (200_000 // len(unit)), strip_query=True)
