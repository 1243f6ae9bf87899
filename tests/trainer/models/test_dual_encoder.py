"""Behaviour that all models share: boxes as additional pairs, the choice of the contrastive loss, frozen towers."""

import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.small import in_double, small_batch, small_model, with_boxes
from trainer.batch import Batch, named_streams
from trainer.encoders.config import ImageConfig
from trainer.models.clip import CLIP


def concatenated(batch: Batch) -> Batch:
    """The batch with its boxes and phrases appended as pairs; phrases are padded to the length of the captions."""
    padding = batch["text"].rows.shape[1] - batch["box_text"].rows.shape[1]
    phrases = torch.nn.functional.pad(batch["box_text"].rows, (0, padding))
    rows = {"text": [batch["text"].rows, phrases], "image": [batch["image"].rows, batch["box_image"].rows]}
    return Batch(streams=named_streams({name: torch.cat(parts) for name, parts in rows.items()}))


OWNERS = [[*range(8)], [1, 4, 7], [0, 0, 3], []]
"""Pairs of the boxes of a batch of eight: all, some, one of several boxes, and none."""


def mixed(owners: list[int]) -> Batch:
    """A batch of eight pairs with a box for each of `owners`."""
    batch = small_batch()
    n, owner = len(owners), torch.tensor(owners, dtype=torch.int64)
    boxes = batch.with_rows({name: batch[name].rows[:n] for name in ("box_image", "box_text")})
    return with_boxes(batch, boxes, owner)


@pytest.mark.parametrize("owners", OWNERS)
@pytest.mark.parametrize("name", ["clip", "meru", "poinclip"])
def test_boxes_as_pairs_give_the_loss_of_a_batch_with_a_pair_for_each_box(name: str, owners: list[int]) -> None:
    model, batch = small_model(name, boxes_as_pairs=True), mixed(owners)
    assert model.needs == {"boxes", "pairs"}
    losses = model(batch)
    losses.loss.backward()
    assert model.textual_proj.weight.grad is not None
    torch.testing.assert_close(losses.loss, small_model(name)(concatenated(batch)).loss)
    if not owners:
        torch.testing.assert_close(losses.loss, small_model(name)(small_batch()).loss)


@pytest.mark.parametrize("chunk", [None, 40])
def test_the_loss_of_boxes_as_pairs_is_that_of_a_loop_over_pairs_and_boxes(chunk: int | None) -> None:
    model = small_model("meru", boxes_as_pairs=True, loss_chunk=chunk).double()
    batch = in_double(mixed([1, 4, 7]))
    pixels, ids = [*batch["image"].rows, *batch["box_image"].rows], [*batch["text"].rows, *batch["box_text"].rows]
    images = [model.encode_image(image[None])[0] for image in pixels]
    texts = [model.encode_text(text[None])[0] for text in ids]
    c, n = model.get_parameter("curv").exp(), len(images)

    def time(point: torch.Tensor) -> torch.Tensor:
        return (1 / c + point @ point).sqrt()

    total = torch.zeros(()).double()
    for i in range(n):
        for queries, candidates in ((images, texts), (texts, images)):
            inner = torch.stack([queries[i] @ other - time(queries[i]) * time(other) for other in candidates])
            logits = -model.pair_scale() * torch.acosh(-c * inner) / c.sqrt()
            total = total + (logits.logsumexp(0) - logits[i]) / 2
        inner = texts[i] @ images[i] - time(texts[i]) * time(images[i])
        cosine = (time(images[i]) + time(texts[i]) * c * inner) / (texts[i].norm() * ((c * inner) ** 2 - 1).sqrt())
        total = total + 0.2 * (torch.acos(cosine) - torch.asin(0.2 / (c.sqrt() * texts[i].norm()))).clamp(min=0)
    torch.testing.assert_close(model(batch).loss, total / n, rtol=1e-6, atol=0)


def test_boxes_as_pairs_do_not_change_the_syntax_loss_of_the_captions() -> None:
    model = small_model("syntax_meru", boxes_as_pairs=True)
    assert model.needs == {"boxes", "pairs", "parse"}
    with_boxes, without = model(small_batch()).terms, small_model("syntax_meru")(small_batch()).terms
    torch.testing.assert_close(with_boxes["syntax"], without["syntax"])
    assert with_boxes["contrastive"] != without["contrastive"]


def test_boxes_as_pairs_need_boxes() -> None:
    model, batch = small_model("meru", boxes_as_pairs=True), small_batch()
    with pytest.raises(ValueError, match="boxes_as_pairs needs boxes"):
        model(with_boxes(batch, None))


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
    assert small_model(name, boxes_as_pairs=True, use_boxes=False).needs == {"boxes", "pairs"}


def test_frozen_tower_keeps_its_weights_and_batch_statistics() -> None:
    frozen = ImageConfig(size_px=32, name="resnet18", frozen=True)
    model = small_model("meru", image=frozen).train()
    before = {name: value.clone() for name, value in model.visual.state_dict().items()}
    model(with_boxes(small_batch(), None).with_rows({"image": torch.rand(8, 3, 32, 32)})).loss.backward()
    assert all(torch.equal(value, before[name]) for name, value in model.visual.state_dict().items())
    assert all(parameter.grad is None for parameter in model.visual.parameters())
    assert model.visual_proj.weight.grad is not None
    assert model.textual.training
    assert not model.visual.training
