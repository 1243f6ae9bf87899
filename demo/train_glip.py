"""Train the miniature GLIP on the demo's world: `python -m demo.train_glip --out demo/weights/glip`.

Scenes are generated from their seeds during training. The share of dense grids with list prompts falls during training,
and that of scenes with captions rises. Processes use different seeds and average their weights. With `--init`, trained
weights are trained further, on the wide world too (`demo/world/wide/`): word pieces of its words are added, each with
the mean of the embeddings that its pieces had before.
"""

import argparse
import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from demo.world.scenes import TRAIN_SEEDS, Curriculum, Scene, corpus, scene_stream
from demo.world.sprites import TRAIN_STYLES, Style
from demo.world.vocabulary import CONCEPTS
from demo.world.wide.scenes import mixed_stream, wide_caption
from hypergrit_common.cli import EXIT_CODES, command
from hypergrit_common.errors import UserError
from hypergrit_common.weights import read_tensors
from pipeline.stages.ground.glip.config import MINIATURE, TextConfig
from pipeline.stages.ground.glip.load import load_glip
from pipeline.stages.ground.glip.model import ConvBackbone, Glip
from pipeline.stages.ground.glip.text import Prompter
from pipeline.stages.ground.glip.training.checkpoint import next_step
from pipeline.stages.ground.glip.training.config import GlipTrainConfig, OptimConfig
from pipeline.stages.ground.glip.training.loop import train
from pipeline.stages.ground.glip.training.shards import Example, LabelledPhrase, batches, write_vocabulary

logger = logging.getLogger(__name__)

WIDE_SEEDS = TRAIN_SEEDS[500_000_000:]  # further training uses other scenes than the first one
N_CAPTIONS = 20_000  # captions that the vocabulary is built from
# Keep freed memory in the process. By default, glibc returns large activations to the system, which zeroes their
# pages again in the next step.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "16000000000"}


@command()
def main() -> int:
    """Run the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=EXIT_CODES)
    parser.add_argument("--out", type=Path, required=True, help="output folder of weights, log and checkpoint")
    parser.add_argument("--steps", type=int, default=OptimConfig.steps, help="number of steps per process")
    parser.add_argument("--processes", type=int, default=2, help="number of processes, each with one thread")
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--init", type=Path, help="folder of a miniature GLIP to train further, on the wide world too")
    parser.add_argument(
        "--wide-share", type=float, default=0.7, help="share of wide scenes among those that are no grids, with --init"
    )
    parser.add_argument("--init-clip", type=Path, help="weights of a miniature CLIP that initialise the image tower")
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoint in --out")
    options = parser.parse_args()
    if options.init and options.init.resolve() == options.out.resolve():
        raise UserError(f"--init and --out are both {options.out}; give another folder for the new weights")
    config = GlipTrainConfig(
        shards="scenes of the demo's world",
        output=str(options.out),
        optim=OptimConfig(steps=options.steps, lr=options.lr, language_lr_ratio=1.0, max_gradient_norm=5.0),
    )
    options.out.mkdir(parents=True, exist_ok=True)
    vocab = options.out / "vocab.txt"
    if not (options.resume and vocab.exists()):
        if options.init:
            widen_vocabulary(options.init / vocab.name, vocab, MINIATURE.text)
        else:
            build_vocabulary(vocab, MINIATURE.text.vocab_size)
    os.environ.update(KEEP_MEMORY)
    rendezvous = options.out.resolve() / f"rendezvous-{os.getpid()}"
    try:
        mp.spawn(run, (options, config, vocab, rendezvous), nprocs=options.processes)
    finally:
        rendezvous.unlink(missing_ok=True)
    return 0


def run(rank: int, options: argparse.Namespace, config: GlipTrainConfig, vocab: Path, rendezvous: Path) -> None:
    """Run one training process."""
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    if options.processes > 1:
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=options.processes)
    if options.init:
        model = load_glip(options.init)
        extend_embeddings(model, Prompter(options.init / vocab.name, model.config.text), vocab)
    else:
        model = Glip(MINIATURE)
    if options.init_clip:
        n_copied = copy_image_tower(model, options.init_clip)
        logger.info("copied %d tensors of the image tower from %s", n_copied, options.init_clip)
    first = next_step(options.out) if options.resume else 0
    n_seen = first * config.batch_size * options.processes
    n_scenes = config.optim.steps * config.batch_size * options.processes
    scenes: Iterator[Scene]
    if options.init:
        curriculum = Curriculum(dense_first=0.2, dense_last=0.05, n_scenes=n_scenes, list_prompt_share=0.15)
        seed = WIDE_SEEDS.start + n_seen + rank
        scenes = mixed_stream(
            seed,
            TRAIN_STYLES,
            step=options.processes,
            curriculum=remaining(curriculum, n_seen + rank),
            wide_share=options.wide_share,
        )
    else:
        scenes = stream(n_seen + rank, options.processes, n_scenes, TRAIN_STYLES)
    data = batches(map(example, scenes), Prompter(vocab, model.config.text), model.config, config.batch_size)
    if dist.is_initialized():
        dist.barrier()  # no process may overwrite the checkpoint before all have read its step
    train(model, data, vocab, config, resume=options.resume)
    if dist.is_initialized():
        dist.destroy_process_group()


def stream(start: int, step: int, n_scenes: int, styles: tuple[Style, ...]) -> Iterator[Scene]:
    """Yield the scenes from index `start`. The share of dense grids continues the schedule of the full run."""
    curriculum = remaining(Curriculum(n_scenes=n_scenes), start)
    return scene_stream(TRAIN_SEEDS.start + start, styles, step=step, curriculum=curriculum)


def remaining(full: Curriculum, start: int) -> Curriculum:
    """Return the rest of a schedule from the scene with index `start`."""
    return replace(full, dense_first=full.dense_share(start), n_scenes=max(full.n_scenes - start, 1))


def example(scene: Scene) -> Example:
    """Convert a scene to a training example."""
    phrases = [LabelledPhrase(span=(phrase.start, phrase.end), boxes=phrase.objects) for phrase in scene.phrases]
    return Example(image=scene.image, caption=scene.caption, phrases=phrases, boxes=[obj.box for obj in scene.objects])


def build_vocabulary(path: Path, size: int) -> None:
    """Write the word pieces of the world's captions, one per line."""
    captions = corpus(N_CAPTIONS, TRAIN_SEEDS.start)
    names = (text for concept in CONCEPTS for text in (concept.name, concept.plural))
    write_vocabulary(path, chain(captions, names), size)


def widen_vocabulary(old: Path, new: Path, config: TextConfig) -> None:
    """Write the old word pieces and, as far as the embedding has rows, the most frequent new words of wide captions."""
    prompter = Prompter(old, config)
    pieces = old.read_text(encoding="utf-8").splitlines()
    words = Counter(
        word
        for seed in WIDE_SEEDS[:N_CAPTIONS]
        for word in re.findall(r"[a-z]+", wide_caption(seed).lower())
        if len(prompter.tokenizer.encode(word, add_special_tokens=False).ids) > 1
    )
    added = [word for word, _ in words.most_common(config.vocab_size - len(pieces))]
    new.write_text("".join(f"{piece}\n" for piece in [*pieces, *added]), encoding="utf-8")


def extend_embeddings(model: Glip, old: Prompter, vocab: Path) -> None:
    """Set the embedding of each word piece that only `vocab` holds to the mean of its pieces in the old vocabulary."""
    embeddings = next(p for p in model.language_backbone.parameters() if p.shape[0] == model.config.text.vocab_size)
    words = vocab.read_text(encoding="utf-8").splitlines()
    with torch.no_grad():
        for index in range(old.tokenizer.get_vocab_size(), len(words)):
            ids = old.tokenizer.encode(words[index], add_special_tokens=False).ids
            embeddings[index] = embeddings[ids].mean(dim=0)


def copy_image_tower(model: Glip, clip: Path) -> int:
    """Initialise the image tower from a CLIP with the same timm network. Returns the number of tensors copied.

    Raises ValueError if the CLIP has no such image tower, or if tensors are missing.
    """
    tower = model.backbone.body
    assert isinstance(tower, ConvBackbone)
    tower_state = tower.model.state_dict()
    anchor = "layer4.0.conv2.weight"  # exists only in image towers; its key reveals the prefix
    weights = read_tensors(clip)
    prefix = next((key.removesuffix(anchor) for key in weights if key.endswith(anchor)), None)
    if prefix is None:
        raise ValueError(f"{clip}: no image tower (no key ends in {anchor}); give weights of demo.train_clip")
    missing = [key for key in tower_state if prefix + key not in weights]
    if missing:
        raise ValueError(f"{clip}: the image tower lacks {len(missing)} tensors: {', '.join(missing[:5])}")
    initial = {key: weights[prefix + key] for key in tower_state}
    stem = next(key for key in tower_state if tower_state[key].ndim == 4)
    initial[stem] = initial[stem].flip(1)  # the input of CLIP is RGB, that of GLIP is BGR
    tower.model.load_state_dict(initial)
    return len(tower_state)


if __name__ == "__main__":
    sys.exit(main())
