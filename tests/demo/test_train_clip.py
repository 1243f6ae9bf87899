"""Training of the miniature CLIP: resumption, and refused arguments."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from common.errors import UserError
from common.weights import read_tensors
from demo import train_clip
from demo.clip_data import DataConfig
from demo.clip_state import read_state, state_path
from demo.train_clip import TrainClipConfig, main, train

CONFIG = TrainClipConfig(
    steps=4,
    batch=8,
    processes=1,
    warmup_steps=2,
    save_every=2,
    log_every=2,
    n_captions=300,
    n_merges=50,
    evaluation_scenes=4,
    data=DataConfig(buffer=20),
)


def weights(out: Path) -> dict[str, torch.Tensor]:
    return read_tensors(out / "model.safetensors")


def test_a_stopped_training_resumes_with_the_weights_of_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "parts"
    train(0, str(tmp_path / "rendezvous-0"), CONFIG, whole)
    assert not state_path(whole).exists()
    real, steps = train_clip.average_gradients, []

    def stop_in_step_4(parameters: list[torch.nn.Parameter]) -> None:
        steps.append(1)
        if len(steps) == 4:
            raise KeyboardInterrupt
        real(parameters)

    monkeypatch.setattr(train_clip, "average_gradients", stop_in_step_4)
    with pytest.raises(KeyboardInterrupt):
        train(0, str(tmp_path / "rendezvous-1"), CONFIG, out)
    torch.distributed.destroy_process_group()
    assert state_path(out).exists()
    train(0, str(tmp_path / "rendezvous-2"), CONFIG, out, resume=True)
    assert len(steps) == 4 + 2
    assert not state_path(out).exists()
    assert weights(out).keys() == weights(whole).keys()
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(out).items())
    assert "step 4/4" in capsys.readouterr().out


def test_a_state_of_other_settings_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = state_path(tmp_path / "clip")
    assert read_state(path, repr(CONFIG)) is None
    torch.save({"settings": repr(replace(CONFIG, lr=1.0))}, path)
    with pytest.raises(UserError, match=r"clip\.resume\.pt belongs to a training with other settings"):
        read_state(path, repr(CONFIG))
    path.write_bytes(b"PK")
    with pytest.raises(UserError, match=r"clip\.resume\.pt cannot be read"):
        read_state(path, repr(CONFIG))


def test_init_may_not_be_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train_clip", "--init", str(tmp_path), "--out", str(tmp_path), "--steps", "1"])
    assert main() == 2
    assert "--init and --out are both" in capsys.readouterr().err
