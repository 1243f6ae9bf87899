"""Training from the command line, on shards that the pipeline's own writer wrote."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from common.errors import UserError
from pipeline.ground.glip import train as command
from pipeline.ground.glip.load import load_glip, save_glip
from pipeline.ground.glip.text import Prompter
from pipeline.ground.glip.train import main, mirror
from pipeline.ground.glip.training import checkpoint
from pipeline.ground.glip.training.checkpoint import STATE, next_step
from pipeline.ground.glip.training.examples import Example, LabelledPhrase
from pipeline.ground.glip.training.shards import batches_from, find_shards, index_rows, load_example
from pipeline.write.config import WriteConfig
from pipeline.write.stage import write_shard
from tests.pipeline.ground.glip.tiny import TINY, tiny_model, write_vocab
from tests.pipeline.write.shards import CAPTION, PROVENANCE, dropped_row, jpeg, kept_row, plan, table


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pipeline leaves: two shards of two usable rows and a dropped one."""
    folder = tmp_path_factory.mktemp("output")
    for index in (1, 2):
        rows = [kept_row(10), dropped_row(11), kept_row(12) | {"image": jpeg(200, 300), "width": 200, "height": 300}]
        write_shard(table(rows), plan(index, 3), WriteConfig(image_bytes=True), str(folder), PROVENANCE)
    return folder


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GLIP to fine-tune."""
    folder = tmp_path_factory.mktemp("start")
    save_glip(folder, tiny_model().state_dict(), TINY, write_vocab(folder))
    return folder


def arguments(output: Path, start: Path, out: Path, steps: int = 4, **more: object) -> list[str]:
    settings = {"output": out, "init": start, "steps": steps, "batch_size": 2, "optim.warmup_steps": 1, "device": "cpu"}
    settings |= {"log.every": 1, "optim.average_every": 1, "save.interval_s": 0.0}
    return [str(output), *(f"{key}={value}" for key, value in {**settings, **more}.items())]


def losses(out: Path) -> dict[int, float]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return {line["step"]: line["loss/token"] for line in map(json.loads, lines)}


@pytest.mark.parametrize("kind", ["grit", "arrow"])
def test_both_kinds_of_shards_give_the_same_examples(output: Path, start: Path, kind: str) -> None:
    rows, skipped = index_rows(find_shards(str(output / kind)), Prompter(start / "vocab.txt", TINY.text), TINY)
    assert len(rows) == 4
    assert not skipped
    example = load_example(rows[0])
    assert example.image.shape == (200, 300, 3)
    assert example.caption == CAPTION
    named = {CAPTION[slice(*phrase.span)]: len(phrase.boxes) for phrase in example.phrases}
    assert named == {"a small dog": 1, "a café": 1, "🐈 dog": 1}
    assert len(example.phrases) == 4  # "a café" stands there twice
    assert len(example.boxes) == 4  # the removed box teaches nothing
    assert example.boxes[0] == pytest.approx((30, 50, 270, 150))


def test_every_epoch_holds_every_row_once_in_an_order_of_its_own(output: Path, start: Path) -> None:
    rows, _ = index_rows(find_shards(str(output)), Prompter(start / "vocab.txt", TINY.text), TINY)
    rows = [replace(row, place=i) for i, row in enumerate(rows * 5)]
    places = [[row.place for row in batch] for batch in islice(batches_from(rows, 4, 0, 0), 10)]
    for epoch in (places[:5], places[5:]):
        assert sorted(place for batch in epoch for place in batch) == list(range(20))
    assert places[:5] != places[5:]
    assert [[row.place for row in batch] for batch in islice(batches_from(rows, 4, 0, 7), 3)] == places[7:]


def test_one_command_fine_tunes_and_the_result_is_a_grounder(output: Path, start: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(arguments(output, start, out, flip=0.5, short_sides="[64,96]")) == 0
    assert sorted(losses(out)) == [1, 2, 3, 4]
    assert load_glip(out).config == TINY
    assert "steps: 4" in (out / "training.yaml").read_text()


def test_one_command_trains_a_new_model_with_a_vocabulary_of_its_own(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "CONFIGS", {"small": replace(TINY, text=replace(TINY.text, vocab_size=256))})
    assert main(arguments(output, Path("new:small"), tmp_path / "out", steps=2)) == 0
    assert "dog" in (tmp_path / "out" / "vocab.txt").read_text().split()


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_stopped(output: Path, start: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main(arguments(output, start, whole, steps=8)) == 0
    again = arguments(output, start, broken, steps=8)
    process = subprocess.Popen([sys.executable, "-m", "pipeline.ground.glip.train", *again], stderr=subprocess.DEVNULL)
    while next_step(broken) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    stopped = next_step(broken)
    assert 3 <= stopped < 8
    assert main(again) == 0
    assert losses(broken) == losses(whole)
    for name in ("model.safetensors", STATE):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()


def test_a_run_with_other_settings_is_not_overwritten(
    output: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(output, start, tmp_path, steps=2)) == 0
    assert main(arguments(output, start, tmp_path, steps=2, lr=0.5)) == 2
    assert "other settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"init": "new:glip_x"}, "no such graph"),
        ({"init": "/no/such/model"}, "is not there"),
        ({"batch_size": 100}, "4 usable rows, fewer than"),
        ({"colour": "red"}, "colour"),
        ({"optim.warmup_steps": 9}, "give more than warmup_steps"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"lr": -1}, "optim.lr is -1"),
        ({"lr": "inf"}, "optim.lr is inf"),
        ({"lr": "nan"}, "optim.lr is nan"),
        ({"lr": 1e9}, "is not finite: token"),
        ({"optim.weight_decay": "nan"}, "optim.weight_decay is nan"),
        ({"optim.warmup_steps": -1}, "optim.warmup_steps is -1"),
        ({"vocabulary": "README.md"}, "is no vocabulary"),
        ({"optim.average_every": 0}, "optim.average_every is 0"),
        ({"optim.ema": 2}, "optim.ema is 2"),
        ({"seed": -1}, "seed is -1; give 0 or more"),
        ({"flip": 3}, "flip is 3.0; give 0 to 1"),
        ({"short_sides": "[0]"}, "short_sides is [0]; give numbers above 0"),
        ({"output": "/proc/none"}, "/proc/none"),
    ],
)
def test_what_a_user_can_mend_is_said_in_a_line(
    output: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: dict, message: str
) -> None:
    assert main([*arguments(output, start, tmp_path / "out"), *(f"{key}={value}" for key, value in wrong.items())]) == 2
    assert message in capsys.readouterr().err


def test_what_stops_a_run_midway_is_said_in_a_line(
    output: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments(output, start, tmp_path, steps=2)
    with patch.object(checkpoint, "save_glip", side_effect=OSError(28, "No space left on device")):
        assert main(given) == 2
    assert "the checkpoint of step 1 cannot be written" in capsys.readouterr().err
    with patch.object(command, "train", side_effect=FloatingPointError("the loss is not finite: nan")):
        assert main(given) == 2
    assert "the loss is not finite: nan; a lower lr" in capsys.readouterr().err
    assert main(given) == 0
    whole = (tmp_path / STATE).read_bytes()
    for damaged in (b"damaged", whole[: len(whole) // 2], (tmp_path / "model.safetensors").read_bytes()):
        (tmp_path / STATE).write_bytes(damaged)
        assert main(given) == 2
        assert f"{STATE} is damaged; delete it" in capsys.readouterr().err


def test_shards_that_cannot_be_learned_from_are_named(tmp_path: Path, start: Path) -> None:
    prompter = Prompter(start / "vocab.txt", TINY.text)
    with pytest.raises(UserError, match=r"no \.arrow or \.tar file"):
        find_shards(str(tmp_path / "nothing"))
    (tmp_path / "cut.tar").write_bytes(b"no tar at all")
    (tmp_path / "cut.arrow").write_bytes(b"no arrow at all")
    with pytest.raises(UserError, match=r"cut\.tar is no shard"):
        index_rows([tmp_path / "cut.tar"], prompter, TINY)
    with pytest.raises(UserError, match=r"cut\.arrow is no Arrow file"):
        index_rows([tmp_path / "cut.arrow"], prompter, TINY)
    write_shard(table([kept_row(10)]), plan(1, 1), WriteConfig(formats=("arrow",)), str(tmp_path), PROVENANCE)
    with pytest.raises(UserError, match=r"holds no images"):
        index_rows(find_shards(str(tmp_path / "arrow")), prompter, TINY)


def test_rows_without_a_usable_phrase_are_counted_and_left_out(tmp_path: Path, start: Path) -> None:
    emoji = kept_row(10) | {"caption": "\U0001f600 " * 20}
    write_shard(table([emoji, kept_row(11)]), plan(1, 2), WriteConfig(formats=("grit",)), str(tmp_path), PROVENANCE)
    rows, skipped = index_rows(find_shards(str(tmp_path)), Prompter(start / "vocab.txt", TINY.text), TINY)
    assert (len(rows), skipped) == (1, {"unknown_words": 1})


def test_a_mirrored_image_takes_its_boxes_along() -> None:
    image = np.zeros((4, 10, 3), np.uint8)
    image[:, 1:3] = 255
    phrase = LabelledPhrase(span=(0, 1), boxes=(0,))
    found = mirror(Example(image=image, caption="x", phrases=[phrase], boxes=[(1.0, 0.0, 3.0, 4.0)]))
    (box,) = found.boxes
    assert found.image[0, int(box[0]) : int(box[2])].min() == 255
    assert box == (7.0, 0.0, 9.0, 4.0)


def test_help_lists_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(key in text for key in ("optim.steps", "short_sides", "init = miniature"))
