"""Assignment of anchors and losses, on cases small enough to compute by hand."""

import pytest
import torch

from pipeline.stages.ground.glip.head import level_anchors
from pipeline.stages.ground.glip.text import pad_prompts
from pipeline.stages.ground.glip.training.loss import (
    Target,
    assign,
    centerness_target,
    focal_loss,
    glip_loss,
    token_targets,
)
from tests.pipeline.stages.ground.glip.tiny import TINY, tiny_model

CPU = torch.device("cpu")


def test_without_boxes_no_anchor_is_positive() -> None:
    anchors = [level_anchors((4, 4), 8, 4.0, CPU)]
    assert assign(anchors, torch.zeros(0, 4), 9).tolist() == [-1] * 16


def test_an_anchor_that_is_positive_for_two_boxes_is_assigned_to_the_one_with_the_larger_iou() -> None:
    anchors = [level_anchors((3, 3), 8, 2.0, CPU)]
    middle = anchors[0][4]
    boxes = torch.stack([middle + torch.tensor([-6.0, -6, 6, 6]), middle])
    owner = assign(anchors, boxes, 9)
    assert owner[4] == 1


def test_anchors_whose_centre_lies_outside_the_box_are_not_positive() -> None:
    anchors = [level_anchors((8, 8), 8, 4.0, CPU)]
    box = torch.tensor([[6.0, 6, 45, 41]])
    owner = assign(anchors, box, 9)
    middle = (anchors[0][:, :2] + anchors[0][:, 2:]) / 2
    inside = ((middle > box[:, :2]) & (middle < box[:, 2:])).all(dim=1)
    assert (owner >= 0).any()
    assert not (owner >= 0)[~inside].any()


def test_background_cells_have_a_target_only_in_a_prompt_of_maximum_length() -> None:
    owner = torch.tensor([0, -1])
    short = token_targets(owner, Target(boxes=torch.zeros(1, 4), tokens=torch.tensor([[False, True]])), 4)
    assert short.tolist() == [[0, 1], [0, 0]]
    full = token_targets(owner, Target(boxes=torch.zeros(1, 4), tokens=torch.tensor([[False, True, False, False]])), 4)
    assert full.tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]


def test_focal_loss_at_a_probability_of_one_half() -> None:
    loss = focal_loss(torch.zeros(2), torch.tensor([1.0, 0.0]), alpha=0.25, gamma=2.0)
    assert loss.tolist() == pytest.approx([0.25 * 0.25 * 0.693147, 0.75 * 0.25 * 0.693147], rel=1e-5)


def test_centerness_is_one_at_the_centre_and_falls_towards_the_sides() -> None:
    anchors = torch.tensor([[0.0, 0, 10, 10], [-4.0, 0, 6, 10]])
    boxes = torch.tensor([[0.0, 0, 10, 10], [0.0, 0, 10, 10]])
    assert centerness_target(anchors, boxes).tolist() == pytest.approx([1.0, (1 / 9) ** 0.5])


def test_an_image_without_boxes_has_no_box_loss_and_finite_gradients() -> None:
    model = tiny_model()
    ids, mask = pad_prompts([(2, 6, 3)])
    output = model(torch.randn(1, 3, 64, 64), ids, mask)
    losses = glip_loss(
        output, mask, [Target(boxes=torch.zeros(0, 4), tokens=torch.zeros(0, 3, dtype=torch.bool))], TINY
    )
    assert (losses.box.item(), losses.centerness.item()) == (0.0, 0.0)
    losses.total.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_padding_does_not_change_the_token_loss() -> None:
    model = tiny_model()
    images = torch.randn(1, 3, 64, 64)
    tokens = torch.tensor([[False, True, False, False, False]])
    box = torch.tensor([[10.0, 10, 50, 50]])
    ids, mask = torch.tensor([[2, 6, 3, 0, 0]]), torch.tensor([[1, 1, 1, 0, 0]])
    padded = glip_loss(model(images, ids, mask), mask, [Target(boxes=box, tokens=tokens)], TINY)
    short = glip_loss(
        model(images, ids[:, :3], mask[:, :3]), mask[:, :3], [Target(boxes=box, tokens=tokens[:, :3])], TINY
    )
    assert padded.token.item() == pytest.approx(short.token.item(), rel=1e-4)
