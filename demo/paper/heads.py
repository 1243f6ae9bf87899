"""Train a head on cached features, and evaluate it on sets whose features are cached too.

No picture is embedded twice with a tower: `TowerFeatures` keeps the outputs of the frozen towers for the evaluation sets.
"""

import math
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from demo.paper.variants import Variant
from demo.train_demo_data import ROOT
from hypergrit_common.disk import atomic_write
from hypergrit_common.errors import UserError
from hypergrit_common.json_file import read_object, write_object
from trainer.analyses import order
from trainer.analyses.shard_points import ShardContent, embed_content, read_shards
from trainer.checkpoints.model import LoadedModel, load_model
from trainer.config import TrainConfig, load_config
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
from trainer.training.build import Run, build
from trainer.training.step import update

JOB: Final = str(ROOT / "jobs/train/heads.yaml")
TOKENIZER: Final = str(ROOT / "demo/weights/clip/merges.txt")
"""Tokenizer of text towers that are trained."""
BATCH: Final = 256
OPTIONS: Final = TaskOptions()
HELD_OUT_PX: Final = 64
"""Side of the images of held-out shards: that of both towers."""


class TowerFeatures:
    """The outputs of frozen towers for texts and images. What is missing is computed; `save` writes it to `path`."""

    def __init__(self, tower: Path, path: Path) -> None:
        self.tower, self.path = tower, path
        self.parts: dict[str, dict[str, int]] = {"image": {}, "text": {}}
        self.rows: dict[str, Tensor] = {}
        self.loaded: Embedder | None = None
        if path.is_file():
            self.rows = load_file(path)
            self.parts = read_object(path.with_suffix(".json"))

    @property
    def embedder(self) -> Embedder:
        """The towers, which are loaded if something is missing."""
        if self.loaded is None:
            config = FeaturesConfig(shards="-", model=str(self.tower), output="-")
            self.loaded = Embedder(loaded=tower_of(self.tower), config=config, device=torch.device("cpu"))
        return self.loaded

    def texts(self, texts: Sequence[str]) -> Tensor:
        """Features [n g] of texts."""
        missing = sorted(set(texts) - self.parts["text"].keys(), key=len)
        for part in batched(missing, BATCH):
            self.add("text", part, self.embedder.texts(part))
        return self.rows["text"][[self.parts["text"][text] for text in texts]].float()

    def images(self, images: Sequence[ImageSource], fit: Fit) -> Tensor:
        """Features [n f] of images."""
        names = ["/".join((*image.path.parts[-3:], str(image.index), fit)) for image in images]
        named = dict(zip(names, images, strict=True))
        missing = [name for name in named if name not in self.parts["image"]]
        size = self.embedder.loaded.model.config.image.size_px if missing else 0
        for part in batched(missing, BATCH):
            squares = [to_square(cut(read_content(named[n]).pixels(), named[n].box), fit, size) for n in part]
            self.add("image", part, self.embedder.images(torch.stack(squares)))
        return self.rows["image"][[self.parts["image"][name] for name in names]].float()

    def add(self, kind: str, names: Sequence[str], rows: Tensor) -> None:
        """Keep the features of names."""
        first = len(self.parts[kind])
        self.parts[kind] |= {name: first + number for number, name in enumerate(names)}
        self.rows[kind] = torch.cat([self.rows[kind], rows]) if kind in self.rows else rows

    def save(self) -> None:
        """Write all features."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_object(dict(self.parts), self.path.with_suffix(".json"))
        with atomic_write(self.path) as draft:
            save_file(self.rows, draft)


@lru_cache
def tower_of(folder: Path) -> LoadedModel:
    """The model of a tower."""
    return load_model(str(folder))


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


def config_of(
    variant: Variant, features: Path, seed: int, lr: float, steps: int, overrides: Sequence[str] = ()
) -> TrainConfig:
    """The configuration of the training of a row."""
    settings = [JOB, f"model_name={variant.model}", *overrides, *variant.overrides]
    settings += [f"data.features={features}", f"lr={lr}", f"tokenizer={TOKENIZER}"]
    settings += [f"steps={steps}", f"seed={seed}", f"data.seed={seed}", "output=unused", "device=cpu", "precision=fp32"]
    return load_config(settings)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A head after a step of its training."""

    config: TrainConfig
    model: DualEncoder
    tokenizer: TextTokenizer
    step: int
    seconds: float
    loss: float
    has_collapsed: bool
    """True if a loss or a gradient was not finite: the weights are those before that step."""


def train(config: TrainConfig, at: Collection[int]) -> Iterator[Trained]:
    """Train a head, and yield it after each of the steps `at`, of which the last ends the training."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run: Run = build(replace(config, output=folder), Process(device=torch.device("cpu")))
        loss, collapsed = math.nan, False
        batches = iter(run.loader)
        for step in range(1, max(at) + 1):
            if not collapsed:
                try:
                    loss = update(run, next(batches))["loss/total"]
                except UserError:
                    collapsed = True
            if step in at:
                seconds = time.monotonic() - start
                yield Trained(
                    config=config,
                    model=run.model.eval(),
                    tokenizer=run.tokenizer,
                    step=step,
                    seconds=seconds,
                    loss=loss,
                    has_collapsed=collapsed,
                )
                run.model.train()


def evaluate(trained: Trained, tower: TowerFeatures, sets: Path, tasks: Sequence[str]) -> dict[str, TaskResult]:
    """The results of tasks on the sets in a folder, by task."""
    embedder = HeadEmbedder(trained.model, trained.tokenizer, tower)
    return {
        task: held_out_order(embedder, sets) if task == "order" else TASKS[task].evaluate(embedder, sets, OPTIONS)
        for task in tasks
    }


def held_out_order(embedder: HeadEmbedder, sets: Path) -> TaskResult:
    """The result of the task `order`. The shards are read once."""
    points = embed_content(embedder, held_out(sets), sets)
    return order.measure(embedder.model, points, sets, OPTIONS)


@lru_cache
def held_out(sets: Path) -> ShardContent:
    """The content of the held-out shards."""
    return read_shards(sets, HELD_OUT_PX)
