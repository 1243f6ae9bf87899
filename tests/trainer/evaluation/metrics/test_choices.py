"""Choice of captions on features made by hand, for models with one and with several factors."""

import pytest
import torch

from tests.trainer.small import NAMES, small_model
from trainer.evaluation.metrics.ranking import BLOCK, choice_scores, is_first_best


def test_ties_and_nan_are_wrong() -> None:
    scores = torch.tensor([[2.0, 1.0], [1.0, 1.0], [0.0, 1.0], [float("nan"), 0.0], [1.0, float("nan")]])
    assert is_first_best(scores).tolist() == [True, False, False, False, False]


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
