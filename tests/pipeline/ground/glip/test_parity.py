"""Our GLIP against the authors' numbers, and against the released files' keys and shapes."""

from pathlib import Path

import pytest
import torch

from pipeline.ground.glip.config import CONFIGS
from pipeline.ground.glip.load import IGNORABLE
from pipeline.ground.glip.model import Glip
from tests.parity.glip import DATA, run


@pytest.mark.slow
@pytest.mark.timeout(900)  # up to nine passes forward and back, ten seconds each on two quiet cores
@pytest.mark.parametrize("case", ["glip_t_a", "glip_t"])
def test_every_tensor_loss_and_gradient_agrees(case: str) -> None:
    results = run(DATA / f"{case}.npz")
    assert len(results) > 70
    assert [result for result in results if not result[1] <= result[2]] == []


def manifest(path: Path) -> dict[str, tuple[int, ...]]:
    """Keys and shapes of a released file, but for what a model derives itself."""
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
