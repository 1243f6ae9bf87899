"""Run a complete training, from the configuration to a grounder."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
import yaml

from hypergrit_common.config import flatten, split_runtime, to_yaml
from hypergrit_common.devices import pick_device
from hypergrit_common.disk import atomic_write
from hypergrit_common.errors import UserError
from hypergrit_common.text import counted
from pipeline.stages.ground.glip.config import CONFIGS
from pipeline.stages.ground.glip.load import find_vocabulary, find_weights, load_glip
from pipeline.stages.ground.glip.model import Glip
from pipeline.stages.ground.glip.text import Prompter
from pipeline.stages.ground.glip.training.checkpoint import next_step
from pipeline.stages.ground.glip.training.config import NEW, GlipTrainConfig
from pipeline.stages.ground.glip.training.loop import train
from pipeline.stages.ground.glip.training.shards import (
    index_examples,
    list_training_shards,
    load_batches,
    read_captions,
    write_vocabulary,
)
from pipeline.stages.ground.load import grounder_path

logger = logging.getLogger(__name__)

SETTINGS_FILE: Final = "training.yaml"


def run(config: GlipTrainConfig) -> None:
    """Train from the start, or resume from the checkpoint in `config.output`.

    Raises UserError or OSError for errors of the settings, the shards or the disk, which the user can fix, and
    FloatingPointError if the loss or its gradient is not finite.
    """
    output = Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    first_step = next_step(output)
    check_settings(output / SETTINGS_FILE, config, resumes=first_step > 0)
    shards = list_training_shards(config.shards)
    torch.manual_seed(config.seed)
    model, vocab = build_initial_model(config, output, shards)
    prompter = Prompter(vocab, model.config.text)
    examples, skipped = index_examples(shards, prompter, model.config)
    found = f"{counted(len(examples), 'example')} in {counted(len(shards), 'shard')}"
    logger.info("%s; skipped examples: %s", found, dict(skipped) or "none")
    batches = load_batches(examples, prompter, model.config, config, first_step)
    model.to(pick_device(config.device))
    train(model, batches, vocab, config, resume=first_step > 0)
    logger.info("training is complete; use the model with grounder=%s", output)


def build_initial_model(config: GlipTrainConfig, output: Path, shards: Sequence[str]) -> tuple[Glip, Path]:
    """Return the network of `config.init`, and the path of its vocabulary.

    For a new model without `config.vocabulary`, a vocabulary is built from the captions of the shards and saved in
    `output`; a resumed run uses the saved one. Raises UserError if the model or one of its files is missing or damaged.
    """
    if not config.init.startswith(NEW):
        weights = find_weights(grounder_path(config.init))
        return load_glip(weights), find_vocabulary(config.vocabulary, weights)
    name = config.init.removeprefix(NEW)
    if name not in CONFIGS:
        raise UserError(
            f"init={config.init!r} is not a known model; choose one of {', '.join(NEW + n for n in CONFIGS)}"
        )
    architecture = CONFIGS[name]
    vocab = find_vocabulary(config.vocabulary, output)
    if not config.vocabulary and not vocab.exists():
        write_vocabulary(vocab, read_captions(shards), architecture.text.vocab_size)
    return Glip(architecture), vocab


# Check that the settings of a training run do not change when it resumes.


def check_settings(path: Path, config: GlipTrainConfig, *, resumes: bool) -> None:
    """Save the settings in `path`; if the run resumes, compare them with the saved ones first.

    Settings marked with `runtime` may differ. Raises UserError naming the first other setting that differs.
    """
    if resumes and path.exists():
        saved, current = flatten(_read_settings(path)), flatten(split_runtime(config)[0])
        if key := next((key for key, value in current.items() if saved.get(key) != value), ""):
            raise UserError(
                f"{path.parent} holds a run with other settings: {key} was {saved.get(key)!r} and is now "
                f"{current[key]!r}; give another output, or delete this one"
            )
    with atomic_write(path) as draft:
        draft.write_text(to_yaml(config), encoding="utf-8")


def _read_settings(path: Path) -> dict[str, Any]:
    """Read saved settings. Raises UserError if the file is damaged."""
    try:
        saved = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {error}; give another output, or delete this one") from error
    if not isinstance(saved, dict):
        raise UserError(f"{path} is damaged: it holds no settings; give another output, or delete this one")
    return saved
