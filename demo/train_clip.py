"""Train the miniature CLIP on the demo's world: `python -m demo.train_clip`, about ten minutes on two cores.

Each process generates its own scenes. Gradients are averaged over the processes. The saved weights are an exponential
moving average. With `--init`, trained weights are trained further, on the wide world too (`demo/world/wide/`).
`--resume` continues a training that was stopped, from the file OUT.resume.pt; the result is that of an uninterrupted
one, because the batches before it are generated again.
"""

import argparse
import copy
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import torch
import torch.distributed as dist
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer
from torch import Tensor

from common.cli import EXIT_CODES, command
from common.errors import UserError
from common.optim import parameter_groups, warmup_cosine
from demo.clip_data import Batch, DataConfig, augment, batches
from demo.clip_evaluation import evaluate
from demo.clip_state import ClipState, read_state, restore_state, save_state, state_path
from demo.world.scenes import corpus
from demo.world.sprites import STYLES
from trainer.checkpoints.model import load_model, save_model
from trainer.data.preprocess import PreprocessConfig, to_pixels
from trainer.encoders.config import ImageConfig, TextConfig
from trainer.losses.functional import contrastive
from trainer.models.clip import CLIP
from trainer.models.config import ModelConfig
from trainer.text.base import TextTokenizer
from trainer.text.tokenizer import END_OF_WORD, WORD, Tokenizer, alphabet

FURTHER_SEED = 600_000_000  # first scene of further training
WEIGHTS = Path(__file__).parent / "weights" / "clip"

# The miniature GLIP has the same image tower and is initialised from it.
BACKBONE: dict[str, Any] = {
    "layers": [1, 1, 1, 1],
    "channels": [48, 96, 160, 192],
    "stem_type": "deep",
    "stem_width": 16,
    "avg_down": True,
    "norm_groups": 8,
}


@dataclass(frozen=True, kw_only=True)
class TrainClipConfig:
    """Training settings. `batch` is per process."""

    steps: int = 700
    batch: int = 256
    processes: int = 2
    lr: float = 2e-3
    warmup_steps: int = 100
    weight_decay: float = 0.1
    ema: float = 0.995
    scene_weight: float = 0.5
    seed: int = 0
    n_merges: int = 850
    n_captions: int = 20_000  # captions that the tokenizer is trained on
    log_every: int = 50
    evaluation_scenes: int = 400
    save_every: int = 100  # steps between two saves of the weights and of the state for --resume
    init: str = ""  # folder of a miniature CLIP to train further
    data: DataConfig = field(default_factory=DataConfig)
    preprocess: PreprocessConfig = field(default_factory=lambda: PreprocessConfig(size_px=64, mode="squash"))


def train_tokenizer(config: TrainClipConfig) -> Tokenizer:
    """Train a byte-pair encoding on captions of training scenes, split into words like CLIP's tokenizer."""
    model = tokenizers.Tokenizer(BPE(end_of_word_suffix=END_OF_WORD))
    words = Split(tokenizers.Regex(WORD.pattern), behavior="removed", invert=True)
    model.pre_tokenizer = Sequence([words, ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = BpeTrainer(
        vocab_size=512 + config.n_merges,
        initial_alphabet=alphabet(),
        end_of_word_suffix=END_OF_WORD,
        show_progress=False,
    )
    model.train_from_iterator((caption.lower() for caption in corpus(config.n_captions)), trainer)
    merges = [tuple(pair) for pair in json.loads(model.to_str())["model"]["merges"]]
    return Tokenizer(merges[: config.n_merges])


def model_config(tokenizer: Tokenizer) -> ModelConfig:
    """Return the configuration of the miniature CLIP."""
    return ModelConfig(
        image=ImageConfig(name="resnet10t", size_px=64, kwargs=BACKBONE),
        text=TextConfig(vocab_size=tokenizer.vocab_size, width=96, layers=2, heads=4),
        embed_dim=128,
    )


def loss_of(
    model: CLIP, tokenizer: TextTokenizer, batch: Batch, config: TrainClipConfig, noise: torch.Generator
) -> Tensor:
    """Return the contrastive losses of crops and texts and of scenes and captions, in both directions.

    Background crops are additional negatives of the texts.
    """
    b = len(batch.texts)
    crops = augment(to_pixels(batch.crops), noise, flip=True)
    scenes = augment(to_pixels(batch.scenes), noise, flip=False)
    with torch.autocast("cpu", torch.bfloat16):
        image = model.encode_image(torch.cat([crops, scenes]))
        text, caption = model.encode_text(tokenizer(batch.texts)), model.encode_text(tokenizer(batch.captions))
    scale = model.logit_scale.exp()
    logits = scale * model.similarity(text, image[: len(crops)])
    crop_loss = contrastive(logits, batch.compatible) + contrastive(logits[:, :b].T, batch.compatible[:, :b].T)
    scene_logits = scale * model.similarity(caption, image[len(crops) :])
    scene_loss = contrastive(scene_logits) + contrastive(scene_logits.T)
    return (crop_loss + config.scene_weight * scene_loss) / 2


def update_average(average: CLIP, model: CLIP, decay: float) -> None:
    """Update the exponential moving average of the weights in place."""
    for mean, value in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(value.detach(), 1 - decay)


def average_gradients(parameters: list[torch.nn.Parameter]) -> None:
    """Average the gradients over all processes in place. Collective."""
    flat = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, grad in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad = grad.view_as(p)


def clip_learning_rate(step: int, config: TrainClipConfig) -> float:
    """Return the learning rate of a step: linear warm-up times a cosine decay from the first step to 1 % of `lr`."""
    return config.lr * warmup_cosine(
        step, steps=config.steps, warmup_steps=config.warmup_steps, final_ratio=0.01, first_step=1, decay_start=0
    )


def train(rank: int, rendezvous: str, config: TrainClipConfig, out: Path, resume: bool = False) -> None:
    """Run one training process. Rank 0 logs, evaluates and saves. Raises UserError for an unusable state in `resume`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=config.processes)
    if config.init:
        trained = load_model(config.init)
        assert isinstance(trained.model, CLIP)
        tokenizer, model = trained.tokenizer, trained.model.requires_grad_(True).train()
    else:
        tokenizer = train_tokenizer(config)
        torch.manual_seed(config.seed)
        model = CLIP(model_config(tokenizer))
    average = copy.deepcopy(model).requires_grad_(False)
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = parameter_groups(model, lr=config.lr, weight_decay=config.weight_decay)
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    noise = torch.Generator().manual_seed(config.seed + rank)
    first_seed = FURTHER_SEED if config.init else 0
    stream = batches(config.batch, config.data, config.preprocess, first_seed + rank, config.processes)
    state = ClipState(model=model, average=average, optimizer=optimizer, noise=noise)
    found = read_state(state_path(out), repr(config)) if resume else None
    first = restore_state(state, found) if found else 0
    for _ in range(first):
        next(stream)
    log = progress_logger(config, first)
    for step in range(first, config.steps):
        for group in optimizer.param_groups:
            group["lr"] = clip_learning_rate(step, config)
        loss = loss_of(model, tokenizer, next(stream), config, noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        average_gradients(parameters)
        torch.nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()
        model.clamp_parameters()
        update_average(average, model, min(config.ema, (1 + step) / (10 + step)))
        if rank == 0:
            log(step, loss.item())
        if (step + 1) % config.save_every == 0:
            save_state(state, step + 1, repr(config), state_path(out))
            if rank == 0:
                save_model(out, average, record={}, tokenizer=tokenizer, preprocess=config.preprocess, half=True)
    if rank == 0:
        save_and_evaluate(average, tokenizer, config, out)
        state_path(out).unlink(missing_ok=True)
    dist.destroy_process_group()


def progress_logger(config: TrainClipConfig, first: int = 0) -> Callable[[int, float], None]:
    """Return a function that records the loss of a step from `first` on and prints progress every `log_every` steps."""
    start, losses = time.monotonic(), list[float]()

    def log(step: int, loss: float) -> None:
        losses.append(loss)
        if (step + 1) % config.log_every == 0:
            pairs = len(losses) * config.batch * config.processes
            seconds = time.monotonic() - start
            recent = losses[-config.log_every :]
            mean = sum(recent) / len(recent)
            remaining = seconds / len(losses) * (config.steps - step - 1)
            print(
                f"step {step + 1}/{config.steps}  loss {mean:.3f}  {pairs} pairs  {pairs / seconds:.0f} pairs/s  "
                f"{remaining:.0f} s left",
                flush=True,
            )

    return log


def save_and_evaluate(model: CLIP, tokenizer: TextTokenizer, config: TrainClipConfig, out: Path) -> None:
    """Save the model, evaluate the saved half-precision weights, and record the metrics in config.json."""
    record: dict[str, Any] = {
        "command": "python -m demo.train_clip" + (" --init ..." if config.init else ""),
        "seed": config.seed,
        "steps": config.steps,
        "pairs": config.steps * config.batch * config.processes,
    }
    parts: dict[str, Any] = {"tokenizer": tokenizer, "preprocess": config.preprocess, "half": True}
    save_model(out, model, record=record, **parts)
    saved = load_model(out).model
    record["unseen_scenes"] = {
        style: evaluate(saved, tokenizer, config.preprocess, style, config.evaluation_scenes) for style in STYLES
    }
    save_model(out, model, record=record, **parts)
    for style, row in record["unseen_scenes"].items():
        print(f"{style:9} " + json.dumps({key: value for key, value in row.items() if key != "thresholds"}))


@command()
def main() -> int:
    """Run the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXIT_CODES)
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="output folder")
    parser.add_argument("--steps", type=int, default=TrainClipConfig.steps, help="number of steps")
    parser.add_argument("--processes", type=int, default=TrainClipConfig.processes, help="number of processes")
    parser.add_argument("--seed", type=int, default=TrainClipConfig.seed, help="random seed")
    parser.add_argument("--lr", type=float, default=TrainClipConfig.lr, help="peak learning rate")
    parser.add_argument("--init", type=Path, help="folder of a miniature CLIP to train further, on the wide world too")
    parser.add_argument("--wide-share", type=float, default=0.6, help="share of wide scenes, with --init")
    parser.add_argument("--resume", action="store_true", help="resume from the state beside --out, if there is one")
    arguments = parser.parse_args()
    if arguments.init and arguments.init.resolve() == arguments.out.resolve():
        raise UserError(f"--init and --out are both {arguments.out}; give another folder for the new weights")
    config = TrainClipConfig(
        steps=arguments.steps,
        processes=arguments.processes,
        seed=arguments.seed,
        lr=arguments.lr,
        init=str(arguments.init or ""),
        data=DataConfig(wide_share=arguments.wide_share if arguments.init else 0.0),
    )
    if arguments.resume:
        read_state(state_path(arguments.out), repr(config))  # before the processes start, to report its errors
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            train,
            args=(f"{folder}/rendezvous", config, arguments.out, arguments.resume),
            nprocs=config.processes,
            join=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
