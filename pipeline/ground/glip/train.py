"""Fine-tune GLIP, or train a new one, on the pipeline's own shards: `python -m pipeline.ground.glip.train SHARDS key=value ...`."""

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import yaml

from common.config import split_runtime, to_yaml
from common.config_help import describe, print_text
from common.devices import pick_device
from common.errors import UserError
from pipeline.ground.glip.config import CONFIGS, GlipConfig
from pipeline.ground.glip.load import VOCAB, find, find_vocabulary, load_glip
from pipeline.ground.glip.model import Glip
from pipeline.ground.glip.text import Prompter
from pipeline.ground.glip.training.checkpoint import next_step
from pipeline.ground.glip.training.config import KEYS, GlipTrainConfig, load_config
from pipeline.ground.glip.training.examples import Batch, Example, collate
from pipeline.ground.glip.training.loop import train
from pipeline.ground.glip.training.shards import Row, batches_from, captions, find_shards, index_rows, load_example
from pipeline.ground.glip.training.vocabulary import write_vocabulary
from pipeline.ground.grounder import prefetch
from pipeline.ground.load import grounder_path

logger = logging.getLogger(__name__)

USAGE = """\
usage: python -m pipeline.ground.glip.train SHARDS [CONFIG.yaml ...] [key=value ...]

SHARDS is an output folder of the pipeline, its arrow/ or grit/, or a glob of their files. The same command goes on where a killed
run stopped. The folder `output` is a grounder at every checkpoint: grounder=OUTPUT.

  python -m pipeline.ground.glip.train out/mine output=out/my_glip init=models/glip_t steps=2000
  python -m pipeline.ground.glip.train out/mine output=out/my_mini init=new:miniature lr=2e-3 optim.language_lr_ratio=1
"""
NEW = "new:"
SETTINGS = "training.yaml"


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 done, 2 something the user can mend."""
    if not arguments or "--help" in arguments or "-h" in arguments:
        print_text(describe(USAGE, GlipTrainConfig, KEYS.short))
        return 0 if arguments else 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        run(load_config(arguments))
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except FloatingPointError as error:
        print(f"error: {error}; a lower lr or a longer optim.warmup_steps may help, in another output", file=sys.stderr)
        return 2
    return 0


def run(config: GlipTrainConfig) -> None:
    """Train from the start, or from the checkpoint in `config.output`."""
    out = Path(config.output)
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
    model.to(pick_device(config.device))
    train(model, data, vocab, config, resume=first > 0)
    logger.info("done: grounder=%s", out)


def check_settings(path: Path, config: GlipTrainConfig, *, is_begun: bool) -> None:
    """Save the settings beside the weights. Raises UserError if a run resumes with settings that must not change."""
    if is_begun and path.exists():
        saved = KEYS.translate(yaml.safe_load(path.read_text(encoding="utf-8")))
        fixed, _ = split_runtime(config)
        plain = json.loads(json.dumps(fixed))
        changed = [key for key in plain if saved.get(key) != plain[key]]
        if changed:
            raise UserError(
                f"{path.parent} holds a run with other settings: {changed[0]} was {saved.get(changed[0])!r}, "
                f"is {plain[changed[0]]!r}; give another output, or delete it"
            )
    path.write_text(to_yaml(config), encoding="utf-8")


def make_model(config: GlipTrainConfig, out: Path, shards: Sequence[Path]) -> tuple[Glip, Path]:
    """The network to train, and the vocabulary that belongs to it.

    Raises UserError naming what is missing.
    """
    if not config.init.startswith(NEW):
        path = find(grounder_path(config.init))
        beside = (path if path.is_dir() else path.parent) / VOCAB
        return load_glip(path), find_vocabulary(config.vocabulary) if config.vocabulary else beside
    name = config.init.removeprefix(NEW)
    if name not in CONFIGS:
        raise UserError(f"init={config.init!r}: no such graph; choose one of {', '.join(NEW + n for n in CONFIGS)}")
    graph = CONFIGS[name]
    if config.vocabulary:
        return Glip(graph), find_vocabulary(config.vocabulary)
    vocab = out / VOCAB
    if not vocab.exists():
        write_vocabulary(vocab, captions(shards), graph.text.vocab_size)
    return Glip(graph), vocab


def batch_stream(
    rows: Sequence[Row], prompter: Prompter, model: GlipConfig, config: GlipTrainConfig, first: int
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

    return prefetch(load, enumerate(batches_from(rows, config.batch_size, config.seed, first), start=first))


def mirror(example: Example) -> Example:
    """Left and right exchanged."""
    width = example.image.shape[1]
    boxes = [(width - x_max, y_min, width - x_min, y_max) for x_min, y_min, x_max, y_max in example.boxes]
    return replace(example, image=np.ascontiguousarray(example.image[:, ::-1]), boxes=boxes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
