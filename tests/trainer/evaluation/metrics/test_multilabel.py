"""Average precision of images of several classes, compared with scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from trainer.evaluation.metrics.ranking import IGNORED, class_precisions, prevalence


@pytest.mark.parametrize("seed", range(3))
def test_precisions_equal_scikit_learn_with_ties_and_without_ignored_images(seed: int) -> None:
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
