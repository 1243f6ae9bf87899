"""The network stays on its inputs' device and never waits for it: on PyTorch's "meta" device, which holds no numbers, both are errors."""

import pytest
import torch

from pipeline.ground.glip.config import CONFIGS
from pipeline.ground.glip.images import normalise
from pipeline.ground.glip.model import Glip


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_pass_makes_no_tensor_elsewhere_and_asks_for_no_number(name: str, training: bool) -> None:
    with torch.device("meta"):
        model = Glip(CONFIGS[name]).train(training)
        pixels = torch.empty(2, 3, 64, 96, dtype=torch.uint8)
        ids = torch.ones(2, 9, dtype=torch.int64)
    output = model(normalise(pixels, [(60, 96), (64, 90)]), ids, torch.ones_like(ids))
    for value in (output.token_logits, output.deltas, output.centerness, *output.anchors):
        assert value.is_meta
    if training:
        sum(value.sum() for value in (output.token_logits, output.deltas, output.centerness)).backward()
        without = {name for name, parameter in model.named_parameters() if parameter.grad is None}
        assert all(name.startswith("rpn.head.cls_logits.") for name in without)  # which nothing reads
