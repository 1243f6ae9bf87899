"""The estimate of a run's memory before its first step, and the refusal of a run that does not fit."""

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
    built = small_run(tmp_path / "run", *WIDE, f"model.image.frozen={frozen}")
    model, config = built.model, built.config
    with torch.no_grad():
        assert memory.saved_bytes(model, lambda: features(model, 2, 2)).all == 0
    image = memory.saved_per_row(model, lambda n: features(model, n, 1))
    text = memory.saved_per_row(model, lambda n: features(model, 1, n))
    found = memory.saved_bytes(model, lambda: features(model, 64, 32)).all
    assert found == pytest.approx(memory.activations(config, image, text, 64, 32, 0), rel=0.02)
    assert (image.all < 1000) == frozen
    checkpoint_blocks(model)
    found = memory.saved_bytes(model, lambda: features(model, 64, 32)).all
    assert found == pytest.approx(64 * image.inputs + 32 * text.inputs, rel=0.25)
    assert frozen or found < 0.5 * (64 * image.all + 32 * text.all)


@pytest.mark.parametrize("name", ["syntax_meru", "poinclip", "phyclip", "clip"])
def test_what_words_lifts_and_losses_keep_is_part_of_the_estimate(tmp_path: Path, name: str) -> None:
    built = small_run(tmp_path / "run", f"model_name={name}", "model.loss_chunk=64")
    model, device = built.model, built.process.device
    need = memory.check_memory(built.config, model, built.process, nullcontext())[0]
    boxes = memory.boxes_of_pair(built.config, model)
    batch = memory.drawn_batch(model, built.config.batch_size, boxes, device)
    found = memory.saved_bytes(model, lambda: model(batch).loss).all
    phrases = boxes * built.config.batch_size * (1 - memory.PHRASE_SHARE)  # the drawn ones are as long as captions
    found -= phrases * memory.saved_per_row(model, lambda n: features(model, 1, n)).all
    chunk = memory.BYTES_PER_SIMILARITY * 64
    assert need.parts["activations"] + need.parts["losses"] - chunk == pytest.approx(found, rel=0.05)
    assert (need.parts["losses"] - chunk > 0.1 * found) == (name == "syntax_meru")


def test_a_run_that_does_not_fit_is_refused_before_the_first_step_with_the_keys_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 1_000_000)
    assert run(tmp_path / "run", *WIDE) == 2
    message = capsys.readouterr().err
    assert "of 0.0 GB free in memory of the machine" in message
    assert "lower batch_size, or set micro_batch_size=16, which gives the same gradient" in message
    assert "jobs/train/small_machine.yaml" in message
    assert "memory, estimated" not in message
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert run(tmp_path / "run", *WIDE, "steps=3", "check_memory=false") == 0


def test_batches_that_do_not_fit_into_shared_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "SHM", str(tmp_path / "none"))
    assert run(tmp_path / "whole", "steps=3") == 0  # such a system has no limit
    need = memory.Need(memory.SHM, {"batches": 3.7e9}, 64e6)
    config = small_run(tmp_path / "run").config
    message = memory.problem(need, config, small_run(tmp_path / "run").process)
    assert f"needs about 3.7 of 0.1 GB free in {memory.SHM}" in message
    assert "lower data.workers or data.prefetch, or enlarge /dev/shm (docker run --shm-size)" in message


def test_the_log_has_one_line_about_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    small_run(tmp_path / "run")
    (line,) = [record.message for record in caplog.records if record.message.startswith("memory, estimated: ")]
    assert "GB free in memory of the machine" in line


def test_the_ranks_of_a_machine_share_its_memory_and_micro_batches_need_less(tmp_path: Path) -> None:
    built, row = small_run(tmp_path / "run", *WIDE), memory.Saved(1e9, 1e8, 1e7)
    alone, two = (memory.needs(built.config, built.model, built.process, row, row, 1e6, ranks)[0] for ranks in (1, 2))
    saved = alone.parts["checkpoint"]  # by the first of them
    assert two.parts["checkpoint"] == saved > 0
    assert two.total == pytest.approx(2 * alone.total - saved)
    micro = small_run(tmp_path / "run", *WIDE, "micro_batch_size=4").config
    assert memory.activations(micro, row, row, 64, 32, 32) == 4e9
    assert memory.activations(built.config, row, row, 64, 32, 32) == 104e9
    blocks = small_run(tmp_path / "run", *WIDE, "checkpoint_activations=true").config
    assert memory.activations(blocks, row, row, 64, 32, 32) == pytest.approx(128e8 + 64e7)
