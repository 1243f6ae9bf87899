"""Permissions of servers: robots.txt, and the headers tdm-reservation and Content-Usage."""

import asyncio
import importlib.util
from urllib.parse import quote

import pytest
from yarl import URL

from hypergrit_common.errors import UserError
from pipeline import load_config
from pipeline.stages.download.addresses import FetchError
from pipeline.stages.download.fetch import refused_usage
from pipeline.stages.download.robots import KEEP_S, Robots
from pipeline.stages.download.stage import Download
from tests.pipeline.stages.download.rows import config, reasons, table
from tests.pipeline.stages.download.server import TinyWeb

needs_protego = pytest.mark.skipif(importlib.util.find_spec("protego") is None, reason="the package protego")


def fetch(*urls: str, **settings: object) -> list[tuple[str | None, str | None]]:
    """Drop reason and detail of each URL."""
    found = Download(config(**settings))(table(*urls))
    return list(zip(reasons(found), found["detail"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("tdm-reservation", "1", "tdm_reserved"),
        ("TDM-Reservation", " 1 ", "tdm_reserved"),
        ("tdm-reservation", "0", None),
        ("Content-Usage", "train-ai=n", "usage_refused"),
        ("Content-Usage", "search=y, Train-AI=n;exceptions", "usage_refused"),
        ("Content-Usage", "train-ai=n, train-ai=y", None),
        ("Content-Usage", "search=n", None),
        ("Content-Usage", "train-ai=y", None),
        ("Content-Usage", "=,;n=,train-ai", None),
        ("Content-Usage", "bots=n", "usage_refused"),  # all automated processing, of which training is a part
        ("Content-Usage", "all=n, search=y", "usage_refused"),
        ("Content-Usage", "bots=n, train-ai=y", None),  # the specific category decides
        ("Content-Usage", "bots=y, train-ai=n", "usage_refused"),
    ],
)
def test_a_header_that_refuses_the_use_drops_the_row_by_name(
    web: TinyWeb, name: str, value: str, reason: str | None
) -> None:
    assert fetch(web.url(f"/header?{name}={quote(value)}"))[0][0] == reason


def test_lines_of_content_usage_are_one_dictionary() -> None:
    assert refused_usage(["search=y", "train-ai=n"], ["train-ai"]) == "train-ai"
    assert refused_usage(["train-ai=n", "train-ai=y"], ["train-ai"]) is None


@needs_protego
def test_robots_txt_is_fetched_once_and_drops_what_it_does_not_allow(web: TinyWeb) -> None:
    web.robots = 200, "User-agent: *\nDisallow: /image/1\nAllow: /\n\nUser-agent: other\nDisallow: /\n"
    web.hits.clear()
    urls = [web.url(f"/image/{i}") for i in range(4)]
    assert fetch(*urls, robots_txt=True) == [(None, None), ("robots_txt", "/image/1"), (None, None), (None, None)]
    assert web.hits["/robots.txt"] == 1
    assert web.hits["/image/1"] == 0
    web.robots = 200, "User-agent: HyperGRIT\nDisallow: /image/\n"
    assert [reason for reason, _ in fetch(*urls[:2], robots_txt=True)] == ["robots_txt"] * 2
    web.hits.clear()
    assert fetch(urls[0])[0] == (None, None)  # off by default
    assert web.hits["/robots.txt"] == 0


@needs_protego
def test_redirects_are_compared_with_the_robots_txt_of_their_host(web: TinyWeb) -> None:
    web.robots = 200, "User-agent: *\nDisallow: /image/\n"
    web.hits.clear()
    other = f"http://localhost:{web.port}/image/0"
    assert (
        fetch(web.url("/to?url=/image/0"), web.url(f"/to?url={other}"), robots_txt=True)
        == [("robots_txt", "/image/0")] * 2
    )
    assert web.hits["/image/0"] == 0


@needs_protego
@pytest.mark.parametrize(
    ("robots", "reason"),
    [(None, None), ((403, ""), None), ((503, ""), "http_error"), ((429, ""), "http_error"), ((302, "/gone"), None),
     ((200, "\ufeff\0 not a robots.txt \n:\n" * 100), None)],
)  # fmt: skip
def test_host_without_robots_txt_is_allowed_and_one_that_cannot_be_reached_is_not(
    web: TinyWeb, robots: tuple[int, str] | None, reason: str | None
) -> None:
    web.robots = robots
    assert fetch(web.url("/image/0"), robots_txt=True, retries=0)[0][0] == reason


@needs_protego
def test_dead_host_has_the_reason_of_its_robots_txt() -> None:
    (found,) = fetch("http://bad1.test/a.jpg", robots_txt=True, dns_timeout_s=2.0)
    assert found[0] == "dns_error"


@needs_protego
def test_rules_are_kept_for_a_day_and_failures_are_tried_again() -> None:
    now, answers, seen = [0.0], [FetchError("timeout", "5 s"), b"User-agent: *\nDisallow: /a", b""], list[URL]()

    async def answer(url: URL) -> bytes:
        seen.append(url)
        found = answers.pop(0)
        if isinstance(found, FetchError):
            raise found
        return found

    async def scenario() -> None:
        robots = Robots(answer, "hypergrit", lambda: now[0])
        url = URL("http://host/a")
        with pytest.raises(FetchError, match=r"5 s \(robots\.txt\)"):
            await robots.of(url)
        first, second = await asyncio.gather(robots.of(url), robots.of(url))
        assert not first.allows(url)
        assert second is first
        now[0] = KEEP_S - 1
        assert await robots.of(url) is first
        now[0] = KEEP_S + 1
        assert (await robots.of(url)).allows(url)
        assert seen == [URL("http://host/robots.txt")] * 3

    asyncio.run(scenario())


def test_robots_txt_without_protego_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.stages.download.config.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install protego"):
        load_config(["input=a.csv", "output=b", "download.robots_txt=true"])


@needs_protego
def test_robots_txt_is_asked_for_the_path_that_is_sent(web: TinyWeb) -> None:
    web.paths.clear()
    web.robots = (200, "User-agent: *\nDisallow: /status/\nDisallow: /a%2Cb")
    rows = fetch(web.url("/status/../image/2"), web.url("/a%2Cb?x"), web.url("/image/3"), robots_txt=True)
    assert rows == [("robots_txt", "/status/../image/2"), ("robots_txt", "/a%2Cb"), (None, None)]
    assert set(web.paths) == {"/robots.txt", "/image/3"}
