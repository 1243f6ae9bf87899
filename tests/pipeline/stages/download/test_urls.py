"""URLs from untrusted input: every one is fetched or refused, none raises another exception."""

import random
import re

import pytest
from yarl import URL

from pipeline.stages.download.addresses import MAX_CHARACTERS, FetchError, check_url, parse_url
from pipeline.stages.download.stage import Download, count_answers, silent_host
from tests.pipeline.stages.download.rows import config, reasons, table

WITH_USERS = ["http://a%3Ab:c@h/", "http://u@h/", "http://:@h/", "http://\u20ac:x@h/", "http://a:s3cret@[::1/"]
BROKEN = ["https://[v1.a:b]%zz%2f @", "http://[", "http://h:99999/", "http://h:0/", "http://\u2100.test/", "//h/"]
BROKEN += ["http://[2001:db8::1\x00]/a.jpg#x"]


@pytest.mark.parametrize("url", WITH_USERS + BROKEN)
def test_a_strange_url_is_invalid_and_its_password_is_not_repeated(url: str) -> None:
    (row,) = Download(config())(table(url)).to_pylist()
    assert row["reason"] == "invalid_url"
    assert "s3cret" not in row["detail"]


def test_a_redirect_to_a_url_with_a_user_name_is_invalid() -> None:
    with pytest.raises(FetchError, match="user name"):
        parse_url("//user:pw@h/x", base=URL("http://h/"))


def test_a_long_url_is_invalid() -> None:
    with pytest.raises(FetchError, match="characters"):
        parse_url("http://h/" + "a" * MAX_CHARACTERS)


@pytest.mark.parametrize("port", [22, 25, 6000, 10080])
def test_a_port_that_browsers_refuse_is_refused(port: int) -> None:
    (row,) = Download(config())(table(f"http://127.0.0.1:{port}/a.jpg")).to_pylist()
    assert (row["reason"], row["detail"]) == ("invalid_url", f"port {port}, which browsers refuse")
    with pytest.raises(FetchError, match="which browsers refuse"):
        parse_url(f"//h.test:{port}/x", URL("http://h.test/"))


def test_rows_whose_url_is_refused_do_not_count_as_without_an_answer() -> None:
    rows = table(*(f"http://127.0.0.1:9{n}/" for n in range(3)), "http://10.0.0.1/", "http://", "ftp://h.test/")
    found = Download(config(retries=0)).prepare(rows)
    assert reasons(found) == ["connection_error"] * 3 + ["private_address"] + ["invalid_url"] * 2
    assert count_answers(found) == (3, 3)
    assert silent_host(found) == "127.0.0.1"
    others = Download(config(retries=0)).prepare(table("http://127.0.0.1:91/", "http://localhost:92/"))
    assert silent_host(others) == silent_host(others.slice(0, 0)) == ""


@pytest.mark.parametrize(
    "host", ["xn--p-.test", "xn--example-", f"xn--{'8' * 40}.test", "xn--caf\u00e9.test", "a_b.test", "-a.test"]
)
def test_a_host_that_no_decoder_reads_is_named_as_it_is_written(host: str) -> None:
    found = Download(config(retries=0, allowed_private_hosts=())).prepare(table(f"http://{host}/a.jpg"))
    assert reasons(found) in (["dns_error"], ["invalid_url"])
    assert silent_host(found) in (host, "")


PIECES = [
    *("http", "https", "ftp", ":", "//", "/", "@", "[", "]", "%", "%zz", "%00", "%2f", "\\", "?", "#", " ", "\t", "\n"),
    *("\0", "a", "h.test", "127.0.0.1", "0x7f.1", "::1", "v1.a:b", ":80", ":99999", ":-1", "user:pw@", "é", "\u2100"),
    *("\ud800", "xn--", "xn--a", "..", "." * 64, "a" * 64, "\u202e", "1" * 20, "\u3002"),
]


def test_no_url_raises_another_exception() -> None:
    rng = random.Random(13)
    n_accepted = 0
    for i in range(30_000):
        start = "http://" if i % 2 else ""
        text = start + "".join(rng.choices(PIECES, k=rng.randrange(1, 8)))
        try:
            url = parse_url(text, base=URL("http://h.test/a/b") if i % 3 == 0 else None)
            assert url.scheme in ("http", "https")
            assert url.raw_host
            assert not url.raw_user
            assert not url.raw_password
            assert re.fullmatch(r"/[!-~]*", url.raw_path_qs)
            if i % 3:
                assert (url.raw_host, url.port) == (URL(text.strip()).raw_host, URL(text.strip()).port)
            n_accepted += 1
        except FetchError as error:
            error.drop.detail.encode()
    assert n_accepted > 1000


def test_no_row_of_any_url_ends_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests themselves, to no host that exists."""

    async def no_addresses(self: object, host: str) -> tuple[str, ...]:
        return ("192.0.2.1",)

    monkeypatch.setattr("pipeline.stages.download.resolver.Resolver.lookup", no_addresses)
    rng = random.Random(14)
    urls = ["http://" + "".join(rng.choices(PIECES, k=rng.randrange(1, 8))) for _ in range(1000)]
    urls = [url for url in urls if url.isprintable()]
    found = set(reasons(Download(config(allowed_private_hosts=()))(table(*urls))))
    assert found <= {"invalid_url", "private_address"}


def test_an_unforeseen_exception_is_an_internal_error_of_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(url: URL, allowed: frozenset[str]) -> None:
        if url.raw_host == "bad1.test":
            raise KeyError("nobody expected this")
        check_url(url, allowed)

    monkeypatch.setattr("pipeline.stages.download.client.check_url", fail)
    rows = Download(config(retries=0))(table("http://bad1.test/", "http://127.0.0.1:2/")).to_pylist()
    assert [row["reason"] for row in rows] == ["internal_error", "connection_error"]
    assert rows[0]["detail"] == "KeyError: 'nobody expected this'"
