"""Choice of captions on features made by hand, and the accuracy and precision of classes."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from tests.trainer.small import NAMES, small_model
from trainer.evaluation.metrics.ranking import (
    BLOCK,
    IGNORED,
    choice_scores,
    class_precisions,
    is_first_best,
    macro_accuracy,
    prevalence,
)


def test_ties_and_nan_are_wrong() -> None:
    scores = torch.tensor([[2.0, 1.0], [1.0, 1.0], [0.0, 1.0], [float("nan"), 0.0], [1.0, float("nan")]])
    assert is_first_best(scores).tolist() == [True, False, False, False, False]


def test_macro_accuracy_is_the_mean_recall_of_classes_that_occur() -> None:
    target = torch.tensor([0, 0, 0, 0, 1, 1])
    predicted = torch.tensor([0, 0, 0, 2, 1, 0])
    # Recalls 3/4 and 1/2; class 2 is predicted but never the target, and class 3 does not occur.
    assert macro_accuracy(predicted, target, 4) == pytest.approx((3 / 4 + 1 / 2 + 0) / 3)


@pytest.mark.parametrize("seed", range(3))
def test_precisions_of_several_classes_equal_scikit_learn_with_ties_and_without_ignored_images(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(5, (40, 6), generator=generator).double()
    labels = torch.randint(IGNORED, 2, (40, 6), generator=generator)
    found = class_precisions(scores, labels)
    for column, own, value in zip(scores.T, labels.T, found.tolist(), strict=True):
        kept = own != IGNORED
        expected = average_precision_score(own[kept].numpy(), column[kept].numpy())
        assert value == pytest.approx(expected)


def test_a_class_that_all_or_no_images_show_has_no_precision() -> None:
    labels = torch.tensor([[1, 0, 1], [1, 0, 0], [1, 0, IGNORED]])
    assert class_precisions(torch.rand(3, 3), labels).isnan().tolist() == [True, True, False]
    assert np.allclose(prevalence(labels), [np.nan, np.nan, 0.5], equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranking", ["released", "metric"])
def test_scores_are_those_of_the_full_matrix(name: str, ranking: str) -> None:
    model = small_model(name).eval()
    images, texts = torch.randn(9, 16), torch.randn(30, 16)
    n = BLOCK + 40
    image_rows, text_rows = torch.randint(9, (n,)), torch.randint(30, (n, 2))
    with torch.no_grad():
        every = model.scores(model.lift_image(images), model.lift_text(texts), ranking)  # type: ignore[arg-type]
    found = choice_scores(model, images, texts, image_rows, text_rows, ranking)  # type: ignore[arg-type]
    torch.testing.assert_close(found, every[image_rows[:, None], text_rows], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_equal_features_tie_exactly(name: str) -> None:
    model = small_model(name).eval()
    texts = torch.randn(1, 16).expand(301, 16).clone()
    text_rows = torch.randint(301, (500, 2))
    scores = choice_scores(model, torch.randn(7, 16), texts, torch.randint(7, (500,)), text_rows, "released")
    assert torch.equal(scores[:, 0], scores[:, 1])
    assert not is_first_best(scores).any()


def test_no_examples_have_no_scores() -> None:
    empty = torch.zeros(0, 2, dtype=torch.long)
    found = choice_scores(small_model("clip"), torch.zeros(0, 16), torch.zeros(0, 16), empty[:, 0], empty, "released")
    assert found.shape == (0, 2)
