"""The initial network of a run, and its vocabulary."""

from collections.abc import Sequence
from pathlib import Path

from common.errors import UserError
from pipeline.ground.glip.config import CONFIGS
from pipeline.ground.glip.load import find_vocabulary, find_weights, load_glip
from pipeline.ground.glip.model import Glip
from pipeline.ground.glip.training.config import NEW, GlipTrainConfig
from pipeline.ground.glip.training.shards import read_captions
from pipeline.ground.glip.training.vocabulary import write_vocabulary
from pipeline.ground.load import grounder_path


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
