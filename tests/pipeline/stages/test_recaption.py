"""Captions by a model behind an endpoint, against a local server that speaks the protocol of OpenAI."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.images import STORED_IMAGE_LIMITS, decode
from pipeline.commands import verify
from tests.pipeline.commands.derive.outputs import read_rows
from tests.pipeline.endpoint_server import Model, serving
from tests.pipeline.jobs import N_SCENES, run_job

PAIRS = ("grounder=none", "parse.model=none", "scorer=none", "formats=[grit,arrow]", "rows_per_shard=20")
KEY = "s3cret-key"


def quote(body: dict[str, Any]) -> str:
    """A caption that quotes the question."""
    return "New &amp; " + str(body["messages"][0]["content"][1]["text"])


class Captioner(Model):
    """Answers with `statuses` one after the other, the last one forever."""

    @property
    def statuses(self) -> list[int]:
        return [status for status, _ in self.answers]

    @statuses.setter
    def statuses(self, values: list[int]) -> None:
        self.answers = [(status, quote) for status in values]

    @property
    def settings(self) -> list[str]:
        return [f"recaption.captioner={self.name}", f"recaption.api_key={KEY}", "recaption.concurrency=1",
                'recaption.prompt="Describe {caption}"', "recaption.retries=1"]  # fmt: skip

    @property
    def answered(self) -> list[str]:
        """The questions that were answered."""
        return [body["messages"][0]["content"][1]["text"] for status, _, _, body in self.seen if status == 200]


@pytest.fixture
def model() -> Iterator[Captioner]:
    with serving(Captioner((200, quote))) as server:
        yield server


def kept(output: Path) -> list[dict[str, Any]]:
    return [row for row in read_rows(output).values() if row["status"] == "kept"]


def test_each_image_gets_a_caption_and_the_original_stays(model: Captioner, tars: Path, tmp_path: Path) -> None:
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
    model: Captioner, tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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


def test_a_row_that_the_model_refuses_keeps_its_caption(model: Captioner, tars: Path, tmp_path: Path) -> None:
    model.statuses = [400, 200]
    assert run_job(tars, tmp_path / "out", *PAIRS, *model.settings) == 0
    found = kept(tmp_path / "out")
    assert [row["captions"] is None for row in found] == [True] + [False] * (N_SCENES - 1)
    assert all(row["caption"] for row in found)


def test_a_dry_run_asks_about_its_sample_and_stores_no_answer(model: Captioner, tars: Path, tmp_path: Path) -> None:
    assert run_job(tars, tmp_path / "out", *PAIRS, *model.settings, "dry_run=true") == 0
    assert len(model.seen) == N_SCENES
    assert not (tmp_path / "out").exists()
