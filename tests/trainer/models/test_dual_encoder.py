"""What all models share: boxes as pairs of their own, and towers that stay as they are."""

import dataclasses

import pytest
import torch

from common.errors import UserError
from tests.trainer.small import small_batch, small_model
from trainer.batch import Batch
from trainer.encoders.config import ImageConfig
from trainer.models.clip import CLIP


def concatenated(batch: Batch) -> Batch:
    """The boxes of a batch behind its pairs, phrases padded to the captions' length."""
    assert batch.box_images is not None
    assert batch.box_token_ids is not None
    longer = torch.nn.functional.pad(batch.box_token_ids, (0, batch.token_ids.shape[1] - batch.box_token_ids.shape[1]))
    return Batch(images=torch.cat([batch.images, batch.box_images]), token_ids=torch.cat([batch.token_ids, longer]))


@pytest.mark.parametrize("name", ["clip", "meru", "poinclip"])
def test_boxes_as_pairs_are_a_batch_twice_as_large(name: str) -> None:
    model = small_model(name, boxes_as_pairs=True)
    assert model.needs == {"boxes"}
    torch.testing.assert_close(model(small_batch()).loss, small_model(name)(concatenated(small_batch())).loss)


def test_syntax_is_that_of_the_captions_where_boxes_are_pairs() -> None:
    model = small_model("syntax_meru", boxes_as_pairs=True)
    assert model.needs == {"boxes", "parse"}
    with_boxes, without = model(small_batch()).terms, small_model("syntax_meru")(small_batch()).terms
    torch.testing.assert_close(with_boxes["syntax"], without["syntax"])
    assert with_boxes["contrastive"] != without["contrastive"]


def test_boxes_as_pairs_want_one_box_each() -> None:
    model, batch = small_model("meru", boxes_as_pairs=True), small_batch()
    with pytest.raises(ValueError, match="boxes_as_pairs needs boxes"):
        model(dataclasses.replace(batch, box_images=None, box_token_ids=None))
    assert batch.box_images is not None
    assert batch.box_token_ids is not None
    more = dataclasses.replace(batch, box_images=batch.box_images[:5], box_token_ids=batch.box_token_ids[:5])
    with pytest.raises(ValueError, match="5 boxes for 8 pairs"):
        model(more)


def test_a_similarity_without_blocks_has_the_plain_loss() -> None:
    class Whole(CLIP):
        def comparison(self, queries: torch.Tensor, candidates: torch.Tensor) -> None:
            return None

    model = small_model("clip")
    whole = Whole(model.config)
    whole.load_state_dict(model.state_dict())
    torch.testing.assert_close(whole(small_batch()).loss, model(small_batch()).loss)


@pytest.mark.parametrize("name", ["hycoclip", "phyclip"])
def test_boxes_are_not_general_to_their_wholes_and_pairs_at_once(name: str) -> None:
    with pytest.raises(UserError, match="set one to false"):
        small_model(name, boxes_as_pairs=True)
    assert small_model(name, boxes_as_pairs=True, use_boxes=False).needs == {"boxes"}


def test_a_frozen_tower_neither_learns_nor_counts_batches() -> None:
    tower = ImageConfig(size_px=32, name="resnet18", frozen=True)
    model = small_model("meru", image=tower).train()
    before = {name: value.clone() for name, value in model.visual.state_dict().items()}
    model(dataclasses.replace(small_batch(), images=torch.rand(8, 3, 32, 32), box_images=None)).loss.backward()
    assert all(torch.equal(value, before[name]) for name, value in model.visual.state_dict().items())
    assert all(parameter.grad is None for parameter in model.visual.parameters())
    assert model.visual_proj.weight.grad is not None
    assert model.textual.training
    assert not model.visual.training
