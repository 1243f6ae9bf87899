"""The network creates tensors only on its inputs' device and never copies a value to the CPU.

On PyTorch's "meta" device, whose tensors hold no numbers, both would be errors.
"""

import pytest
import torch

from pipeline.stages.ground.glip.config import CONFIGS
from pipeline.stages.ground.glip.model import Glip
from pipeline.stages.ground.glip.predict import normalise


@pytest.mark.rest
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_the_network_runs_on_the_meta_device(name: str) -> None:
    with torch.device("meta"):
        model = Glip(CONFIGS[name]).eval()
        pixels = torch.empty(2, 3, 64, 96, dtype=torch.uint8)
        ids = torch.ones(2, 9, dtype=torch.int64)
    output = model(normalise(pixels, [(60, 96), (64, 90)]), ids, torch.ones_like(ids))
    for value in (output.token_logits, output.deltas, output.centerness, *output.anchors):
        assert value.is_meta
