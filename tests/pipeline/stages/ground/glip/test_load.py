"""Loading, checking and saving of weights."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from hypergrit_common.errors import UserError
from pipeline.commands.models import main
from pipeline.stages.ground.glip.config import CONFIGS, TextConfig, from_dict
from pipeline.stages.ground.glip.load import guess_config, load_glip, save_glip
from pipeline.stages.ground.glip.model import Glip
from tests.pipeline.stages.ground.glip.tiny import TINY, tiny_model, write_vocab

RELEASED = replace(
    TINY, head=replace(TINY.head, unused_classes=5)
)  # a small network with all layers of the released files


@pytest.fixture
def state() -> dict[str, Tensor]:
    return dict(tiny_model(RELEASED).state_dict())


def save_pth(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def assert_same(model: Glip, state: dict[str, Tensor]) -> None:
    differing = [key for key, value in model.state_dict().items() if not torch.equal(value, state[key])]
    assert [key for key in differing if "cls_logits" not in key] == []


def test_a_released_file_is_loaded_without_its_derived_and_unused_tensors(
    tmp_path: Path, state: dict[str, Tensor]
) -> None:
    extras = {
        "rpn.anchor_generator.cell_anchors.0": torch.zeros(1, 4),
        "backbone.body.layers.0.blocks.0.attn.relative_position_index": torch.zeros(16, 16, dtype=torch.int64),
        "language_backbone.body.model.embeddings.position_ids": torch.zeros(1, 512, dtype=torch.int64),
        "language_backbone.body.model.pooler.dense.weight": torch.zeros(2, 2),
        "rpn.head.mlm_head.dense.bias": torch.zeros(2),
    }
    content = {"model": {f"module.{key}": value for key, value in (state | extras).items()}, "iteration": 7}
    model = load_glip(save_pth(tmp_path / "glip.pth", content), RELEASED)
    assert_same(model, state)
    assert not model.training


def test_a_bare_state_dict_is_loaded(tmp_path: Path, state: dict[str, Tensor]) -> None:
    assert_same(load_glip(save_pth(tmp_path / "a.pth", state), RELEASED), state)
    save_file(state, tmp_path / "a.safetensors")
    assert_same(load_glip(tmp_path / "a.safetensors", RELEASED), state)


def test_the_layer_of_unused_classes_may_have_any_size(tmp_path: Path, state: dict[str, Tensor]) -> None:
    state["rpn.head.cls_logits.weight"] = torch.zeros(3000, 32, 1, 1)
    state["rpn.head.cls_logits.bias"] = torch.zeros(3000)
    load_glip(save_pth(tmp_path / "lvis.pth", state), RELEASED)


def test_a_saved_folder_is_loaded_with_weights_in_half_precision(tmp_path: Path) -> None:
    model = tiny_model()
    save_glip(tmp_path / "out", model.state_dict(), TINY, write_vocab(tmp_path))
    loaded = load_glip(str(tmp_path / "out"))
    assert loaded.config == TINY
    assert_same(loaded, {key: value.half().float() for key, value in model.state_dict().items()})
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "model.safetensors",
        "vocab.txt",
    ]


def test_keys_that_do_not_fit_are_listed(tmp_path: Path, state: dict[str, Tensor]) -> None:
    del state["rpn.head.bias0"]
    state["rpn.head.surprise"] = torch.zeros(1)
    state["rpn.head.log_scale"] = torch.zeros(2)
    state["rpn.head.bias_lang"] = torch.full_like(state["rpn.head.bias_lang"], float("nan"))
    state["rpn.head.bbox_pred.bias"] = state["rpn.head.bbox_pred.bias"].to(torch.int64)
    state["rpn.head.centerness.bias"] = torch.zeros(1, dtype=torch.complex64)
    state["rpn.head.bbox_pred.weight"] = torch.zeros(7)
    with pytest.raises(UserError) as error:
        load_glip(save_pth(tmp_path / "wrong.pth", state), RELEASED)
    for part in (
        "1 missing: rpn.head.bias0",
        "1 unknown: rpn.head.surprise",
        "rpn.head.log_scale (2,) instead of (1,)",
        "rpn.head.bbox_pred.weight (7,) instead of",
        "2 not floating-point: ",
        "1 not finite: rpn.head.bias_lang",
    ):
        assert part in str(error.value)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_corrupt_file_is_an_error_that_names_it(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"corrupt{suffix}"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(UserError, match=r"corrupt\S+ (is|must contain) "):
        load_glip(path)


def test_files_of_other_models_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a GLIP checkpoint"):
        load_glip(save_pth(tmp_path / "other.pth", {"conv1.weight": torch.zeros(1)}))
    with pytest.raises(UserError, match=r"nothing\.pth does not exist"):
        load_glip(tmp_path / "nothing.pth")
    with pytest.raises(UserError, match=r"config\.json does not exist"):
        load_glip(tmp_path)


@pytest.mark.parametrize("content", ["[]", "{", '{"detect": {"colour": 1}}', '{"text": {"heads": 7}}'])
def test_a_wrong_configuration_is_refused(tmp_path: Path, content: str) -> None:
    save_glip(tmp_path, tiny_model().state_dict(), TINY, write_vocab(tmp_path))
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config\.json|no network can be built"):
        load_glip(tmp_path)


def test_a_configuration_of_excessive_depth_is_refused_before_a_network_is_built() -> None:
    values = asdict(TINY)
    values["head"]["rounds"] = 10**9
    with pytest.raises(UserError, match="deeper than"):
        from_dict(values)


@pytest.mark.parametrize("name", ["glip_t_a", "glip_t", "glip_l"])
def test_the_keys_of_a_released_file_determine_its_configuration(name: str) -> None:
    small = replace(CONFIGS[name], text=TextConfig(vocab_size=10))
    with torch.device("meta"):
        assert guess_config(Glip(small).state_dict(), Path("x.pth")) == CONFIGS[name]


def test_convert_writes_a_folder_that_can_be_loaded(
    tmp_path: Path, state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.stages.ground.glip.config.CONFIGS", {"glip_t": RELEASED})
    vocab = write_vocab(tmp_path)
    checkpoint = save_pth(tmp_path / "glip.pth", {"model": {f"module.{key}": value for key, value in state.items()}})
    output = tmp_path / "out"
    assert main(["convert", str(checkpoint), f"output={output}", f"vocabulary={vocab}", "architecture=glip_t"]) == 0
    assert_same(load_glip(output), state)


def test_convert_names_a_missing_file_or_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(tmp_path / "no.pth"), f"output={tmp_path / 'out'}"]) == 2
    assert re.search(r"error: .*no\.pth does not exist", capsys.readouterr().err)
    assert main(["convert", "checkpoint=no.pth"]) == 2
    assert "output is not set" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "architecture = null" in capsys.readouterr().out
