"""Grounder and scorer on each device, against the CPU."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hypergrit_common.images import Image
from pipeline.stages.ground.glip.predict import GlipGrounder, Precision
from pipeline.stages.ground.glip.text import Prompter
from pipeline.stages.ground.grounder import Detection
from pipeline.stages.score.scorers import load_scorer
from tests.devices import DEVICES
from tests.pipeline.stages.ground.glip.tiny import TINY, tiny_model, write_vocab

ON_DEVICES = pytest.mark.parametrize("device", DEVICES)
CAPTIONS = ["a red dog on a sofa", "two dogs", "the tennis racket"]
SPANS = [[(0, 9), (13, 19)], [(0, 8)], [(0, 17)]]


def images() -> list[Image]:
    sizes = ((96, 96), (48, 60), (96, 90))
    return [np.random.default_rng(i).integers(0, 256, (*size, 3), np.uint8) for i, size in enumerate(sizes)]


def ground(folder: Path, device: str, precision: Precision) -> list[list[Detection]]:
    grounder = GlipGrounder(
        tiny_model(), Prompter(write_vocab(folder), TINY.text), torch.device(device), 0.0, precision
    )
    found = grounder.collect(grounder.forward(grounder.prepare(images(), CAPTIONS, SPANS)))
    return [sorted(item.boxes, key=lambda box: -box.score) for item in found]


@ON_DEVICES
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 0.03)])
def test_glip_finds_the_boxes_of_the_cpu(tmp_path: Path, precision: Precision, tolerance: float, device: str) -> None:
    expected, found = ground(tmp_path, "cpu", "fp32"), ground(tmp_path, device, precision)
    assert [len(boxes) > 0 for boxes in found] == [True] * 3
    for boxes, expected_boxes in zip(found, expected, strict=True):
        best = expected_boxes[0]
        assert boxes[0].score == pytest.approx(best.score, abs=tolerance)
        same = [box for box in boxes if box.phrase == best.phrase and box.box == pytest.approx(best.box, abs=tolerance)]
        assert same


@ON_DEVICES
def test_glip_learns_on_the_device(device: str) -> None:
    model = tiny_model().to(device).train()
    pixels, ids = torch.randn(2, 3, 96, 96, device=device), torch.randint(5, 100, (2, 8), device=device)
    output = model(pixels, ids, torch.ones_like(ids))
    sum(value.float().square().mean() for value in (output.token_logits, output.deltas, output.centerness)).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(gradients) > 100
    assert all(gradient.isfinite().all() for gradient in gradients)


@ON_DEVICES
def test_the_scorer_gives_the_cosines_of_the_cpu(device: str) -> None:
    cosines = []
    for name in ("cpu", device):
        scorer = load_scorer("miniature", name, 2)
        cosines.append(scorer.embed_images(images()) @ scorer.embed_texts(CAPTIONS).T)
    torch.testing.assert_close(cosines[1], cosines[0], atol=1e-3, rtol=0)
