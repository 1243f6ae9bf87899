"""A released checkpoint as a folder of safetensors: `python -m pipeline.ground.glip.convert in.pth out/ --vocab vocab.txt`."""

import argparse
import logging
import sys
from pathlib import Path

import torch

from common.errors import UserError
from pipeline.ground.glip.config import CONFIGS
from pipeline.ground.glip.load import VOCAB, load_glip, save_glip
from pipeline.ground.glip.text import Prompter

logger = logging.getLogger(__name__)


def convert(checkpoint: Path, out: Path, vocab: Path, graph: str | None, dtype: torch.dtype) -> None:
    """Check a checkpoint once, and write what `load_glip` reads without a pickle from then on."""
    model = load_glip(checkpoint, CONFIGS[graph] if graph else None)
    Prompter(vocab, model.config.text)  # refuses a vocabulary that does not fit
    save_glip(out, model.state_dict(), model.config, vocab, dtype)
    logger.info("%s -> %s", checkpoint, out)


def main() -> None:
    """Command line."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("checkpoint", type=Path, help="a .pth or .safetensors file")
    parser.add_argument("out", type=Path, help="the folder to write")
    parser.add_argument("--vocab", type=Path, help=f"bert-base-uncased's {VOCAB}; default: beside the checkpoint")
    parser.add_argument(
        "--graph", choices=[name for name in CONFIGS if name != "miniature"], help="default: by the keys"
    )
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float32")
    options = parser.parse_args()
    vocab = options.vocab or options.checkpoint.parent / VOCAB
    try:
        convert(options.checkpoint, options.out, vocab, options.graph, getattr(torch, options.dtype))
    except (UserError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
