"""Choice of the true caption of an image among several (VL-CheckList, SugarCrepe, ARO).

Shapes: n examples, u images, t texts, c captions per example, d embedding width.
"""

from typing import Final

import torch
from torch import Tensor

from trainer.evaluation.embed import device_of
from trainer.models.config import Ranking
from trainer.models.dual_encoder import DualEncoder

BLOCK: Final = 128
"""Number of examples that are scored at once, all images against all captions of the block."""


@torch.inference_mode()
def choice_scores(
    model: DualEncoder, images: Tensor, texts: Tensor, image_rows: Tensor, text_rows: Tensor, ranking: Ranking
) -> Tensor:
    """Scores [n c] of the captions `texts[text_rows]` of each image `images[image_rows]`.

    `images` [u d] and `texts` [t d] are features before the lift, `image_rows` is [n] and `text_rows` [n c]. Equal
    features have exactly equal scores: they share one column of the matrix product.
    """
    device, parts = device_of(model), []
    for start in range(0, len(image_rows), BLOCK):
        rows = text_rows[start : start + BLOCK]
        features, column = texts[rows.flatten()].unique(dim=0, return_inverse=True)
        queries = model.lift_image(images[image_rows[start : start + BLOCK]].to(device))
        scores = model.scores(queries, model.lift_text(features.to(device)), ranking, "image")
        parts.append(scores.gather(1, column.view(rows.shape).to(device)).cpu())
    return torch.cat(parts) if parts else torch.zeros(text_rows.shape)


def is_first_best(scores: Tensor) -> Tensor:
    """Mask [n], True if the first score of [n c] is larger than all others. Ties and NaN are False."""
    return (scores[:, :1] > scores[:, 1:]).all(1)
