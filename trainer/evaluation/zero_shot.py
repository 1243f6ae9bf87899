"""Zero-shot classification of image folders (Radford et al. 2021, section 3.1).

The hyperbolic papers use the same protocol.

Shapes: c classes, p prompts, b images, d embedding width.
"""

from functools import partial

from torch import Tensor

from trainer.evaluation.embed import embed_texts
from trainer.evaluation.ranking import best_candidates
from trainer.models.config import Ranking
from trainer.models.dual_encoder import DualEncoder
from trainer.text.tokenizer import Tokenizer


def class_features(
    model: DualEncoder, tokenizer: Tokenizer, names: list[str], prompts: tuple[str, ...], batch_size: int
) -> Tensor:
    """Features [c p d] of the prompts of each class, for `lift_prompts`."""
    texts = [prompt.replace("{}", name) for name in names for prompt in prompts]
    return embed_texts(model, tokenizer, texts, batch_size).unflatten(0, (len(names), len(prompts)))


def classifier(
    model: DualEncoder, tokenizer: Tokenizer, names: list[str], prompts: tuple[str, ...], batch_size: int
) -> Tensor:
    """One lifted point per class [c d]: the mean feature of its prompts, lifted. CLIP averages their directions."""
    return model.lift_prompts(class_features(model, tokenizer, names, prompts, batch_size))


def predict(model: DualEncoder, image_features: Tensor, classes: Tensor, ranking: Ranking) -> Tensor:
    """The index [b] of the best class for each image, from features [b d] before the lift and lifted classes."""
    return best_candidates(partial(model.scores, ranking=ranking), model.lift_image(image_features), classes)
