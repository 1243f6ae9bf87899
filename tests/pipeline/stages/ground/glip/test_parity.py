"""Parity with the authors' numbers, and with the keys and shapes of the released files."""

from pathlib import Path

import pytest
import torch

from pipeline.stages.ground.glip.config import CONFIGS
from pipeline.stages.ground.glip.load import IGNORABLE
from pipeline.stages.ground.glip.model import Glip
from tests.parity.glip import run
from tests.parity.report import DATA


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.parametrize("case", ["glip_t_a", "glip_t"])
def test_every_tensor_equals_the_authors(case: str) -> None:
    results = run(DATA / f"{case}.npz")
    assert len(results) > 70
    assert [result for result in results if not result[1] <= result[2]] == []


def manifest(path: Path) -> dict[str, tuple[int, ...]]:
    """Keys and shapes of a released file, without derived buffers."""
    lines = (line.split("\t") for line in path.read_text().splitlines() if line and not line.startswith("#"))
    entries = {key.removeprefix("module."): tuple(map(int, shape.split("x"))) for key, shape, _ in lines}
    return {key: shape for key, shape in entries.items() if not IGNORABLE.search(key)}


@pytest.mark.parametrize("name", ["glip_t_a", "glip_t", "glip_l"])
def test_state_dict_has_the_released_keys_and_shapes(name: str) -> None:
    with torch.device("meta"):
        model = Glip(CONFIGS[name])
    assert {key: tuple(value.shape) for key, value in model.state_dict().items()} == manifest(
        DATA / f"manifest_{name}.txt"
    )
