"""A vision-language model at an endpoint, against a local server."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.images import STORED_IMAGE_LIMITS, decode
from pipeline import load_config, make_provenance
from pipeline.images import encode_jpeg
from pipeline.run.provenance import check_models
from pipeline.stages.ground.load import GroundConfig, make_grounder, score_threshold
from pipeline.stages.ground.stage import Ground
from tests.pipeline.endpoint_server import Model, serving
from tests.pipeline.rows import table_after

CAPTION = "a dog and a cat"
CHUNKS = [{"start": 0, "end": 5, "root": 1, "removed": None}, {"start": 10, "end": 15, "root": 4, "removed": None}]
DOG = {"phrase": 0, "box": [100, 200, 500, 900], "score": 0.9}
CAT = {"phrase": 1, "box": [600, 0, 1200, 500], "score": 0.7}


@pytest.fixture
def model() -> Iterator[Model]:
    with serving(Model()) as server:
        yield server


def boxes(*found: dict[str, Any]) -> str:
    return json.dumps({"boxes": found})


def ground(model: Model, n: int = 1, **settings: Any) -> list[dict[str, Any]]:
    image = np.full((30, 40, 3), 200, np.uint8)
    row = {"caption": CAPTION, "noun_chunks": CHUNKS, "width": 40, "height": 30, "image": encode_jpeg(image)}
    config = GroundConfig(grounder=model.name, **settings)
    return list(Ground(config)(table_after("parse", [row] * n)).to_pylist())


def test_boxes_of_the_answer_become_those_of_the_phrases(model: Model) -> None:
    model.answers = [(200, boxes(CAT, DOG))]
    (row,) = ground(model)
    first, second = row["boxes"]
    assert (first["phrase"], second["phrase"]) == (0, 1)
    assert list(first.values())[1:] == pytest.approx([0.1, 0.2, 0.5, 0.9, 0.9])
    assert second["x_max"] == 1.0  # clipped
    assert row["presence"] is None


def test_the_request_has_image_caption_phrases_model_and_key(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    model.answers = [(200, boxes(DOG))]
    ground(model)
    ((_, path, headers, body),) = model.seen
    picture, text = body["messages"][0]["content"]
    data = base64.b64decode(picture["image_url"]["url"].removeprefix("data:image/jpeg;base64,"))
    assert decode(data, STORED_IMAGE_LIMITS).shape == (30, 40, 3)
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer s3cret"
    assert (body["model"], body["temperature"]) == ("some/vlm", 0)
    assert all(part in text["text"] for part in ('"a dog and a cat"', '0: "a dog"', '1: "a cat"'))
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["boxes"]


@pytest.mark.parametrize(
    "answer",
    ["no JSON", "[]", '{"boxes": 3}', '{"boxes": [{"phrase": 0}]}', '{"boxes": [{"phrase": 0, "box": [1, 2, 3], "score": 1}]}',
     '{"boxes": [{"phrase": "0", "box": [0, 0, 9, 9], "score": 1}]}', '{"boxes": [{"phrase": 0, "box": [0, 0, 9, NaN], "score": 1}]}',
     f'{{"boxes": [{{"phrase": 0, "box": [0, 0, 9, 1{"0" * 400}], "score": 1}}]}}'],
)  # fmt: skip
def test_row_with_an_unreadable_answer_is_dropped_by_name(model: Model, answer: str) -> None:
    model.answers = [(200, answer)]
    (row,) = ground(model)
    assert (row["stage"], row["reason"], row["detail"]) == ("ground", "ungroundable", "unreadable_answer")


def test_boxes_that_are_empty_or_below_the_floor_or_of_no_phrase_are_left_out(model: Model) -> None:
    found = [DOG, CAT | {"score": 0.2}, DOG | {"box": [500, 0, 100, 900]}, DOG | {"phrase": 7}]
    model.answers = [(200, boxes(*found))]
    (row,) = ground(model, floor=0.3)
    assert [box["phrase"] for box in row["boxes"]] == [0]


def test_failures_that_pass_are_tried_again(model: Model) -> None:
    model.answers = [(503, "busy"), (429, "slow down"), (200, boxes(DOG))]
    (row,) = ground(model)
    assert len(row["boxes"]) == 1
    assert len(model.seen) == 3


@pytest.mark.parametrize(
    ("status", "message"), [(500, "gives no answer"), (401, "check URL, model and OPENAI_API_KEY")]
)
def test_endpoint_that_cannot_be_used_ends_the_job_with_the_fix(model: Model, status: int, message: str) -> None:
    model.answers = [(status, "what the server says")]
    with pytest.raises(UserError, match=message):
        ground(model)


@pytest.mark.usefixtures("model")
def test_endpoint_that_is_not_there_ends_the_job() -> None:
    server = Model()
    server.server_close()
    grounder = make_grounder(GroundConfig(grounder=server.name))
    with pytest.raises(UserError, match="gives no answer"):
        grounder.forward(grounder.prepare([np.zeros((9, 9, 3), np.uint8)], ["a dog"], [[(0, 5)]]))


@pytest.mark.parametrize(("batch_size", "place"), [(8, 1), (1, 2), (2, 2)])  # also alone in its batch
def test_a_refused_request_drops_its_row_alone_and_asks_nothing_again(
    model: Model, batch_size: int, place: int
) -> None:
    model.answers = [(200, boxes(DOG))] * 3
    model.answers[place] = (400, "too long")
    rows = ground(model, 3, batch_size=batch_size)
    assert sorted(str(row["reason"]) for row in rows) == ["None", "None", "ungroundable"]
    (refused,) = [row for row in rows if row["status"] == "dropped"]
    assert {chunk["removed"] for chunk in refused["noun_chunks"]} == {"refused_request"}
    assert len(model.seen) == 3


def test_an_endpoint_that_refuses_all_requests_is_an_error_with_its_answer(model: Model) -> None:
    model.answers = [(400, "too long")] * 2
    with pytest.raises(ValueError, match="too long"):
        ground(model, 2)


@pytest.mark.parametrize(
    "name", ["openai:gpt", "openai:http://host/v1", "openai:http://me:key@host/v1#m", "openai:http://host/v1?key=1#m"]
)
@pytest.mark.parametrize("key", ["grounder", "recaption.captioner"])
def test_name_without_url_or_model_or_with_a_secret_is_refused(key: str, name: str) -> None:
    with pytest.raises(UserError, match="give openai:URL#MODEL") as error:
        load_config(["input=pairs.csv", "output=out", f"{key}={name}"])
    assert "key=1" not in str(error.value)
    assert "me:key" not in str(error.value)


def test_job_records_endpoint_and_model(model: Model) -> None:
    config = load_config(["input=pairs.csv", "output=out", f"grounder={model.name}"])
    check_models(config)
    assert make_provenance(config)["models"]["grounder"] == {"name": model.name}
    assert score_threshold(model.name) == 0.65
