"""The count of requests to hosts and object stores."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.commands.dry_run import PROTOCOL, CountedDownload, input_requests, output_cost, upload_parts
from pipeline.config import load_config
from pipeline.output.store import Store
from pipeline.read.types import Piece, ShardPlan
from tests.pipeline.output.resume.jobs import provenance_of
from tests.pipeline.stages.download.rows import config, reasons, table
from tests.pipeline.stages.download.server import TinyWeb


@pytest.fixture(scope="module")
def web() -> Iterator[TinyWeb]:
    web = TinyWeb()
    yield web
    web.close()


def test_redirects_and_retries_count_and_refused_urls_do_not(web: TinyWeb) -> None:
    paths = ("/image/1", "/flaky/x", "/status/404", "/loop/y")
    urls = [*map(web.url, paths), "ftp://127.0.0.1/a.jpg", "http://10.0.0.1/a.jpg"]
    download = CountedDownload(config(retries=2, max_redirects=3))
    web.hits.clear()
    for _ in range(2):
        found, _ = download.isolate(table(*urls))
        efforts = download.take()
        assert reasons(found) == [None, None, "http_error", "too_many_redirects", "invalid_url", "private_address"]
        counts = {name: timing["rows"] for name, timing in efforts.items() if name.startswith("row ")}
        assert sum(counts.values()) == web.hits.total()
        assert counts["row 000000000000"] == 1
        assert counts["row 000000000003"] == 4
        assert counts["row 000000000005"] == 0
        seconds = {name: timing["seconds"] for name, timing in efforts.items()}
        assert seconds["row 000000000000"] >= seconds["busy 000000000000"] > 0.04
        assert seconds["row 000000000001"] > seconds["busy 000000000001"] + 0.04  # the pause before the retry
        assert seconds["busy 000000000005"] == 0
        web.hits.clear()
    assert download.take() == {}


def test_a_local_output_needs_no_requests_and_a_remote_one_some_for_each_shard(tmp_path: Path) -> None:
    local = load_config(["input=a.csv", f"output={tmp_path / 'out'}"])
    assert output_cost(local, provenance_of(local)) == (0, 0)
    costs = []
    for formats in ("[train]", "[train,grit,arrow]"):
        remote = load_config(["input=a.csv", "output=memory://bucket/out", f"formats={formats}"])
        costs.append(output_cost(remote, provenance_of(remote)))
    assert costs[0].fixed > 0
    # A tar, its index and the manifest are uploaded and confirmed, before and after the commit; the other formats add
    # three files, and without them one request removes those of an earlier run.
    assert costs[0].per_shard >= 6
    assert costs[1].per_shard - costs[0].per_shard >= 3 * 2 - 1
    assert costs[1].total(10) == pytest.approx(10 * costs[1].per_shard + costs[1].fixed)
    assert not Store(f"{PROTOCOL}://dry-run-1").fs.store
    assert not Store("memory://bucket/out").sizes("")


def test_input_files_in_a_store_are_read_in_blocks_and_local_ones_take_no_requests() -> None:
    def plan(path: str) -> ShardPlan:
        pieces = tuple(Piece(path, first, 500, 500 << 20) for first in (0, 500))
        return ShardPlan(0, 0, 1000, pieces)

    assert input_requests([plan("/data/a.parquet")]) == 0
    assert input_requests([plan("memory://bucket/a.parquet")]) == 2 * (2 + 5)


def test_large_files_are_uploaded_in_parts() -> None:
    assert upload_parts({"a": 99 << 20, "b": 10}) == 0
    assert upload_parts({"a": 240 << 20}) == 5 + 1
