"""Train a head on cached features, and evaluate it on sets whose features are cached too."""

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from trainer.analyses import order
from trainer.analyses.shard_points import ShardContent, embed_content, read_shards
from trainer.checkpoints.model import load_model
from trainer.config import TrainConfig
from trainer.distributed.process import Process
from trainer.encoders.cached import CachedText
from trainer.evaluation.catalog import TASKS
from trainer.evaluation.embed import batched
from trainer.evaluation.sets.pictures import cut, read_content, to_square
from trainer.evaluation.task import Fit, ImageFeatures, ImageSource, TaskOptions, TaskResult
from trainer.features.config import FeaturesConfig
from trainer.features.write import Embedder
from trainer.models.dual_encoder import DualEncoder
from trainer.text.base import TextTokenizer
from trainer.training.build import Training, build
from trainer.training.step import update

BATCH: Final = 256
OPTIONS: Final = TaskOptions()
HELD_OUT_PX: Final = 64  # side of the images of held-out shards: that of both towers


class TowerFeatures:
    """The outputs of frozen towers for texts and images, each computed once in a process."""

    def __init__(self, tower: Path) -> None:
        config = FeaturesConfig(shards="-", model=str(tower), output="-")
        self.embedder = Embedder(loaded=load_model(str(tower)), config=config, device=torch.device("cpu"))
        self.rows: dict[Any, Tensor] = {}

    def texts(self, texts: Sequence[str]) -> Tensor:
        """Features [n g] of texts."""
        self.add(sorted(texts, key=len), self.embedder.texts)  # less padding
        return torch.stack([self.rows[text] for text in texts]).float()

    def images(self, images: Sequence[ImageSource], fit: Fit) -> Tensor:
        """Features [n f] of images."""

        def embed(part: Sequence[tuple[ImageSource, Fit]]) -> Tensor:
            size = self.embedder.loaded.model.config.image.size_px
            squares = [to_square(cut(read_content(image).pixels(), image.box), fit, size) for image, fit in part]
            return self.embedder.images(torch.stack(squares))

        self.add([(image, fit) for image in images], embed)
        return torch.stack([self.rows[image, fit] for image in images]).float()

    def add(self, inputs: Iterable[Any], embed: Callable[[Sequence[Any]], Tensor]) -> None:
        """Compute the features of inputs that are missing."""
        for part in batched(dict.fromkeys(key for key in inputs if key not in self.rows), BATCH):
            self.rows |= zip(part, embed(part), strict=True)


@dataclass
class HeadEmbedder:
    """The `trainer.evaluation.task.Embedder` of a head, from the cached features of its tower."""

    model: DualEncoder
    tokenizer: TextTokenizer
    tower: TowerFeatures

    @torch.inference_mode()
    def texts(self, texts: Sequence[str]) -> Tensor:
        """Features [n d] of texts, before the lift."""
        if isinstance(self.model.textual, CachedText):
            return self.model.text_features(self.tower.texts(texts))
        return torch.cat([self.model.text_features(self.tokenizer(list(part))) for part in batched(texts, BATCH)])

    @torch.inference_mode()
    def images(
        self, images: Sequence[ImageSource], fit: Fit = "crop", *, legacy_norm: bool = False, trunk: bool = False
    ) -> ImageFeatures:
        """Features [n d] of images, before the lift. All can be read."""
        return ImageFeatures(features=self.model.image_features(self.tower.images(images, fit)), errors={})


def train(config: TrainConfig, at: Collection[int]) -> Iterator[tuple[int, Training]]:
    """Train a head, and yield it after each of the steps `at`, of which the last ends the training.

    Steps after a loss or a gradient that is not finite change nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        training = build(replace(config, output=folder), Process(device=torch.device("cpu")))
        batches = iter(training.loader)
        for step in range(1, max(at) + 1):
            if not training.halted:
                with suppress(UserError):
                    update(training, next(batches))
            if step in at:
                training.model.eval()
                yield step, training
                training.model.train()


def evaluate(head: Training, tower: Path, sets: Path, tasks: Sequence[str]) -> dict[str, TaskResult]:
    """The results of tasks on the sets in a folder, by task. The shards of the task `order` are read once."""
    embedder = HeadEmbedder(head.model, head.tokenizer, tower_features(tower))
    return {
        task: order.measure(head.model, embed_content(embedder, held_out(sets), sets), sets, OPTIONS)
        if task == "order"
        else TASKS[task].evaluate(embedder, sets, OPTIONS)
        for task in tasks
    }


@lru_cache
def tower_features(tower: Path) -> TowerFeatures:
    """The features of a tower, kept in this process."""
    return TowerFeatures(tower)


@lru_cache
def held_out(sets: Path) -> ShardContent:
    """The content of the held-out shards."""
    return read_shards(sets, HELD_OUT_PX)
