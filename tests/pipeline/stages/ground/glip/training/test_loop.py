"""The training loop: losses fall, runs resume, and non-finite numbers stop the training."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.stages.ground.glip.load import load_glip
from pipeline.stages.ground.glip.text import Prompter
from pipeline.stages.ground.glip.training.checkpoint import STATE, next_step
from pipeline.stages.ground.glip.training.config import GlipTrainConfig, LogConfig, OptimConfig, SaveConfig
from pipeline.stages.ground.glip.training.loop import lr_factor, train
from pipeline.stages.ground.glip.training.shards import Batch, Example, LabelledPhrase, batches, collate
from tests.pipeline.stages.ground.glip.tiny import TINY, tiny_model, write_vocab

OPTIM = OptimConfig(steps=30, lr=3e-3, language_lr_ratio=1.0, warmup_steps=3, max_gradient_norm=5.0)
CONFIG = GlipTrainConfig(
    shards="none", output="none", batch_size=2, optim=OPTIM, log=LogConfig(every=10), save=SaveConfig(interval_s=1e9)
)
MODEL = replace(TINY, text=replace(TINY.text, ignored_words=("a",)))


def example(seed: int) -> Example:
    """An image of a red or blue square on black, with a caption for it."""
    colour = seed % 2
    x, y = 8 + 16 * (seed % 3), 8 + 16 * (seed % 2)
    image = np.zeros((96, 96, 3), np.uint8)
    image[y : y + 40, x : x + 40, 2 * colour] = 255
    caption = f"a {('red', 'blue')[colour]} cat"
    phrase = LabelledPhrase(span=(0, len(caption)), boxes=(0,))
    return Example(image=image, caption=caption, phrases=[phrase], boxes=[(x, y, x + 40.0, y + 40.0)])


def data(prompter: Prompter, start: int = 0) -> Iterator[Batch]:
    examples = cycle([example(seed) for seed in range(6)])
    stream = batches(examples, prompter, MODEL, CONFIG.batch_size)
    for _ in range(start):
        next(stream)
    return stream


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    return write_vocab(tmp_path)


def test_the_losses_fall_and_the_weights_can_be_loaded(tmp_path: Path, vocab: Path) -> None:
    out = tmp_path / "out"
    train(tiny_model(MODEL), data(Prompter(vocab, MODEL.text)), vocab, replace(CONFIG, output=str(out)))
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [10, 20, 30]
    assert rows[-1]["loss/token"] < 0.6 * rows[0]["loss/token"]
    assert next_step(out) == 30
    assert load_glip(out).config == MODEL


def test_a_resumed_run_ends_with_the_state_and_metrics_of_an_uninterrupted_one(tmp_path: Path, vocab: Path) -> None:
    prompter = Prompter(vocab, MODEL.text)
    optim = replace(OPTIM, steps=6, warmup_steps=1, average_every=3)
    config = replace(CONFIG, optim=optim, log=LogConfig(every=2))
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    train(tiny_model(MODEL), data(prompter), vocab, replace(config, output=str(uninterrupted)))
    frequent_saves = replace(config, output=str(resumed), save=SaveConfig(interval_s=0.0))
    with pytest.raises(RuntimeError):
        train(tiny_model(MODEL), fail_after(data(prompter), 4), vocab, frequent_saves)
    assert next_step(resumed) == 3
    train(tiny_model(MODEL, seed=9), data(prompter, 3), vocab, replace(config, output=str(resumed)), resume=True)
    assert (uninterrupted / STATE).read_bytes() == (resumed / STATE).read_bytes()
    assert metrics(uninterrupted) == metrics(resumed)


def metrics(out: Path) -> list[dict[str, float]]:
    """The rows of the metrics without the speed, which differs from run to run."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "images_per_s"} for row in rows]


def fail_after(stream: Iterator[Batch], n: int) -> Iterator[Batch]:
    for _ in range(n):
        yield next(stream)
    raise RuntimeError("power cut")


def test_boxes_are_scaled_with_the_image_and_become_inclusive(vocab: Path) -> None:
    item = example(0)
    small = replace(item, image=item.image[::2, ::2], boxes=[(4.0, 4.0, 24.0, 24.0)])
    batch = collate([small, item], Prompter(vocab, MODEL.text), MODEL)
    assert batch.images.shape == (2, 3, 96, 96)
    assert batch.targets[0].boxes.tolist() == batch.targets[1].boxes.tolist() == [[8, 8, 47, 47]]
    assert batch.targets[0].tokens.tolist() == [[False, False, True, True, False]]  # [CLS] a red cat [SEP]


def test_a_box_without_a_phrase_is_not_a_target(vocab: Path) -> None:
    item = replace(example(0), boxes=[(8.0, 8.0, 48.0, 48.0), (0.0, 0.0, 5.0, 5.0)])
    assert len(collate([item], Prompter(vocab, MODEL.text), MODEL).targets[0].boxes) == 1


def test_a_caption_without_a_usable_phrase_is_an_error(vocab: Path) -> None:
    item = replace(example(0), caption="\U0001f600", phrases=[LabelledPhrase(span=(0, 1), boxes=(0,))])
    with pytest.raises(ValueError, match="unknown_words"):
        collate([item], Prompter(vocab, MODEL.text), MODEL)


def test_the_learning_rate_rises_linearly_and_falls_along_a_cosine() -> None:
    config = OptimConfig(steps=110, warmup_steps=10, final_lr_ratio=0.01)
    assert lr_factor(0, config) == pytest.approx(0.1)
    assert lr_factor(10, config) == pytest.approx(1.0)
    assert lr_factor(60, config) == pytest.approx(0.505)
    assert lr_factor(110, config) == pytest.approx(0.01)


def test_a_non_finite_gradient_stops_training_before_the_weights_change(tmp_path: Path, vocab: Path) -> None:
    model = tiny_model(MODEL)
    weight = model.rpn.head.bbox_pred.weight
    weight.register_hook(lambda gradient: gradient * float("nan"))
    before = weight.detach().clone()
    with pytest.raises(FloatingPointError, match="gradient is not finite"):
        train(model, data(Prompter(vocab, MODEL.text)), vocab, replace(CONFIG, output=str(tmp_path / "out")))
    assert torch.equal(weight, before)


def test_a_non_finite_loss_stops_training(tmp_path: Path, vocab: Path) -> None:
    model = tiny_model(MODEL)
    torch.nn.init.constant_(model.rpn.head.bbox_pred.weight, float("nan"))
    with pytest.raises(FloatingPointError, match="not finite"):
        train(model, data(Prompter(vocab, MODEL.text)), vocab, replace(CONFIG, output=str(tmp_path / "out")))
