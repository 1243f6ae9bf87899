"""What a run begins with."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from common.errors import UserError
from tests.trainer.small_run import run, small_config
from trainer.build import build, build_tokenizer, check_batch_norms, new_model
from trainer.checkpoints.model import save_model
from trainer.checkpoints.released import write_released
from trainer.data.preprocess import PreprocessConfig
from trainer.distributed.process import Process
from trainer.encoders.config import ImageConfig

TIMM_VIT = ("model.image.name=vit_tiny_patch16_224", "model.image.size_px=64")
RESNET = ImageConfig(name="resnet10t", size_px=32, kwargs={"layers": [1, 1, 1, 1], "channels": [8, 8, 16, 16]})


@pytest.mark.parametrize("layout", ["folder", "released.pth"])
def test_a_run_begins_with_the_weights_it_is_given(tmp_path: Path, layout: str) -> None:
    config = small_config(tmp_path / "run")
    torch.manual_seed(1)
    source, start = new_model(config), tmp_path / layout
    if layout == "folder":
        save_model(start, source, tokenizer=build_tokenizer(config), preprocess=PreprocessConfig(size_px=16), record={})
    else:
        write_released(start, source)
    torch.manual_seed(2)
    begun = new_model(small_config(tmp_path / "run", f"init={start}"))
    assert all(torch.equal(value, begun.state_dict()[key]) for key, value in source.state_dict().items())


def test_weights_of_another_size_are_refused_by_name(tmp_path: Path) -> None:
    write_released(tmp_path / "wide.pth", new_model(small_config(tmp_path / "run")))
    with pytest.raises(UserError, match=r"^init: .*wide\.pth.*textual_proj\.weight is \[16, 32\]"):
        new_model(small_config(tmp_path / "run", f"init={tmp_path / 'wide.pth'}", "model.embed_dim=32"))


def test_weights_that_are_code_are_not_run(tmp_path: Path) -> None:
    (tmp_path / "evil.pth").write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR.")
    with pytest.raises(
        UserError, match=r"^init: .*evil\.pth is not a file of tensors alone.*save its state dict as safetensors$"
    ):
        new_model(small_config(tmp_path / "run", f"init={tmp_path / 'evil.pth'}"))
    assert not (tmp_path / "ran").exists()


def test_weights_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^init: .*nowhere: no such checkpoint"):
        new_model(small_config(tmp_path / "run", f"init={tmp_path / 'nowhere'}"))


def test_images_of_a_size_that_the_tower_does_not_take_are_refused_before_the_data_are_looked_for(
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match=r"model\.image\.size_px is 64, and vit_tiny_patch16_224 cannot.*img_size: 64"):
        new_model(small_config(tmp_path / "run", *TIMM_VIT, "model.image.kwargs={depth: 1}"))
    new_model(small_config(tmp_path / "run", *TIMM_VIT, "model.image.kwargs={depth: 1, img_size: 64}"))
    with pytest.raises(UserError, match=r"model\.image\.size_px is 4, and vit_small cannot"):
        new_model(small_config(tmp_path / "run", "model.image.size_px=4"))


@pytest.mark.parametrize("option", ["micro_batch_size=2", "checkpoint_activations=true"])
def test_batch_norms_are_refused_where_they_would_not_see_the_batch_once(tmp_path: Path, option: str) -> None:
    def check(*options: str, **fields: Any) -> None:
        config = small_config(tmp_path / "run", *options)
        image = replace(RESNET, **fields)
        config = replace(config, model=replace(config.model, image=image))
        check_batch_norms(config, new_model(config))

    with pytest.raises(UserError, match=rf"(?i){option} computes rows apart.*resnet10t has batch norms"):
        check(option)
    check()
    check(option, frozen=True)
    check(option, kwargs=RESNET.kwargs | {"norm_groups": 8})


def test_a_kernel_for_gpus_is_refused_without_one(tmp_path: Path) -> None:
    config = small_config(tmp_path / "run", "model.loss_kernel=triton")
    with pytest.raises(UserError, match=r"loss_kernel=triton needs a CUDA device.*loss_kernel=chunked"):
        build(config, Process(device=torch.device("cpu")))


def test_blocks_are_compiled_also_where_their_activations_are_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    counters.clear()
    assert run(tmp_path / "run", "steps=1", "compile=true", "checkpoint_activations=true") == 0
    assert counters["stats"]["unique_graphs"] >= 2  # blocks of both towers
