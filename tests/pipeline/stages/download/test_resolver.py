"""Names that are slow, silent or broken cost only their own rows."""

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from pipeline.stages.download import resolver
from pipeline.stages.download.addresses import PrivateAddressError
from pipeline.stages.download.resolver import NameLookupError, Resolver
from pipeline.stages.download.stage import Download
from tests.patience import PATIENCE_S
from tests.pipeline.stages.download.names import Names
from tests.pipeline.stages.download.rows import config, reasons, table
from tests.pipeline.stages.download.server import TinyWeb


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    found = Names()
    monkeypatch.setattr(socket, "getaddrinfo", found.getaddrinfo)
    yield found
    found.released.set()


def new_resolver(concurrency: int = 128, timeout_s: float = 5.0) -> Resolver:
    return Resolver(frozenset(), concurrency, timeout_s, 8 * concurrency)


@pytest.mark.parametrize("n_dead", [1, 40])
def test_silent_names_drop_their_own_rows_only(web: TinyWeb, names: Names, n_dead: int) -> None:
    bad = [f"http://bad{i}.test:{web.port}/image/0" for i in range(n_dead)]
    good = [f"http://ok{i}.test:{web.port}/image/{i}" for i in range(40)]
    start = time.monotonic()
    found = reasons(Download(config(dns_timeout_s=1.5, dns_concurrency=32))(table(*bad, *good)))
    assert found == ["dns_error"] * n_dead + [None] * 40
    assert time.monotonic() - start < PATIENCE_S  # less than a look-up that never returns


def test_names_slower_than_the_limit_of_an_attempt_keep_their_rows(web: TinyWeb, names: Names) -> None:
    """Also those of redirects."""
    names.delay_s = 3.0
    urls = [f"http://ok{i}.test:{web.port}/image/0" for i in range(20)]
    redirect = web.url(f"/to?url=http://ok20.test:{web.port}/image/0")
    assert reasons(Download(config(timeout_s=2.5, deadline_s=2.5))(table(*urls, redirect))) == [None] * 21


def test_a_name_is_asked_once_for_all_its_rows_and_tables(web: TinyWeb, names: Names) -> None:
    names.failure = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    download = Download(config())
    urls = [f"http://{host}.test:{web.port}/image/{i}" for i in range(10) for host in ("ok0", "bad0")]
    first, second = download(table(*urls)), download(table(*urls))
    assert reasons(first) == reasons(second) == [None, "dns_error"] * 10
    assert first["detail"][1].as_py() == "bad0.test: Name or service not known"
    assert names.asked == {"ok0.test": 1, "bad0.test": 1}


def test_a_temporary_failure_is_asked_again_once(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "RETRY_PAUSE_S", 0.01)
    names.failure = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    async def run() -> None:
        found = new_resolver()
        for _ in range(3):
            with pytest.raises(NameLookupError, match="Temporary failure"):
                await found.lookup("bad0.test")

    asyncio.run(run())
    assert names.asked["bad0.test"] == 2


def test_answers_expire(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "FOUND_S", -1.0)

    async def run() -> None:
        found = new_resolver()
        for _ in range(2):
            await found.lookup("ok0.test")

    asyncio.run(run())
    assert names.asked["ok0.test"] == 2


def test_the_cache_is_bounded(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "MAX_NAMES", 3)

    async def run() -> None:
        found = new_resolver()
        for i in range(10):
            await found.lookup(f"ok{i}.test")
        assert len(found._answers) == 3

    asyncio.run(run())


def test_a_row_that_gives_up_leaves_the_look_up_to_the_others(names: Names) -> None:
    names.delay_s = 0.3

    async def run() -> None:
        found = new_resolver()
        first, second = (asyncio.create_task(found.lookup("ok0.test")) for _ in range(2))
        await asyncio.sleep(0.05)
        first.cancel()
        assert await second == ("127.0.0.1",)

    asyncio.run(run())


def test_the_end_of_a_worker_ends_the_look_ups_that_run(names: Names) -> None:
    names.delay_s = 0.3

    async def run() -> None:
        found = new_resolver()
        first = asyncio.create_task(found.lookup("ok0.test"))
        await asyncio.sleep(0.05)
        await found.close()
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(run())


def test_a_name_that_is_too_long_is_a_dns_error(web: TinyWeb) -> None:
    assert reasons(Download(config())(table(f"http://{'a' * 64}.test/", f"http://{'a.' * 200}test/"))) == [
        "dns_error",
        "dns_error",
    ]


@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::1"], ["192.0.0.8"], ["fe80::1%lo"]])
def test_a_name_with_one_private_address_is_refused(names: Names, addresses: list[str]) -> None:
    names.failure = addresses

    async def run() -> None:
        found = new_resolver()
        with pytest.raises(PrivateAddressError):
            await found.resolve("bad0.test", 80)

    asyncio.run(run())


def test_an_address_that_changes_after_the_check_is_not_used(web: TinyWeb, names: Names) -> None:
    """Rebinding: the connection uses the addresses that were checked, whatever a second look-up would say."""
    names.failure = ["192.0.2.1"]
    settings = config(allowed_private_hosts=())
    assert reasons(Download(settings)(table(f"http://bad0.test:{web.port}/image/0"))) == ["private_address"]
    assert names.asked["bad0.test"] == 1
