"""Losses as terms over named streams: roles of asymmetric similarities, streams of one's own, missing streams."""

import pytest
import torch
from torch import Tensor

from tests.trainer.small import small_batch, small_model, with_boxes, with_stream
from trainer.batch import Batch, Side, Stream
from trainer.data.text_streams import STREAMS, TextStream
from trainer.evaluation.held_out.config import HeldOutConfig
from trainer.evaluation.held_out.evaluate import retrieval_results
from trainer.losses.functional import contrastive
from trainer.models.clip import CLIP
from trainer.models.dual_encoder import PAIRS
from trainer.models.terms import Contrast, Term


class Directed(CLIP):
    """A text is similar to images, and an image to the opposite texts."""

    is_symmetric = False

    def directed_similarity(self, queries: Tensor, candidates: Tensor, query: Side) -> Tensor:
        return queries @ candidates.T * (1.0 if query == "text" else -1.0)


class Quadruplets(CLIP):
    """A third stream of texts, one or more for each pair, which are compared with the images."""

    def terms(self) -> list[Term]:
        others = Contrast(sides=(("unsafe", "image"),), weights=(1.0,))
        return [Term(name="contrastive", value=PAIRS), Term(name="others", value=others, weight=0.5)]


def test_each_direction_of_an_asymmetric_similarity_has_its_own_logits() -> None:
    model, batch = Directed(small_model("clip").config), small_batch()
    losses = model(batch)
    logits = model.scale("logit_scale") * losses.points["text"] @ losses.points["image"].T
    expected = (contrastive(logits) + contrastive(-logits.T)) / 2
    torch.testing.assert_close(losses.loss, expected)


def test_retrieval_tells_an_asymmetric_similarity_which_side_is_the_query() -> None:
    model, points = Directed(small_model("clip").config), torch.eye(16)[:12]
    found = retrieval_results(model, points, points, HeldOutConfig())
    assert found["retrieval/text_to_image/recall@1"] == 1.0
    assert found["retrieval/image_to_text/recall@10"] < 1.0


def test_a_stream_of_its_own_is_encoded_lifted_and_compared_with_its_owners() -> None:
    batch, owner = small_batch(4), torch.tensor([0, 0, 2])
    ids = small_batch(3, seed=1)["text"].rows
    model = Quadruplets(small_model("clip").config)
    losses = model(with_stream(batch, "unsafe", Stream(ids, "text", owner)))
    logits = model.scale("logit_scale") * model.encode_text(ids) @ model.encode_image(batch["image"].rows).T
    torch.testing.assert_close(losses.terms["others"], 0.5 * contrastive(logits, targets=owner).detach())
    torch.testing.assert_close(losses.loss.detach(), losses.terms["contrastive"] + losses.terms["others"])
    assert losses.points["unsafe"].shape == (3, 16)


def test_a_stream_that_is_missing_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="the loss needs the stream unsafe"):
        Quadruplets(small_model("clip").config)(small_batch(4))


def test_pairs_have_no_single_match_among_boxes() -> None:
    class WrongWay(CLIP):
        def terms(self) -> list[Term]:
            return [Term(name="contrastive", value=Contrast(sides=(("image", "box_text"),), weights=(1.0,)))]

    batch = with_boxes(small_batch(8), small_batch(8), torch.tensor([0, 0, 1, 2, 3, 4, 5, 6]))
    with pytest.raises(ValueError, match="exchange the two"):
        WrongWay(small_model("clip").config)(batch)


class Sides(CLIP):
    """A contrastive loss over sides of any number."""

    sides: tuple[tuple[str, str], ...]

    def terms(self) -> list[Term]:
        return [Term(name="contrastive", value=Contrast(sides=self.sides))]


def image_logits(model: CLIP, batch: Batch) -> Tensor:
    images, texts = model.encode_image(batch["image"].rows), model.encode_text(batch["text"].rows)
    return model.scale("logit_scale") * images @ texts.T


@pytest.mark.parametrize("is_reversed", [False, True])
def test_each_side_has_its_own_rows_targets_and_mean(is_reversed: bool) -> None:
    owner, few = torch.tensor([0, 2, 2]), small_batch(3, seed=1)["text"]
    batch = with_stream(small_batch(5), "unsafe", few._replace(owner=owner))
    model = Sides(small_model("clip").config)
    model.sides = (("text", "image"), ("unsafe", "image"), ("image", "text"))[:: -1 if is_reversed else 1]
    losses = model(batch)
    scale, (image, text, unsafe) = (
        model.scale("logit_scale"),
        (losses.points[name] for name in ("image", "text", "unsafe")),
    )
    logits = scale * image @ text.T
    others = contrastive(scale * unsafe @ image.T, targets=owner)
    torch.testing.assert_close(losses.loss, (contrastive(logits) + contrastive(logits.T) + others) / 3)


def test_one_side_is_enough_and_needs_no_weight() -> None:
    model = Sides(small_model("clip").config)
    model.sides = (("image", "text"),)
    losses = model(small_batch(5))
    torch.testing.assert_close(losses.loss, contrastive(image_logits(model, small_batch(5))))


def test_a_side_without_rows_adds_nothing_and_leaves_the_weights_of_the_others() -> None:
    ids = small_batch(5)["text"].rows
    batch = with_stream(small_batch(5), "unsafe", Stream(ids[:0], "text", torch.zeros(0, dtype=torch.int64)))
    model = Sides(small_model("clip").config)
    model.sides = (("image", "text"), ("unsafe", "image"))
    losses = model(batch)
    torch.testing.assert_close(losses.loss, contrastive(image_logits(model, batch)) / 2)
    losses.loss.backward()


def test_both_directions_of_pairs_without_a_single_match_are_an_error() -> None:
    model = Sides(small_model("clip").config)
    model.sides = (("unsafe", "image"), ("image", "unsafe"))
    batch = with_stream(small_batch(4), "unsafe", small_batch(2)["text"]._replace(owner=torch.tensor([0, 0])))
    with pytest.raises(ValueError, match="exchange the two"):
        model(batch)


def test_a_model_needs_the_boxes_and_registered_streams_that_its_terms_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STREAMS, "unsafe", TextStream(lambda texts: [texts.caption]))
    model = Quadruplets(small_model("clip").config)
    assert model.needs == {"unsafe"}
    boxes = Sides(small_model("clip").config)
    boxes.sides = (("box_text", "text"),)
    assert boxes.needs == {"boxes"}
    assert small_model("clip").needs == frozenset()
    assert small_model("taxonomy").needs == {"levels"}
