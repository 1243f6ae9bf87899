"""URLs without secrets."""

import json

import pytest

from common.config import to_yaml
from common.urls import json_without_secrets, text_without_secrets, without_secrets, without_user
from pipeline.config import load_config
from pipeline.write.secrets import remove_url_secrets


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
    ],
)  # fmt: skip
def test_an_at_sign_in_a_path_or_query_is_no_user(url: str) -> None:
    assert without_user(url) == text_without_secrets(url, strip_query=False) == url
