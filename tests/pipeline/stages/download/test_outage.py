"""A worker whose network or name server is lost drops no row; dead names and hosts still cost theirs."""

import errno
import os
import socket
import time
from typing import Any

import aiohappyeyeballs
import pytest

from pipeline.stages.download import fetch as session
from pipeline.stages.download import hosts as outage
from pipeline.stages.download import hosts as shortage
from pipeline.stages.download import resolver
from pipeline.stages.download.client import Client
from pipeline.stages.download.stage import Download
from tests.patience import PATIENCE_S, wait_until
from tests.pipeline.stages.download.names import Names
from tests.pipeline.stages.download.rows import config, reasons, table
from tests.pipeline.stages.download.server import TinyWeb

UNANSWERED = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
UNREACHED = OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortage, "MAX_PAUSE_S", 0.2)
    monkeypatch.setattr(shortage, "PATIENCE_S", 1.0)
    monkeypatch.setattr(resolver, "RETRY_PAUSE_S", 0.01)


class Network:
    """The network of this machine: while `is_down`, no name is answered, and no address of `bad` hosts is reached."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_down, self.names = False, Names(failure=UNANSWERED)
        self._connect = aiohappyeyeballs.start_connection
        monkeypatch.setattr(socket, "getaddrinfo", self.getaddrinfo)
        monkeypatch.setattr(aiohappyeyeballs, "start_connection", self.connect)

    def getaddrinfo(self, host: Any, *args: Any, **options: Any) -> Any:
        if self.is_down and str(host).endswith(".test"):
            self.names.asked[host] += 1
            raise UNANSWERED
        return self.names.getaddrinfo(host, *args, **options)

    async def connect(self, *args: Any, **options: Any) -> socket.socket:
        if self.is_down:
            raise UNREACHED
        return await self._connect(*args, **options)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(monkeypatch)


def good(web: TinyWeb, n: int = 30) -> list[str]:
    return [f"http://ok{i}.test:{web.port}/size/40x{40 + i}" for i in range(n)]


def test_a_worker_without_network_fails_its_shard(web: TinyWeb, network: Network) -> None:
    network.is_down = True
    with pytest.raises(
        OSError, match=r"no name server can be reached in the download for 1 s on .*; check the network"
    ):
        Download(config())(table(*good(web)))


@pytest.mark.parametrize("n_known", [1, 30])
def test_a_worker_that_loses_its_network_fails_its_next_shard(
    web: TinyWeb, network: Network, monkeypatch: pytest.MonkeyPatch, n_known: int
) -> None:
    async def find_nothing(_: Client) -> bool:
        return False

    monkeypatch.setattr(session, "IDLE_S", 0.01)
    monkeypatch.setattr(Client, "_probe", find_nothing)
    download = Download(config())
    assert reasons(download(table(*good(web, n_known)))) == [None] * n_known
    network.is_down = True
    time.sleep(0.1)
    with pytest.raises(OSError, match=r"no (host|name server) can be reached"):
        download(table(*good(web)))


def test_an_outage_that_ends_costs_no_row(web: TinyWeb, network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even that of a name whose look-up began in the outage, and fails after others have succeeded."""
    monkeypatch.setattr(shortage, "PATIENCE_S", PATIENCE_S)
    urls, late, n_late, ask, n_seen = good(web, 31), "ok30.test", 0, network.getaddrinfo, len(web.paths)

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        nonlocal n_late
        if host != late or n_late == 2:
            return ask(host, *args, **options)
        n_late += 1
        if n_late == 2:
            wait_until(lambda: all(network.names.asked[f"ok{i}.test"] >= 2 for i in range(30)))
            network.is_down = False
            wait_until(lambda: len(web.paths) > n_seen)
        raise UNANSWERED

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    network.is_down = True
    assert reasons(Download(config())(table(*urls))) == [None] * 31
    assert n_late == 2


def test_a_few_dead_names_and_hosts_are_dropped_at_once(
    network: Network, monkeypatch: pytest.MonkeyPatch, web: TinyWeb
) -> None:
    monkeypatch.setattr(shortage, "PATIENCE_S", 2 * PATIENCE_S)
    network.is_down = True
    urls = ["http://bad0.test/", "http://bad1.test/", "http://bad2.test/", "http://127.0.0.1:6/", "http://127.0.0.1:8/"]
    download, start = Download(config(retries=0)), time.monotonic()
    for _ in range(2):
        assert reasons(download(table(*urls))) == ["dns_error"] * 3 + ["connection_error"] * 2
    assert time.monotonic() - start < PATIENCE_S


def test_many_dead_names_are_dropped_if_another_is_found(network: Network, web: TinyWeb) -> None:
    bad = [f"http://bad{i}.test/" for i in range(outage.MANY + 10)]
    assert reasons(Download(config())(table(*bad, *good(web, 1)))) == ["dns_error"] * len(bad) + [None]


def test_many_hosts_without_route_are_dropped_if_a_known_host_is_reached(web: TinyWeb, network: Network) -> None:
    """All hosts at the end of a shard are dead; the worker looks whether one that answered before is still there."""
    bad = [f"http://127.0.0.{i}/" for i in range(2, 32)]
    settings = config(retries=0, allowed_private_hosts=(*(f"127.0.0.{i}" for i in range(1, 40)), "ok0.test"))
    download = Download(settings)
    assert reasons(download(table(*good(web, 1)))) == [None]
    network.is_down = True
    assert reasons(download(table(*bad))) == ["connection_error"] * len(bad)
