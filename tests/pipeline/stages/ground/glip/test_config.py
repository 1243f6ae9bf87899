"""Configurations of GLIP in JSON files."""

import json
from dataclasses import asdict

import pytest

from hypergrit_common.errors import UserError
from pipeline.stages.ground.glip.config import CONFIGS, from_dict


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_is_unchanged_after_writing_and_reading_json(name: str) -> None:
    assert from_dict(json.loads(json.dumps(asdict(CONFIGS[name])))) == CONFIGS[name]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"head": {"round": 3}}, r"no key head\.round\. Did you mean: 'head\.rounds'"),
        ({"head": {"rounds": "3"}}, r"head\.rounds is 3; give a whole number"),
        ({"head": {"deformable": 1}}, r"head\.deformable is 1; give true or false"),
        ({"head": {"coarse_offsets": "guess"}}, "flat_memory or resize"),
        ({"text": 5}, "text is a group of keys"),
        ({"anchors": {"strides": [8, 16]}}, "five strides"),
        ({"anchors": {"strides": 8}}, r"anchors\.strides must be a list"),
        ({"text": {"vocab_size": 0}}, r"text\.vocab_size is 0; give"),
        ({"text": {"heads": -1}}, r"text\.heads is -1; give"),
        ({"head": {"prior": float("nan")}}, r"head\.prior is nan; give"),
        ({"anchors": {"strides": [0] * 5}}, r"anchors\.strides is 0; give"),
    ],
)
def test_a_wrong_configuration_is_an_error_that_names_the_key(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_dict(values)


def test_keys_of_the_training_are_ignored() -> None:
    values = asdict(CONFIGS["glip_t"])
    values["head"]["fuse_dropout"] = values["text"]["dropout"] = values["backbone"]["drop_path"] = 0.1
    assert from_dict(values | {"loss": {"candidates": 9}, "drop_block": 0.3}) == CONFIGS["glip_t"]
