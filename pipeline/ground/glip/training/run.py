"""Run a complete training, from the configuration to a grounder."""

import logging
from pathlib import Path

import torch

from common.devices import pick_device
from pipeline.ground.glip.text import Prompter
from pipeline.ground.glip.training.batches import load_batches
from pipeline.ground.glip.training.checkpoint import next_step
from pipeline.ground.glip.training.config import GlipTrainConfig
from pipeline.ground.glip.training.index import index_examples
from pipeline.ground.glip.training.initial_model import build_initial_model
from pipeline.ground.glip.training.loop import train
from pipeline.ground.glip.training.settings import SETTINGS_FILE, check_settings
from pipeline.ground.glip.training.shards import list_training_shards

logger = logging.getLogger(__name__)


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
    logger.info("%d examples in %d shards; skipped examples: %s", len(examples), len(shards), dict(skipped) or "none")
    batches = load_batches(examples, prompter, model.config, config, first_step)
    model.to(pick_device(config.device))
    train(model, batches, vocab, config, resume=first_step > 0)
    logger.info("training is complete; use the model with grounder=%s", output)
