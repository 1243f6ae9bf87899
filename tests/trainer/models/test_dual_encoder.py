"""Behaviour that all models share: boxes as additional pairs, the choice of the contrastive loss, frozen towers."""

import dataclasses

import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.small import small_batch, small_model
from trainer.batch import Batch
from trainer.encoders.config import ImageConfig
from trainer.models.clip import CLIP


def concatenated(batch: Batch) -> Batch:
    """The batch with its boxes and phrases appended as pairs; phrases are padded to the length of the captions."""
    assert batch.box_images is not None
    assert batch.box_token_ids is not None
    padding = batch.token_ids.shape[1] - batch.box_token_ids.shape[1]
    phrases = torch.nn.functional.pad(batch.box_token_ids, (0, padding))
    return Batch(images=torch.cat([batch.images, batch.box_images]), token_ids=torch.cat([batch.token_ids, phrases]))


@pytest.mark.parametrize("name", ["clip", "meru", "poinclip"])
def test_boxes_as_pairs_give_the_loss_of_a_batch_with_twice_as_many_pairs(name: str) -> None:
    model = small_model(name, boxes_as_pairs=True)
    assert model.needs == {"boxes"}
    torch.testing.assert_close(model(small_batch()).loss, small_model(name)(concatenated(small_batch())).loss)


def test_boxes_as_pairs_do_not_change_the_syntax_loss_of_the_captions() -> None:
    model = small_model("syntax_meru", boxes_as_pairs=True)
    assert model.needs == {"boxes", "parse"}
    with_boxes, without = model(small_batch()).terms, small_model("syntax_meru")(small_batch()).terms
    torch.testing.assert_close(with_boxes["syntax"], without["syntax"])
    assert with_boxes["contrastive"] != without["contrastive"]


def test_boxes_as_pairs_need_one_box_per_pair() -> None:
    model, batch = small_model("meru", boxes_as_pairs=True), small_batch()
    with pytest.raises(ValueError, match="boxes_as_pairs needs boxes"):
        model(dataclasses.replace(batch, box_images=None, box_token_ids=None))
    assert batch.box_images is not None
    assert batch.box_token_ids is not None
    fewer = dataclasses.replace(batch, box_images=batch.box_images[:5], box_token_ids=batch.box_token_ids[:5])
    with pytest.raises(ValueError, match="5 boxes for 8 pairs"):
        model(fewer)


def test_model_without_lazy_similarity_has_the_loss_of_the_full_matrix() -> None:
    class FullMatrixCLIP(CLIP):
        def lazy_similarity(self, queries: torch.Tensor, candidates: torch.Tensor) -> None:
            return None

    model = small_model("clip")
    full_matrix = FullMatrixCLIP(model.config)
    full_matrix.load_state_dict(model.state_dict())
    torch.testing.assert_close(full_matrix(small_batch()).loss, model(small_batch()).loss)


@pytest.mark.parametrize("name", ["hycoclip", "phyclip"])
def test_use_boxes_and_boxes_as_pairs_exclude_each_other(name: str) -> None:
    with pytest.raises(UserError, match="set one to false"):
        small_model(name, boxes_as_pairs=True)
    assert small_model(name, boxes_as_pairs=True, use_boxes=False).needs == {"boxes"}


def test_frozen_tower_keeps_its_weights_and_batch_statistics() -> None:
    frozen = ImageConfig(size_px=32, name="resnet18", frozen=True)
    model = small_model("meru", image=frozen).train()
    before = {name: value.clone() for name, value in model.visual.state_dict().items()}
    model(dataclasses.replace(small_batch(), images=torch.rand(8, 3, 32, 32), box_images=None)).loss.backward()
    assert all(torch.equal(value, before[name]) for name, value in model.visual.state_dict().items())
    assert all(parameter.grad is None for parameter in model.visual.parameters())
    assert model.visual_proj.weight.grad is not None
    assert model.textual.training
    assert not model.visual.training
