"""The evaluation of one model: all results by name, each with its chance level. All are between 0 and 1.

zero_shot/FOLDER/accuracy, accuracy_micro, chance              mean recall of the classes; share of correct images
zero_shot/FOLDER/unreadable                                    share of the files that are left out; missing without them
retrieval/image_to_text/recall@5, chance@5, and text_to_image  full images and captions of the held-out shards
entailment/NAME/order, auc, ap, chance                         models with entailment; see trainer.evaluation.metrics.entailment
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from hypergrit_common.text import counted
from trainer.batch import Side, check_finite
from trainer.evaluation.embed import device_of, embed_images, embed_words
from trainer.evaluation.held_out.config import HeldOutConfig
from trainer.evaluation.held_out.shards import HeldOutPoints, HeldOutShards, embed_held_out
from trainer.evaluation.held_out.share import Sharing, map_shared
from trainer.evaluation.metrics.entailment import entailment_metrics
from trainer.evaluation.metrics.ranking import (
    chance_recall,
    class_features,
    macro_accuracy,
    predict,
    ranks_of_matches,
    recall_at,
)
from trainer.evaluation.metrics.spaces import root_distances
from trainer.evaluation.sets.image_folders import ImageFolder, read_folders, read_images
from trainer.models.dual_encoder import DualEncoder
from trainer.text.base import TextTokenizer

logger = logging.getLogger(__name__)

RECALL_AT: Final = (1, 5, 10)
DIRECTIONS: Final[dict[str, Side]] = {"text_to_image": "text", "image_to_text": "image"}
"""Directions of retrieval, and the modality of their queries."""
MAX_PARSED: Final = 1000
"""Maximum number of captions whose words are embedded."""


class Evaluation:
    """The evaluation that a configuration describes. Its folders and shards are listed once, when it is built.

    `workers` processes read and decode images. Raises UserError for a folder without images and for shards without
    samples: a training run fails before its first step, not after its last. Messages begin with a field of the
    configuration.
    """

    def __init__(self, config: HeldOutConfig, workers: int = 0) -> None:
        self.config, self.workers = config, workers
        self.folders = read_folders(config.image_folders)
        self.shards = HeldOutShards(config.shards, config.max_bad_share) if config.shards else None

    @torch.no_grad()
    def __call__(
        self,
        model: DualEncoder,
        tokenizer: TextTokenizer,
        device: torch.device | str,
        precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
        is_stopping: Callable[[], bool] = bool,
        distances: dict[str, Tensor] | None = None,
    ) -> dict[str, float]:
        """Evaluate a model on `device`. Random numbers, from `config.seed`, are used for mismatched pairs only.

        Collective: each rank embeds a part of the data. The towers compute in the context `precision()`, lifts and
        scores in float32. The distances [n] of held-out points from the root are added to `distances` by stream, if given.
        Raises InterruptedEvaluationError once `is_stopping` is true on a rank.
        """
        was_training = model.training
        model.to(device).eval()
        sharing = Sharing(
            batch_size=self.config.batch_size, workers=self.workers, precision=precision, is_stopping=is_stopping
        )
        try:
            results: dict[str, float] = {}
            for folder in self.folders:
                results |= zero_shot_results(model, tokenizer, folder, self.config, sharing)
            if self.shards:
                points = embed_held_out(model, tokenizer, self.shards, self.config.max_samples, sharing)
                lifted = points.lifted(model)
                results |= pair_results(model, tokenizer, points, lifted, self.config, sharing)
                if distances is not None:
                    distances |= root_distances(model, lifted)
        finally:
            model.train(was_training)
        return results


def zero_shot_results(
    model: DualEncoder,
    tokenizer: TextTokenizer,
    folder: ImageFolder,
    config: HeldOutConfig,
    sharing: Sharing,
) -> dict[str, float]:
    """Zero-shot classification of one image folder. Raises UserError for a class whose files are no usable images."""
    with sharing.precision():
        features = class_features(model, tokenizer, folder.classes, config.prompts, config.batch_size)
    check_finite(features.flatten(0, 1), f"prompts of {folder.name}")
    classes = model.lift_prompts(features)

    def read(numbers: range) -> tuple[Tensor, list[str]]:
        return read_images([folder.paths[number] for number in numbers], model.config.image.size_px)

    def classify(item: tuple[Tensor, list[str]]) -> tuple[Tensor, list[str]]:
        images, problems = item
        if not len(images):
            return torch.zeros(0), problems
        with sharing.precision():
            found = embed_images(model, images, config.batch_size)
        return predict(model, found, classes, config.ranking).where(found.isfinite().all(-1), torch.nan), problems

    parts, lists = zip(*map_shared(len(folder.paths), read, classify, sharing), strict=True)
    problems = [problem for part in lists for problem in part]
    read_targets = [n for n, problem in zip(folder.targets, problems, strict=True) if not problem]
    if lost := sorted({*folder.targets} - {*read_targets}):
        raise UserError(
            f"image_folders: no file of the class {folder.classes[lost[0]]} of {folder.name} can be read as an image, such "
            f"as {problems[folder.targets.index(lost[0])]}; replace or remove them"
        )
    results, bad = dict[str, float](), [*filter(None, problems)]
    if bad:
        logger.warning("%s: %s left out, such as %s", folder.name, counted(len(bad), "unreadable image"), bad[0])
        results[f"zero_shot/{folder.name}/unreadable"] = len(bad) / len(problems)
    target = torch.tensor(read_targets)
    predicted = check_finite(torch.cat(parts)[:, None], f"images of {folder.name}")[:, 0].long()
    return results | {
        f"zero_shot/{folder.name}/accuracy": macro_accuracy(predicted, target, len(folder.classes)),
        f"zero_shot/{folder.name}/accuracy_micro": (predicted == target).float().mean().item(),
        f"zero_shot/{folder.name}/chance": 1 / len(folder.classes),
    }


def pair_results(
    model: DualEncoder,
    tokenizer: TextTokenizer,
    points: HeldOutPoints,
    lifted: dict[str, Tensor],
    config: HeldOutConfig,
    sharing: Sharing,
) -> dict[str, float]:
    """Retrieval among full images and captions; entailment between images, captions, boxes, phrases and words."""
    results = retrieval_results(model, lifted["image"], lifted["text"], config)
    owner = points.owner.to(device_of(model)) if len(points.owner) else None
    if "parse" in model.needs:
        parsed = [(caption, words) for caption, words in zip(points.captions, points.words, strict=True) if words]
        with sharing.precision():
            lifted = lifted | embed_words(model, tokenizer, parsed[:MAX_PARSED], config.batch_size)[0]
    found = entailment_metrics(model, lifted, owner, config.seed)
    return results | {f"entailment/{name}": value for name, value in found.items()}


def retrieval_results(model: DualEncoder, image: Tensor, text: Tensor, config: HeldOutConfig) -> dict[str, float]:
    """Retrieval in both directions between lifted images and captions; only image i matches caption i."""
    results: dict[str, float] = {}
    n, sides = image.shape[-2], {"text": (text, image), "image": (image, text)}
    for direction, query in DIRECTIONS.items():
        score = partial(model.scores, ranking=config.ranking, query=query)
        queries, candidates = sides[query]
        found = recall_at(ranks_of_matches(score, queries, candidates), RECALL_AT)
        results |= {f"retrieval/{direction}/recall@{k}": share for k, share in found.items()}
        ones = torch.ones(n, dtype=torch.int64)
        results |= {f"retrieval/{direction}/chance@{k}": chance_recall(n, ones, k) for k in RECALL_AT}
    return results
