"""The network: its operators, and the independence of the images of a batch."""

from dataclasses import replace

import pytest
import torch
from torchvision.ops import deform_conv2d

from pipeline.stages.ground.glip.config import CONFIGS, MINIATURE, ConvConfig
from pipeline.stages.ground.glip.fuse import flat_memory, flatten_levels, modulated_deform_conv, split_levels
from pipeline.stages.ground.glip.head import WEIGHTS, centers, decode, inclusive_sides, level_anchors
from pipeline.stages.ground.glip.text import pad_prompts
from tests.pipeline.stages.ground.glip.tiny import TINY, tiny_model


@pytest.mark.parametrize("stride", [1, 2])
def test_the_deformable_convolution_equals_that_of_torchvision(stride: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 8, 11, 7), torch.randn(6, 8, 3, 3), torch.randn(6)
    size = (-(-11 // stride), -(-7 // stride))
    offset, mask = torch.randn(2, 18, *size) * 3, torch.rand(2, 9, *size)
    ours = modulated_deform_conv(x, offset, mask, weight, bias, stride)
    theirs = deform_conv2d(x, offset, weight, bias, stride=stride, padding=1, mask=mask)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_flat_memory_starts_at_the_first_number_of_each_image() -> None:
    maps = torch.arange(2 * 3 * 4 * 4).view(2, 3, 4, 4)
    small = flat_memory(maps, torch.Size((2, 2)))
    assert small[0].flatten().tolist() == list(range(12))
    assert small[1].flatten().tolist() == list(range(48, 60))


def test_anchors_and_coder_use_inclusive_pixels() -> None:
    anchors = level_anchors((1, 2), 8, 8.0, torch.device("cpu"))
    assert anchors.tolist() == [[-28, -28, 35, 35], [-20, -28, 43, 35]]
    boxes = torch.tensor([[1.0, 2.0, 30.0, 44.0], [0.0, 0.0, 0.0, 0.0]])
    shift, ratio = centers(boxes) - centers(anchors), inclusive_sides(boxes) / inclusive_sides(anchors)
    deltas = torch.cat([shift / inclusive_sides(anchors), ratio.log()], dim=-1) * torch.tensor(WEIGHTS)
    torch.testing.assert_close(decode(deltas, anchors), boxes, rtol=0, atol=1e-4)


def test_splitting_reverses_flattening() -> None:
    maps = [torch.randn(2, 3, 4, 5), torch.randn(2, 3, 2, 3)]
    for found, expected in zip(split_levels(flatten_levels(maps), [(4, 5), (2, 3)]), maps, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("coarse_offsets", ["flat_memory", "resize"])
def test_an_image_has_the_same_result_alone_and_in_a_batch(fuse: bool, coarse_offsets: str) -> None:
    head = replace(TINY.head, fuse=fuse, coarse_offsets=coarse_offsets)  # type: ignore[arg-type]
    model = tiny_model(replace(TINY, head=head))
    images = torch.randn(3, 3, 64, 96)
    prompts = [(2, 6, 7, 3), (2, 8, 9, 10, 11, 12, 3), (2, 9, 3)]
    with torch.no_grad():
        together = model(images, *pad_prompts(prompts))
        for i, prompt in enumerate(prompts):
            alone = model(images[i : i + 1], *pad_prompts([prompt]))
            for name in ("deltas", "centerness"):
                torch.testing.assert_close(getattr(together, name)[i], getattr(alone, name)[0], rtol=0, atol=1e-4)
            logits = together.token_logits[i, :, : len(prompt)]
            torch.testing.assert_close(logits, alone.token_logits[0], rtol=0, atol=1e-4)


LARGE_WINDOWS = replace(TINY.backbone, window=CONFIGS["glip_l"].backbone.window)


@pytest.mark.parametrize(
    "config",
    [TINY, replace(TINY, backbone=ConvConfig(widths=(16, 16, 16, 16))), replace(TINY, backbone=LARGE_WINDOWS)],
)
@pytest.mark.parametrize("size", [(32, 32), (32, 320)])
def test_small_and_long_images_give_finite_numbers(config: object, size: tuple[int, int]) -> None:
    model = tiny_model(config)  # type: ignore[arg-type]
    with torch.no_grad():
        output = model(torch.randn(1, 3, *size), *pad_prompts([(2, 6, 3)]))
    assert output.token_logits.shape[1] == sum(len(level) for level in output.anchors)
    assert all(torch.isfinite(part).all() for part in (output.token_logits, output.deltas, output.centerness))


def test_without_deformable_convolutions_there_are_no_offsets() -> None:
    plain = tiny_model(replace(TINY, head=replace(TINY.head, deformable=False)))
    assert not [key for key in plain.state_dict() if ".offset." in key]
    with torch.no_grad():
        plain(torch.randn(1, 3, 64, 64), *pad_prompts([(2, 6, 3)]))


def test_the_miniature_is_small() -> None:
    assert sum(parameter.numel() for parameter in tiny_model(MINIATURE).parameters()) < 3e6
