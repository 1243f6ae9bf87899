"""The network creates tensors only on its inputs' device and never copies a value to the CPU.

On PyTorch's "meta" device, whose tensors hold no numbers, both would be errors.
"""

from dataclasses import replace

import pytest
import torch

from pipeline.stages.ground.glip.config import ConvConfig, GlipConfig
from pipeline.stages.ground.glip.model import Glip
from pipeline.stages.ground.glip.predict import normalise
from tests.pipeline.stages.ground.glip.tiny import TINY

CONV, PLAIN = ConvConfig(widths=(16, 16, 16, 16)), replace(TINY.head, fuse=False, coarse_offsets="flat_memory")


@pytest.mark.rest
@pytest.mark.parametrize("config", [TINY, replace(TINY, backbone=CONV, head=PLAIN)])
def test_the_network_runs_on_the_meta_device(config: GlipConfig) -> None:
    with torch.device("meta"):
        model = Glip(config).eval()
        pixels = torch.empty(2, 3, 64, 96, dtype=torch.uint8)
        ids = torch.ones(2, 9, dtype=torch.int64)
    output = model(normalise(pixels, [(60, 96), (64, 90)]), ids, torch.ones_like(ids))
    for value in (output.token_logits, output.deltas, output.centerness, *output.anchors):
        assert value.is_meta
