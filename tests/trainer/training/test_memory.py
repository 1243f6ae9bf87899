"""The estimate of a run's memory before its first step, and the refusal of a run that does not fit."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.trainer.small_run import run, small_run
from trainer.models.dual_encoder import DualEncoder
from trainer.training import memory
from trainer.training.accumulate import checkpoint_blocks

WIDE = ("model.image.kwargs={embed_dim: 64, depth: 4, num_heads: 2, patch_size: 2}", "batch_size=32")


def features(model: DualEncoder, images: int, texts: int) -> list[Tensor]:
    size, length = model.config.image.size_px, model.config.text.context_length
    pixels, tokens = torch.zeros(images, 3, size, size, dtype=torch.uint8), torch.ones(texts, length, dtype=torch.int64)
    return [model.image_features(pixels), model.text_features(tokens)]


@pytest.mark.parametrize("frozen", [False, True])
def test_what_a_batch_keeps_is_predicted_from_two_rows(tmp_path: Path, frozen: bool) -> None:
    model = small_run(tmp_path / "run", *WIDE, f"model.image.frozen={frozen}").model
    with torch.no_grad():
        assert memory.saved_bytes(model, lambda: features(model, 2, 2)).all == 0
    image = memory.saved_per_row(model, lambda n: features(model, n, 1))
    text = memory.saved_per_row(model, lambda n: features(model, 1, n))
    found = memory.saved_bytes(model, lambda: features(model, 64, 32)).all
    assert found == pytest.approx(64 * image.all + 32 * text.all, rel=0.02)
    assert (image.all < 1000) == frozen
    checkpoint_blocks(model)
    found = memory.saved_bytes(model, lambda: features(model, 64, 32)).all
    assert found == pytest.approx(64 * image.inputs + 32 * text.inputs, rel=0.25)
    assert frozen or found < 0.5 * (64 * image.all + 32 * text.all)


def test_micro_batches_and_checkpoints_need_less_and_an_average_needs_more(tmp_path: Path) -> None:
    def needed(*settings: str) -> float:
        built = small_run(tmp_path / "run", *WIDE, "batch_size=256", *settings)
        return memory.needed(built.config, built.model, built.process)

    plain, micro, blocks, average = map(
        needed, ("data.workers=0", "micro_batch_size=4", "checkpoint_activations=true", "optim.ema=0.9")
    )
    assert micro < blocks < plain < average < 1.1 * plain


def test_boxes_as_pairs_need_the_memory_of_a_batch_whose_pairs_all_have_boxes(tmp_path: Path) -> None:
    def images(*settings: str) -> float:
        built = small_run(tmp_path / "run", *WIDE, "model_name=meru", *settings)
        return memory.needed(built.config, built.model, built.process)

    plain, boxes, double = map(images, ("steps=9", "model.boxes_as_pairs=true", "batch_size=64"))
    assert plain < boxes < double
    assert boxes - plain > 0.6 * (double - plain)  # as many images, and shorter texts


def test_without_a_known_free_memory_the_log_has_the_estimate_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unknown() -> int:
        raise FileNotFoundError("/proc/meminfo")

    built = small_run(tmp_path / "run")
    monkeypatch.setattr(memory, "free_memory", unknown)
    with caplog.at_level("INFO"):
        memory.check_memory(built.config, built.model, built.process, nullcontext())
    assert re.fullmatch(r"the run needs about \d+\.\d GB of memory", caplog.messages[-1])


def test_a_run_that_does_not_fit_is_refused_before_the_first_step_with_the_keys_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 1_000_000)
    assert run(tmp_path / "run", *WIDE) == 2
    message = capsys.readouterr().err
    for key in ("of 0.0 GB free", "micro_batch_size", "checkpoint_activations", "batch_size", memory.SMALL_MACHINE):
        assert key in message
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert run(tmp_path / "run", *WIDE, "steps=1", "optim.warmup_steps=0", "check_memory=false") == 0
