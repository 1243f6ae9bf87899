"""The network creates tensors only on its inputs' device and never copies a value to the CPU.

On PyTorch's "meta" device, whose tensors hold no numbers, both would be errors.
"""

import pytest
import torch

from pipeline.stages.ground.glip.config import CONFIGS
from pipeline.stages.ground.glip.model import Glip
from pipeline.stages.ground.glip.predict import normalise


@pytest.mark.rest
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_forward_and_backward_run_on_the_meta_device(name: str, training: bool) -> None:
    with torch.device("meta"):
        model = Glip(CONFIGS[name]).train(training)
        pixels = torch.empty(2, 3, 64, 96, dtype=torch.uint8)
        ids = torch.ones(2, 9, dtype=torch.int64)
    output = model(normalise(pixels, [(60, 96), (64, 90)]), ids, torch.ones_like(ids))
    for value in (output.token_logits, output.deltas, output.centerness, *output.anchors):
        assert value.is_meta
    if training:
        sum(value.sum() for value in (output.token_logits, output.deltas, output.centerness)).backward()
        without_gradient = {name for name, parameter in model.named_parameters() if parameter.grad is None}
        assert all(name.startswith("rpn.head.cls_logits.") for name in without_gradient)  # never called
