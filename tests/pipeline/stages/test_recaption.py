"""Captions by a model behind an endpoint, against a local server that speaks the protocol of OpenAI."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.images import STORED_IMAGE_LIMITS, decode
from pipeline import endpoint, grit
from pipeline.commands import verify
from pipeline.endpoint import parse_endpoint
from tests.pipeline.commands.derive.outputs import read_rows
from tests.pipeline.jobs import N_SCENES, run_job

PAIRS = ("grounder=none", "parse.model=none", "scorer=none", "formats=[grit,arrow]", "rows_per_shard=20")
KEY = "s3cret-key"


class Model(ThreadingHTTPServer):
    """Answers with `statuses` one after the other, the last one forever, and a caption that quotes the question."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses = [200]
        self.seen: list[tuple[int, str, dict[str, str], dict[str, Any]]] = []
        self.lock = threading.Lock()

    @property
    def settings(self) -> list[str]:
        name = f"openai:http://127.0.0.1:{self.server_address[1]}/v1#some/vlm"
        return [f"recaption.captioner={name}", f"recaption.api_key={KEY}", "recaption.concurrency=1",
                'recaption.prompt="Describe {caption}"', "recaption.retries=1"]  # fmt: skip

    @property
    def answered(self) -> list[str]:
        """The questions that were answered."""
        return [body["messages"][0]["content"][1]["text"] for status, _, _, body in self.seen if status == 200]


class Handler(BaseHTTPRequestHandler):
    server: Model

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            status = self.server.statuses[0]
            self.server.statuses[:-1] = self.server.statuses[1:-1]
            self.server.seen.append((status, self.path, dict(self.headers), body))
        text = "New &amp; " + body["messages"][0]["content"][1]["text"]
        data = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    monkeypatch.setattr(endpoint, "PAUSE_S", 0.001)
    server = Model()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def kept(output: Path) -> list[dict[str, Any]]:
    return [row for row in read_rows(output).values() if row["status"] == "kept"]


def test_each_image_gets_a_caption_and_the_original_stays(model: Model, tars: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    model.statuses = [503, 429, 200]
    assert run_job(tars, output, *PAIRS, *model.settings, "recaption.retries=2") == 0
    for row in kept(output):
        original, new = row["captions"]
        assert (original["kind"], original["text"]) == ("original", row["caption"])
        assert (new["kind"], new["text"]) == ("recaption", f"New & Describe {row['caption']}")
    assert len(kept(output)) == N_SCENES == len(model.answered)
    _, path, headers, body = model.seen[-1]
    assert (path, body["model"], headers["Authorization"]) == ("/v1/chat/completions", "some/vlm", f"Bearer {KEY}")
    url = body["messages"][0]["content"][0]["image_url"]["url"]
    assert decode(base64.b64decode(url.partition(",")[2]), STORED_IMAGE_LIMITS).shape[2] == 3
    manifest = json.loads((output / "_manifests" / "00000.json").read_text())
    assert manifest["provenance"]["models"]["captioner"]["prompt"] == "Describe {caption}"
    assert manifest["provenance"]["models"]["captioner"]["name"].endswith("/v1#some/vlm")
    files = [path for path in output.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert verify.main([str(output)]) == 0


def test_a_resumed_job_asks_nothing_twice(
    model: Model, tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    model.statuses = [200] * 5 + [401]  # four answers are stored together
    assert run_job(tars, output, *PAIRS, *model.settings) == 2
    assert "check URL, model and OPENAI_API_KEY" in capsys.readouterr().err
    stored = json.loads((output / "_recaptions" / "000000000000.json").read_text())
    assert len(stored) == 4
    first = model.answered[:4]
    model.statuses, model.seen = [200], []
    assert run_job(tars, output, *PAIRS, *model.settings) == 0
    assert len(model.answered) == N_SCENES - 4
    assert not {*model.answered} & {*first}
    assert all(len(row["captions"]) == 2 for row in kept(output))
    assert not list((output / "_recaptions").iterdir())
    model.seen = []
    assert run_job(tars, output, *PAIRS, *model.settings) == 0
    assert model.seen == []


def test_a_row_that_the_model_refuses_keeps_its_caption(model: Model, tars: Path, tmp_path: Path) -> None:
    model.statuses = [400, 200]
    assert run_job(tars, tmp_path / "out", *PAIRS, *model.settings) == 0
    found = kept(tmp_path / "out")
    assert [row["captions"] is None for row in found] == [True] + [False] * (N_SCENES - 1)
    assert all(row["caption"] for row in found)


def test_an_endpoint_without_an_answer_ends_the_job(
    model: Model, tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.statuses = [500]
    assert run_job(tars, tmp_path / "out", *PAIRS, *model.settings) == 2
    assert "gives no answer (500: " in capsys.readouterr().err


def test_a_dry_run_predicts_requests_and_their_price(
    model: Model, tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"input={tars}", f"output={tmp_path / 'out'}", "ray.runner=local", *PAIRS, *model.settings]
    assert grit.main([*arguments, "dry_run=true", "recaption.price=500"]) == 0
    lines = {line[:32].strip(): line[32:].split() for line in capsys.readouterr().out.splitlines()}
    assert lines["requests to the captioner"][0] == str(N_SCENES)
    assert lines["price of them"][0] == f"{N_SCENES / 2:.2f}"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name", ["openai:gpt", "http://host/v1#m", "openai:http://me:key@host/v1#m", "openai:http://h/v1?key=1#m"]
)
def test_an_endpoint_without_url_or_model_or_with_a_secret_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="give openai:URL#MODEL") as error:
        parse_endpoint("recaption.captioner", name)
    assert "key=1" not in str(error.value)
    assert "me:key" not in str(error.value)
