"""Zero-shot classification of image folders (Radford et al. 2021, section 3.1).

The hyperbolic papers use the same protocol.

Shapes: c classes, p prompts, b images, k factors, d embedding width.
"""

from functools import partial

import torch
from torch import Tensor

from trainer.evaluation.embed import embed_texts
from trainer.evaluation.ranking import best_candidates
from trainer.models.config import Ranking
from trainer.models.dual_encoder import DualEncoder
from trainer.text.base import TextTokenizer


def class_features(
    model: DualEncoder, tokenizer: TextTokenizer, names: list[str], prompts: tuple[str, ...], batch_size: int
) -> Tensor:
    """Features [c p d] of the prompts of each class, for `lift_prompts`."""
    texts = [prompt.replace("{}", name) for name in names for prompt in prompts]
    return embed_texts(model, tokenizer, texts, batch_size).unflatten(0, (len(names), len(prompts)))


@torch.no_grad()
def predict(model: DualEncoder, image_features: Tensor, classes: Tensor, ranking: Ranking) -> Tensor:
    """The index [b] of the best class of each image, from features [b d] before the lift and lifted classes [*k c d]."""
    points = model.lift_image(image_features.to(classes.device))
    return best_candidates(partial(model.scores, ranking=ranking, query="image"), points, classes)
