"""The parts of a run: initial weights, tokenizer, and settings that contradict each other."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from hypergrit_common.errors import UserError
from tests.trainer.released_files import write_released
from tests.trainer.small_run import run, small_config, small_run, write_data
from trainer.checkpoints.model import save_model
from trainer.config import TrainConfig
from trainer.data.preprocess import PreprocessConfig
from trainer.data.text_streams import STREAMS, TextStream
from trainer.distributed.process import Process
from trainer.encoders.config import ImageConfig
from trainer.models.clip import CLIP
from trainer.models.dual_encoder import DualEncoder
from trainer.models.terms import Entails, Term
from trainer.training.build import (
    build,
    build_tokenizer,
    check_batch_norms,
    check_streams,
    compiles,
    new_model,
    precision_of,
)
from trainer.training.loop import log_summary

TIMM_VIT = ("model.image.name=vit_tiny_patch16_224", "model.image.size_px=64")
RESNET = ImageConfig(name="resnet10t", size_px=32, kwargs={"layers": [1, 1, 1, 1], "channels": [8, 8, 16, 16]})


def write(path: Path, model: DualEncoder, config: TrainConfig) -> None:
    """Save weights as a released file or, if the name has no ending, as the folder of a model."""
    if path.suffix:
        write_released(path, model)
    else:
        save_model(path, model, tokenizer=build_tokenizer(config), preprocess=PreprocessConfig(size_px=16), record={})


@pytest.mark.parametrize("layout", ["folder", "released.pth"])
def test_init_loads_the_weights_of_a_folder_or_a_released_file(tmp_path: Path, layout: str) -> None:
    config = small_config(tmp_path / "run")
    torch.manual_seed(1)
    source, path = new_model(config), tmp_path / layout
    write(path, source, config)
    torch.manual_seed(2)
    loaded = new_model(small_config(tmp_path / "run", f"init={path}"))
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in source.state_dict().items())


def test_blocks_are_compiled_on_a_gpu_where_a_compiler_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    auto, cpu, cuda = small_config(tmp_path / "run"), torch.device("cpu"), torch.device("cuda")
    assert auto.compile == "auto"
    monkeypatch.setattr("trainer.training.build.missing_for_compilation", lambda device: "")
    assert not compiles(auto, cpu)
    assert compiles(auto, cuda)
    assert compiles(replace(auto, compile=True), cpu)
    assert not compiles(replace(auto, compile=False), cuda)
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert not compiles(auto, cuda)
    assert "torch.compile needs a C compiler; install gcc and g++" in caplog.text
    with pytest.raises(UserError, match=r"compile=true: torch\.compile needs a C compiler"):
        compiles(replace(auto, compile=True), cpu)


@pytest.mark.parametrize("layout", ["folder", "released.pth"])
def test_init_skip_keeps_random_weights_so_that_the_width_may_differ(tmp_path: Path, layout: str) -> None:
    config, path = small_config(tmp_path / "run"), tmp_path / layout
    source = new_model(config)
    with torch.no_grad():
        source.curv.fill_(0.7)  # type: ignore[operator, union-attr]
    write(path, source, config)
    skip = "init_skip=[visual_proj,textual_proj,curv]"
    loaded = new_model(small_config(tmp_path / "run", f"init={path}", skip, "model.embed_dim=4"))
    assert (loaded.visual_proj.weight.shape, loaded.curv) == ((4, 32), 0.0)
    equal = {key: torch.equal(value, source.state_dict()[key]) for key, value in loaded.state_dict().items()}
    assert {key for key, same in equal.items() if not same} == {"visual_proj.weight", "textual_proj.weight", "curv"}


def test_positions_of_the_initial_weights_are_stretched_for_longer_captions(tmp_path: Path) -> None:
    short = new_model(small_config(tmp_path / "run"))
    write_released(tmp_path / "short.pth", short)
    arguments = (f"init={tmp_path / 'short.pth'}", "model.text.context_length=20")
    with pytest.raises(UserError, match=r"\[8, 32\], not \[20, 32\]; set .*length=8, or .*stretch_after=2"):
        new_model(small_config(tmp_path / "run", *arguments))
    with pytest.raises(UserError, match=r"\[8, 32\], not \[5, 32\]; set model\.text\.context_length=8$"):
        new_model(small_config(tmp_path / "run", arguments[0], "model.text.context_length=5"))
    config = small_config(tmp_path / "run", *arguments, "model.text.stretch_after=3")
    long = new_model(config).eval()
    ids = build_tokenizer(config)(["a"])
    assert ids.shape[1] == 3
    assert torch.equal(long.encode_text(ids), short.eval().encode_text(ids))
    ids = build_tokenizer(config)(["word " * 30])
    assert ids.shape[1] == 20
    assert long.encode_text(ids).isfinite().all()


def test_a_hyperbolic_model_starts_from_clip_and_back_with_a_list_of_what_differs(tmp_path: Path) -> None:
    clip = new_model(small_config(tmp_path / "run", "model_name=clip", "seed=3"))
    write_released(tmp_path / "clip.pth", clip)
    arguments = ("model_name=hycoclip", f"init={tmp_path / 'clip.pth'}")
    with pytest.raises(UserError, match=r"; init_skip=\[curv,textual_alpha,visual_alpha\] leaves them out$"):
        new_model(small_config(tmp_path / "run", *arguments))
    new = "init_skip=[curv,'*_alpha',visual_proj,textual_proj,visual.norm,textual.ln_final,visual.blocks.1]"
    model = new_model(small_config(tmp_path / "run", *arguments, new))
    other = clip.state_dict()
    equal = {name for name, value in model.state_dict().items() if name in other and torch.equal(value, other[name])}
    assert {"visual.blocks.0.attn.qkv.weight", "textual.token_embed.weight", "logit_scale"} <= equal
    assert not {"visual_proj.weight", "textual_proj.weight", "visual.blocks.1.attn.qkv.weight"} & equal
    write_released(tmp_path / "hycoclip.pth", model)
    back = ("model_name=clip", f"init={tmp_path / 'hycoclip.pth'}")
    with pytest.raises(UserError, match=r"3 unknown entries, such as curv; init_skip=\[curv,textual_alpha,visual"):
        new_model(small_config(tmp_path / "run", *back))
    assert new_model(small_config(tmp_path / "run", *back, "init_skip=[curv,'*_alpha']")).config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["init={}/a.pth", "model.embed_dim=32"], r"a\.pth.*textual_proj\.weight is \[16, 32\]"),
        (
            ["init={}/a.pth", "init_skip=[proj]"],
            r"'proj' matches no parameter; the parts of the model are .*visual_proj",
        ),
        (["init={}/evil.pth"], r"evil\.pth must contain only tensors"),
        (["init={}/nowhere"], r"nowhere does not exist; give the folder of a run"),
    ],
)
def test_initial_weights_that_cannot_be_used_are_named_and_never_executed(
    tmp_path: Path, settings: list[str], message: str
) -> None:
    write_released(tmp_path / "a.pth", new_model(small_config(tmp_path / "run")))
    (tmp_path / "evil.pth").write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR.")
    with pytest.raises(UserError, match=rf"^init: .*{message}"):
        new_model(small_config(tmp_path / "run", *(setting.format(tmp_path) for setting in settings)))
    assert not (tmp_path / "ran").exists()


def test_batch_norms_that_are_frozen_to_the_end_may_see_parts_of_a_batch(tmp_path: Path) -> None:
    write_data(tmp_path / "run")

    def build_frozen(until: str) -> None:
        config = small_config(tmp_path / "run", "micro_batch_size=4", f"optim.frozen_until={{visual: {until}}}")
        build(replace(config, model=replace(config.model, image=RESNET)), Process(device=torch.device("cpu")))

    build_frozen("null")
    with pytest.raises(UserError, match="resnet10t has batch norms"):
        build_frozen("3")


def test_an_image_size_that_the_tower_does_not_accept_is_an_error(
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match=r"model\.image\.size_px is 64, and vit_tiny_patch16_224 cannot.*img_size: 64"):
        new_model(small_config(tmp_path / "run", *TIMM_VIT, "model.image.kwargs={depth: 1}"))
    new_model(small_config(tmp_path / "run", *TIMM_VIT, "model.image.kwargs={depth: 1, img_size: 64}"))
    with pytest.raises(UserError, match=r"model\.image\.size_px is 4, and vit_small cannot"):
        new_model(small_config(tmp_path / "run", "model.image.size_px=4"))


@pytest.mark.parametrize("option", ["micro_batch_size=2", "checkpoint_activations=true"])
def test_options_that_split_or_repeat_batches_are_an_error_with_batch_norms(tmp_path: Path, option: str) -> None:
    def check(*options: str, **fields: Any) -> None:
        config = small_config(tmp_path / "run", *options)
        image = replace(RESNET, **fields)
        config = replace(config, model=replace(config.model, image=image))
        check_batch_norms(config, new_model(config))

    message = rf"(?i){option} passes parts of a batch.*resnet10t has batch norms"
    with pytest.raises(UserError, match=message):
        check(option)
    check()
    check(option, frozen=True)
    check(option, kwargs=RESNET.kwargs | {"norm_groups": 8})


@pytest.mark.rest
def test_blocks_are_compiled_with_activation_checkpointing_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    counters.clear()
    assert run(tmp_path / "run", "steps=3", "compile=true", "checkpoint_activations=true") == 0
    assert counters["stats"]["unique_graphs"] >= 2  # blocks of both towers


@pytest.mark.parametrize(("capability", "strategy", "expected"), [
    ((7, 0), "ddp", "fp16"), ((7, 0), "fsdp", "fp32"), ((9, 0), "ddp", "bf16"),
])  # fmt: skip
def test_a_gpu_without_bf16_trains_in_fp16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], strategy: str, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    config = small_config(tmp_path / "run", "precision=auto", f"parallel.strategy={strategy}")
    assert precision_of(config, torch.device("cuda")) == expected
    assert precision_of(config, torch.device("cpu")) == "fp32"
    assert precision_of(replace(config, precision="fp32"), torch.device("cuda")) == "fp32"


def test_a_large_batch_on_a_cpu_names_the_overlay_for_small_machines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log_summary(small_run(tmp_path / "run"), None)
    assert "small_machine.yaml" not in caplog.text
    log_summary(small_run(tmp_path / "run", "batch_size=256", "micro_batch_size=32"), None)
    assert "jobs/train/small_machine.yaml is an overlay for a first try" in caplog.text


@pytest.mark.parametrize("given", [None, "max_split_size_mb:512"])
def test_the_segments_of_a_gpu_expand_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", given or "")
    if given is None:
        monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    assert run(tmp_path / "run", f"evaluation.shards={tmp_path / 'none'}") == 2  # read after the setting
    assert os.environ["PYTORCH_ALLOC_CONF"] == (given or "expandable_segments:True")


class Misnamed(CLIP):
    """Names a stream in a term."""

    stream = "adjectivs"

    def terms(self) -> list[Term]:
        return [*super().terms(), Term(name="more", value=Entails(name="more", general=self.stream, specific="text"))]


class Forgetful(Misnamed):
    """Names a stream that exists, and leaves it out of its needs."""

    stream = "adjectives"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            Misnamed,
            r"the term more names the stream 'adjectivs', which does not exist \(similar: adjectives\).*STREAMS",
        ),
        (
            Forgetful,
            r"names the stream 'adjectives'; let `needs` .* return super\(\)\.needs \| \{'adjectives', \.\.\.\}",
        ),
    ],
)
def test_a_stream_that_no_batch_has_is_explained_before_the_data_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[CLIP], message: str
) -> None:
    monkeypatch.setitem(STREAMS, "adjectives", TextStream(lambda texts: [texts.caption]))
    config = small_config(tmp_path / "run", "model_name=clip")
    with pytest.raises(UserError, match=message):
        check_streams(config, kind(config.model))
    check_streams(config, CLIP(config.model))
