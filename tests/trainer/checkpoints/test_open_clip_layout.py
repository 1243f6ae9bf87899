"""Folders that open_clip wrote for the hub are read as a CLIP with the same features, pixels and tokens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import PIL.Image
import pytest
import torch
from open_clip.push_to_hf_hub import save_for_hf
from safetensors.torch import load_file, save_file

from tests.trainer.tiny_open_clip import ARCHITECTURES, TEXT, VIT, register
from trainer import Model
from trainer.checkpoints.model import load_model
from trainer.data.preprocess import fit
from trainer.inference.export import convert

CAPTIONS = ["a dog", "Two cats &amp; one naïve bird.", "words " * 20, ""]
PLAIN = {"embed_dim": 8, "vision_cfg": VIT, "text_cfg": TEXT}
POOLED = VIT | {"pool_type": "avg", "final_ln_after_pool": True, "no_ln_pre": True}
TIMM_VIT = {"timm_model_name": "vit_relpos_medium_patch16_cls_224", "timm_pool": "", "image_size": 224}
CLASSIFIER = {"timm_model_name": "test_convnext", "timm_pool": "avg", "timm_proj": None, "image_size": 32}
"""A network whose classifier, with a bias, is the projection, as in EVA-CLIP and MobileCLIP."""
MODELS: dict[str, dict[str, Any]] = {
    "quick_gelu": PLAIN | {"quick_gelu": True},
    "GELU": PLAIN,
    "average pool": PLAIN | {"vision_cfg": POOLED, "text_cfg": TEXT | {"mlp_ratio": 2.0}},
    "text below": PLAIN | {"custom_text": True, "text_cfg": TEXT | {"no_causal_mask": True, "pool_type": "last"}},
    "timm": ARCHITECTURES["tiny-timm"] | {"embed_dim": 8},
    "classifier": PLAIN | {"vision_cfg": CLASSIFIER},
    "attention pool": ARCHITECTURES["tiny-resnet"] | {"embed_dim": 8},
}


@pytest.fixture(scope="module", autouse=True)
def open_clip_lists_the_networks_of_timm(tmp_path_factory: pytest.TempPathFactory) -> None:
    register(tmp_path_factory.mktemp("architectures"))


class NoTokenizer:
    """CLIP's tokenizer has no file in open_clip's own folders."""

    def save_pretrained(self, folder: Path) -> None:
        pass


def write(folder: Path, model: dict[str, Any], **pixels: Any) -> Path:
    """A folder of open_clip with random weights, none of them zero."""
    torch.manual_seed(3)
    parts = {key: value for key, value in model.items() if key != "custom_text"}
    built: Any = (open_clip.CustomTextCLIP if model.get("custom_text") else open_clip.CLIP)(**parts)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    facts = {"size": built.visual.image_size, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4], **pixels}
    open_clip.model.set_model_preprocess_cfg(built, facts)
    save_for_hf(built, NoTokenizer(), model, str(folder))  # type: ignore[arg-type]
    return folder


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_features_and_scale_equal_those_of_open_clip(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "hub", MODELS[name])
    theirs: Any = open_clip.create_model(f"local-dir:{folder}").eval()
    loaded = load_model(folder)
    size_px = loaded.preprocess.size_px
    images = torch.rand(3, 3, size_px, size_px, generator=torch.Generator().manual_seed(0))
    pixels = (images - torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)) / torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
    torch.testing.assert_close(loaded.model.image_features(images), theirs.encode_image(pixels), atol=1e-5, rtol=1e-5)
    expected = theirs.encode_text(open_clip.get_tokenizer(f"local-dir:{folder}")(CAPTIONS))
    torch.testing.assert_close(loaded.model.text_features(loaded.tokenizer(CAPTIONS)), expected, atol=1e-5, rtol=1e-5)
    assert loaded.model.pair_scale().log() == theirs.logit_scale
    assert loaded.config["model"] == "clip"
    Model(loaded, torch.device("cpu")).save_pretrained(tmp_path / "saved")
    saved = load_model(tmp_path / "saved")
    for key, value in loaded.model.state_dict().items():
        assert torch.equal(saved.model.state_dict()[key], value)
    assert (saved.preprocess, saved.model.config) == (loaded.preprocess, loaded.model.config)


@pytest.mark.parametrize("resize_mode", ["shortest", "squash"])
def test_pixels_equal_those_of_open_clip_up_to_rounding(tmp_path: Path, resize_mode: str) -> None:
    folder = write(tmp_path / "hub", PLAIN, resize_mode=resize_mode, interpolation="bicubic")
    _, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    loaded = load_model(folder)
    generator = np.random.default_rng(0)
    for height, width in ((50, 70), (97, 41), (64, 427), (16, 16)):
        image = generator.integers(0, 256, (height, width, 3), np.uint8)
        ours = loaded.model.normalised(fit(image, loaded.preprocess)[None])[0]
        difference = (ours - transform(PIL.Image.fromarray(image))) * loaded.model.pixel_std * 255
        assert difference.abs().max() < 2.5
        assert difference.abs().mean() < 0.3


def test_a_folder_as_on_the_hub_with_a_model_of_transformers_beside_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "hub", PLAIN)
    (folder / "config.json").write_text('{"model_type": "clip"}')
    (folder / "model.safetensors").write_bytes(b"another layout")
    expected = load_model(folder).model.state_dict()
    (folder / "open_clip_model.safetensors").unlink()  # the other file of open_clip is read
    convert(folder, tmp_path / "converted")  # hypergrit export
    for source in (folder, tmp_path / "converted"):
        for key, value in load_model(source).model.state_dict().items():
            assert torch.equal(value, expected[key])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text_cfg": {"hf_tokenizer_name": "bert", "vocab_size": 32000}}, "text_cfg.hf_tokenizer_name is 'bert'"),
        ({"text_cfg": {"hf_model_name": "roberta-base"}}, "text_cfg.hf_model_name is 'roberta-base'"),
        ({"text_cfg": {"embed_cls": True}}, "text_cfg.embed_cls is True"),
        ({"text_cfg": {"proj_type": "none"}}, "text_cfg.proj_type is 'none'"),
        ({"text_cfg": {"vocab_size": 100}}, "text_cfg.vocab_size is 100, which is not supported; give a model with 49408"),
        ({"text_cfg": {"colour": 1}}, "open_clip_config.json: .*unexpected keyword argument 'colour'"),
        ({"multimodal_cfg": {"layers": 2}}, "model_cfg.multimodal_cfg is .*, which is not supported"),
        ({"init_logit_bias": -10}, "model_cfg.init_logit_bias is -10, which is not supported"),
        ({"vision_cfg": {"timm_model_name": "resnet18", "timm_proj": "mlp"}}, "vision_cfg.timm_proj is 'mlp'"),
        ({"vision_cfg": {"timm_model_name": "hf-hub:someone/net"}}, "vision_cfg.timm_model_name is 'hf-hub:someone/net'"),
        ({"vision_cfg": {"image_size": [16, 32]}}, r"image.size_px"),
        ({"vision_cfg": {"width": 32}}, "does not fit a clip model"),
        ({"vision_cfg": {"ls_init_value": 0.1}}, "does not fit a clip model: .* entries missing"),
        ({"preprocess_cfg": {"interpolation": "bilinear"}}, "preprocess_cfg.interpolation is 'bilinear'"),
        ({"preprocess_cfg": {"resize_mode": "longest"}}, "preprocess_cfg.resize_mode is 'longest'"),
    ],
)  # fmt: skip
def test_what_a_clip_here_does_not_have_is_an_error_of_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = write(tmp_path / "hub", PLAIN)
    whole = json.loads((folder / "open_clip_config.json").read_text())
    for key, value in changes.items():
        place = whole if key == "preprocess_cfg" else whole["model_cfg"]
        place[key] = {**place.get(key, {}), **value} if isinstance(value, dict) else value
    (folder / "open_clip_config.json").write_text(json.dumps(whole))
    with pytest.raises(ValueError, match=message) as error:
        load_model(folder)
    assert "\n" not in str(error.value)


def test_another_model_name_and_other_weights_are_errors(tmp_path: Path) -> None:
    folder = write(tmp_path / "hub", PLAIN)
    with pytest.raises(ValueError, match="holds a clip model, not meru; give model_name=clip, or omit it"):
        load_model(folder, "meru")
    file = folder / "open_clip_model.safetensors"
    save_file({**load_file(file), "logit_bias": torch.zeros(())}, file)
    with pytest.raises(ValueError, match="does not fit a clip model: 1 unknown entries, such as logit_bias"):
        load_model(folder)
