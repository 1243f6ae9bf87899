"""Extra headers and proxies of downloads: what is sent to whom, and that their secrets are never written."""

import asyncio
import contextlib
import json
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.config import RESOLVED_FILE, split_runtime, to_yaml
from hypergrit_common.errors import UserError
from pipeline.config import load_config
from pipeline.output.record import make_record, write_record
from pipeline.output.store import Store
from pipeline.read.plan import plan_shards
from pipeline.report.summary import report
from pipeline.run.provenance import make_provenance
from pipeline.run.steps import Steps
from pipeline.stages.download.config import DownloadConfig
from pipeline.stages.download.stage import Download
from tests.pipeline.stages.download.rows import config, reasons, table
from tests.pipeline.stages.download.server import TinyWeb, jpeg

TOKEN = "tok3n-S3CRET"
PASSWORD = "pa55word"


class Recorder:
    """A server on 127.0.0.1 that answers each request with an image, or a status, and keeps what it received.

    As a proxy it answers for every host.
    """

    def __init__(self, status: bytes = b"200 OK", location: str = "") -> None:
        self.received: list[str] = []
        self.status, self.location = status, location
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self.thread.start()
        ready.wait(10)

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        self.loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self.received.append((await reader.readuntil(b"\r\n\r\n")).decode())
                body = jpeg() if self.status.startswith(b"200") else b""
                location = f"Location: {self.location}\r\n".encode() if self.location else b""
                head = b"HTTP/1.1 " + self.status + b"\r\n" + location + b"Content-Length: %d\r\n\r\n" % len(body)
                writer.write(head + body)
        writer.close()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    server = Recorder()
    yield server
    server.close()


def test_headers_go_to_their_origin_only_and_not_along_a_redirect(recorder: Recorder) -> None:
    other = Recorder(b"302 Found", f"http://127.0.0.1:{recorder.port}/b.jpg")
    headers = {f"http://127.0.0.1:{other.port}": {"Authorization": TOKEN}, "*": {"X-Purpose": "research"}}
    found = Download(config(headers=headers))(table(f"http://127.0.0.1:{other.port}/a.jpg"))
    other.close()
    assert reasons(found) == [None]
    assert f"Authorization: {TOKEN}" in other.received[0]
    assert TOKEN not in recorder.received[0]
    assert all("X-Purpose: research" in text for text in (*other.received, *recorder.received))


def test_requests_go_to_the_proxy_with_its_password(recorder: Recorder) -> None:
    proxy = f"http://ann:{PASSWORD}@127.0.0.1:{recorder.port}"
    urls = ["http://example.org/1.jpg", "http://images.example.org:8080/2.jpg"]
    stage = Download(config(proxy=proxy, proxy_resolves=True, allowed_private_hosts=()))
    assert reasons(stage(table(*urls))) == [None, None]
    assert sorted(text.split()[1] for text in recorder.received) == sorted(urls)
    assert all("Proxy-Authorization: Basic " in text for text in recorder.received)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1/1.jpg", "http://169.254.169.254/x", "http://localhost/1.jpg", "http://intranet/1.jpg",
     "http://db.internal/1.jpg", "http://printer.local./1.jpg", "http://0x7f000001/1.jpg", "http://[::1]/1.jpg"],
)  # fmt: skip
def test_a_proxy_is_not_asked_for_private_addresses(recorder: Recorder, url: str) -> None:
    stage = Download(config(proxy=f"http://127.0.0.1:{recorder.port}", proxy_resolves=True, allowed_private_hosts=()))
    assert reasons(stage(table(url))) == ["private_address"]
    assert recorder.received == []


def test_a_row_cannot_fetch_from_the_proxy_itself(recorder: Recorder) -> None:
    stage = Download(config(proxy=f"http://127.0.0.1:{recorder.port}", allowed_private_hosts=()))
    assert reasons(stage(table(f"http://127.0.0.1:{recorder.port}/status"))) == ["private_address"]
    assert recorder.received == []


@pytest.mark.parametrize(
    ("status", "detail"), [(b"407 No", "the proxy answered 407"), (b"503 No", "the proxy answered 503")]
)
def test_a_proxy_that_refuses_is_named(status: bytes, detail: str) -> None:
    server = Recorder(status)
    settings = config(proxy=f"http://127.0.0.1:{server.port}", proxy_resolves=True, retries=0)
    found = Download(settings)(table("https://example.org/1.jpg"))
    server.close()
    assert found["detail"].to_pylist() == [detail]


def test_a_proxy_that_cannot_be_reached_fails_the_shard_and_drops_no_row() -> None:
    settings = config(proxy="http://127.0.0.1:1", proxy_resolves=True)
    with pytest.raises(OSError, match=r"the proxy cannot be reached .*check download\.proxy"):
        Download(settings)(table("http://example.org/1.jpg"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"headers": {"example.org": {"A": TOKEN}}}, "no origin"),
        ({"headers": {"https://example.org/path": {"A": TOKEN}}}, "no origin"),
        ({"headers": {"https://ann:pw@example.org": {"A": TOKEN}}}, "no origin"),
        ({"headers": {"*": {"A": f"{TOKEN}\r\nHost: x"}}}, "not one line of printable ASCII"),
        ({"headers": {"*": {"Host": TOKEN}}}, "'Host' cannot be set"),
        ({"headers": {"*": {"A B": TOKEN}}}, "'A B' cannot be set"),
        ({"headers": {"*": {"User-Agent": TOKEN}}}, "cannot be set"),
        ({"proxy": f"socks5://ann:{TOKEN}@x:1"}, "proxy is not a URL"),
        ({"proxy": f"http://x/{TOKEN}"}, "proxy is not a URL"),
        ({"proxy_resolves": True}, "there is no proxy"),
    ],
)
def test_a_bad_setting_is_refused_without_its_secret(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as found:
        DownloadConfig(**settings).check_use()
    assert TOKEN not in str(found.value)


HEADERS = f"{{https://example.org: {{Authorization: {TOKEN}}}}}"


@pytest.mark.parametrize(
    "argument",
    [
        f"download.headers={TOKEN}",
        f"download.headers=[{TOKEN}]",
        f"download.headers={{https://example.org: {TOKEN}}}",
        f"download.headers={{https://example.org: [{TOKEN}]}}",
        f"download.headers={{https://example.org: {{A: [{TOKEN}]}}}}",
        f"download.headers={{https://example.org: {{A: {TOKEN}",
        f"download.proxy=[{TOKEN}]",
        f"download.proxy={{a: {TOKEN}}}",
        f"download.proxi={TOKEN}",
        f"download={{headers: {TOKEN}}}",
        f"ray.env={TOKEN}",
        f"ray.env={{A: [{TOKEN}]}}",
        f"ray.env={{A B: {TOKEN}}}",
    ],
)
def test_errors_of_the_command_line_and_of_files_do_not_repeat_secrets(argument: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as found:
        load_config(["input=a", "output=b", argument])
    assert TOKEN not in str(found.value) or "proxi" in argument  # a misspelt key is not known to be a secret
    path = tmp_path / "secrets.yaml"
    key, _, value = argument.partition("=")
    path.write_text(f"{key.replace('.', ': {', 1)}: {value}" + ("}" if "." in key else ""))
    with pytest.raises(UserError) as found:
        load_config(["input=a", "output=b", str(path)])
    assert TOKEN not in str(found.value)


def test_secrets_are_not_saved_and_do_not_change_the_content_hash() -> None:
    secret = load_config(
        ["input=a", "output=b", f"download.headers={HEADERS}", f"download.proxy=http://a:{PASSWORD}@p:1",
         f"ray.env={{AWS_SECRET_ACCESS_KEY: {TOKEN}}}"]
    )  # fmt: skip
    assert secret.ray.variables() == {"AWS_SECRET_ACCESS_KEY": TOKEN}
    assert secret.download.headers == {"https://example.org": {"Authorization": TOKEN}}
    plain = load_config(["input=a", "output=b"])
    for text in (to_yaml(secret), repr(secret), json.dumps(split_runtime(secret))):
        assert TOKEN not in text
        assert PASSWORD not in text
    assert to_yaml(secret) == to_yaml(plain)
    assert split_runtime(secret) == split_runtime(plain)
    assert pickle.loads(pickle.dumps(secret)) == secret


def test_no_file_and_no_line_of_a_job_has_a_secret(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    web, server = TinyWeb(), Recorder(b"407 No")
    rows = [
        {"url": url, "caption": "a cat"}
        for url in (web.url("/image/1"), web.url("/cut/1"), "https://example.org/1.jpg")
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    secrets = tmp_path / "secrets.yaml"
    secrets.write_text(
        f"download:\n  headers:\n    {web.url('')}: {{Authorization: {TOKEN}}}\n"
        f"  proxy: http://ann:{PASSWORD}@127.0.0.1:{server.port}\n"
        f"ray:\n  env: {{AWS_SECRET_ACCESS_KEY: {TOKEN}}}\n"
    )
    config = load_config(
        [f"input={tmp_path}/rows.jsonl", f"output={tmp_path}/out", str(secrets), "download.retries=0",
         "download.allowed_private_hosts=[127.0.0.1]", "download.proxy_resolves=true", "download.deadline_s=3"]
    )  # fmt: skip
    (plan,) = plan_shards(config.input, 10, None, config.read)
    provenance, store = make_provenance(config), Store(config.output)
    steps = Steps(config, provenance)
    steps.write(plan, *steps.infer(plan, *steps.prepare(plan)))
    store.write(RESOLVED_FILE, to_yaml(config))
    write_record(store, make_record(config, provenance, [], []))
    report(config, Store(config.output), [plan.index])
    web.close()
    server.close()
    assert server.received
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    printed = "".join((*capfd.readouterr(), caplog.text)).encode()
    for secret in (TOKEN, PASSWORD):
        assert secret.encode() not in written + printed
