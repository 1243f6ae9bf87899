"""Numbers in the config.json of a GLIP folder that no network can be built from."""

from dataclasses import asdict
from typing import Any

import pytest

from pipeline.stages.ground.glip.config import CONFIGS, from_dict


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [
        ("text", "vocab_size", 0),
        ("text", "heads", -1),
        ("head", "prior", float("nan")),
        ("anchors", "strides", [0] * 5),
    ],
)
def test_a_number_that_is_too_small_or_not_finite_is_named(group: str, key: str, value: Any) -> None:
    values = asdict(CONFIGS["miniature"])
    values[group][key] = value
    with pytest.raises(ValueError, match=rf"{group}\.{key} is .*; give"):
        from_dict(values)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_configurations_of_this_version_are_valid(name: str) -> None:
    assert from_dict(asdict(CONFIGS[name])) == CONFIGS[name]
