"""Fine-tune GLIP, or train a new one, on the pipeline's own shards: `python -m pipeline.ground.glip.train SHARDS key=value ...`."""

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from common.errors import UserError
from common.help import describe, show
from common.load import check_positive, check_range, merge, read_layers, to_yaml
from pipeline.ground.glip.checkpoint import next_step
from pipeline.ground.glip.config import CONFIGS, GlipConfig
from pipeline.ground.glip.examples import Batch, Example, collate
from pipeline.ground.glip.load import VOCAB, find, find_vocabulary, load_glip
from pipeline.ground.glip.model import Glip
from pipeline.ground.glip.recipe import TrainConfig
from pipeline.ground.glip.shards import Row, batches_from, captions, find_shards, index_rows, load_example
from pipeline.ground.glip.text import Prompter
from pipeline.ground.glip.training import train
from pipeline.ground.glip.vocabulary import write_vocabulary
from pipeline.ground.grounder import ahead
from pipeline.ground.load import grounder_path
from pipeline.models import usable_device

logger = logging.getLogger(__name__)

USAGE = """\
usage: python -m pipeline.ground.glip.train SHARDS [CONFIG.yaml] [key=value ...]

SHARDS is an output folder of the pipeline, its arrow/ or grit/, or a glob of their files. The same command goes on where a killed
run stopped. The folder `out` is a grounder at every checkpoint: grounder=OUT.

  python -m pipeline.ground.glip.train out/mine out=out/my_glip start=models/glip_t steps=2000
  python -m pipeline.ground.glip.train out/mine out=out/my_mini start=new:miniature lr=2e-3
"""
NEW = "new:"
SHORT = {"steps": "train.steps", "batch_size": "train.batch_size", "lr": "train.lr"}
SETTINGS = "training.yaml"


def fine_tuning() -> TrainConfig:
    """Rates that keep what a released model knows; a new one wants lr=2e-3 and train.language_lr_ratio=1."""
    return TrainConfig(lr=1e-4, language_lr_ratio=0.1, max_gradient_norm=1.0)


@dataclass(frozen=True, kw_only=True)
class Config:
    """One training run."""

    shards: str = ""  # output of the pipeline to learn from; the first argument
    out: str = ""  # folder for the weights, the log and the checkpoint
    # weights to start from, named as for `grounder`; or new:NAME (miniature, glip_t_a, glip_t, glip_l), a network of
    # that form with random ones
    start: str = "miniature"
    # file of word pieces; none: the one beside the weights, or for a new model one made from the captions
    vocabulary: str | None = None
    device: str | None = None  # torch device that the model is trained on; none: cuda where there is one, else cpu
    seed: int = 0  # random seed of the samples' order, of the flips and of a new model's weights
    # shorter sides of images, in pixels, of which each batch draws one (GLIP: 480 to 800 by 80); []: the model's own
    short_sides: tuple[int, ...] = ()
    flip: float = 0.0  # share of images that are mirrored, 0 to 1 (GLIP: 0.5, which makes "left" and "right" wrong)
    train: TrainConfig = field(default_factory=fine_tuning)

    def __post_init__(self) -> None:
        for key in ("shards", "out"):
            if not getattr(self, key):
                raise UserError(f"{key} is not set; see --help")
        check_range(self, "seed", least=0)
        check_range(self, "flip", least=0, most=1)
        check_positive(self, "short_sides")


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 done, 2 something the user can mend."""
    if not arguments or "--help" in arguments or "-h" in arguments:
        show(describe(USAGE, Config, SHORT))
        return 0 if arguments else 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        run(load_config(arguments))
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except FloatingPointError as error:
        print(f"error: {error}; a lower lr or a longer train.warmup_steps may help, in another out", file=sys.stderr)
        return 2
    return 0


def load_config(arguments: Sequence[str]) -> Config:
    """The configuration of a command line.

    Raises UserError naming the argument and the mend.
    """
    named = list(arguments) if "=" in arguments[0] else [f"shards={arguments[0]}", *arguments[1:]]
    path = next((argument for argument in named if "=" not in argument), None)
    config = merge(Config, read_layers(path, [argument for argument in named if argument != path], SHORT))
    assert isinstance(config, Config)
    return config


def run(config: Config) -> None:
    """Train from the start, or from the checkpoint in `config.out`."""
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    first = next_step(out)
    check_settings(out / SETTINGS, config, is_begun=first > 0)
    shards = find_shards(config.shards)
    torch.manual_seed(config.seed)
    model, vocab = make_model(config, out, shards)
    prompter = Prompter(vocab, model.config.text)
    rows, skipped = index_rows(shards, prompter, model.config)
    logger.info("%d rows of %d shards; skipped: %s", len(rows), len(shards), dict(skipped) or "none")
    data = batch_stream(rows, prompter, model.config, config, first)
    model.to(usable_device(config.device, "device"))
    train(model, data, vocab, out, config.train, seed=config.seed, resume=first > 0)
    logger.info("done: grounder=%s", out)


def check_settings(path: Path, config: Config, *, is_begun: bool) -> None:
    """Keep the settings beside the weights, and refuse to go on with others."""
    text = to_yaml(config)
    if is_begun and path.exists() and path.read_text(encoding="utf-8") != text:
        raise UserError(f"{path.parent} holds a run with other settings ({path.name}); give another out, or delete it")
    path.write_text(text, encoding="utf-8")


def make_model(config: Config, out: Path, shards: Sequence[Path]) -> tuple[Glip, Path]:
    """The network to train, and the vocabulary that belongs to it.

    Raises UserError naming what is missing.
    """
    if not config.start.startswith(NEW):
        path = find(grounder_path(config.start))
        beside = (path if path.is_dir() else path.parent) / VOCAB
        return load_glip(path), find_vocabulary(config.vocabulary) if config.vocabulary else beside
    name = config.start.removeprefix(NEW)
    if name not in CONFIGS:
        raise UserError(f"start={config.start!r}: no such graph; choose one of {', '.join(NEW + n for n in CONFIGS)}")
    graph = CONFIGS[name]
    if config.vocabulary:
        return Glip(graph), find_vocabulary(config.vocabulary)
    vocab = out / VOCAB
    if not vocab.exists():
        write_vocabulary(vocab, captions(shards), graph.text.vocab_size)
    return Glip(graph), vocab


def batch_stream(
    rows: Sequence[Row], prompter: Prompter, model: GlipConfig, config: Config, first: int
) -> Iterator[Batch]:
    """Batches from the `first` on; the next one is read while the network works."""

    def load(item: tuple[int, list[Row]]) -> Batch:
        number, chosen = item
        rng = np.random.default_rng([config.seed, 1, number])
        size = int(rng.choice(config.short_sides)) if config.short_sides else model.detect.short_side_px
        examples = [load_example(row) for row in chosen]
        examples = [mirror(example) if rng.random() < config.flip else example for example in examples]
        sized = replace(model, detect=replace(model.detect, short_side_px=size))
        return collate(examples, prompter, sized)

    return ahead(load, enumerate(batches_from(rows, config.train.batch_size, config.seed, first), start=first))


def mirror(example: Example) -> Example:
    """Left and right exchanged."""
    width = example.image.shape[1]
    boxes = [(width - x_max, y_min, width - x_min, y_max) for x_min, y_min, x_max, y_max in example.boxes]
    return replace(example, image=np.ascontiguousarray(example.image[:, ::-1]), boxes=boxes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
