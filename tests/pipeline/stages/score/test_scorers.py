import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from numpy.typing import NDArray
from open_clip.transform import image_transform
from PIL import Image as PILImage
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    BlipImageProcessor,
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    CLIPProcessor,
    LevitImageProcessor,
    SiglipImageProcessor,
)

from hypergrit_common.errors import UserError
from pipeline.models import token_limit
from pipeline.stages.score.filters import MINIATURE
from pipeline.stages.score.scorers import Scorer, image_preparation, load_scorer, open_clip_preparation
from tests.pipeline.clip_tokenizer import small_clip_tokenizer
from tests.selecting import select_code

TEXTS = ["a red dog", "a", "a very long phrase about a blue house near a tree"]


@pytest.fixture(scope="module")
def images() -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 255, (h, w, 3), dtype=np.uint8) for h, w in ((40, 60), (33, 3), (20, 20))]


def small_transformers_clip(folder: Path) -> None:
    tokenizer = small_clip_tokenizer(folder)
    ends = {f"{end}_token_id": getattr(tokenizer, f"{end}_token_id") for end in ("bos", "eos")}
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config={**size, "vocab_size": len(tokenizer), "max_position_embeddings": 16, **ends},
        vision_config={**size, "image_size": 16, "patch_size": 8},
        projection_dim=8,
    )
    torch.manual_seed(0)
    CLIPModel(config).save_pretrained(folder)
    processor = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    CLIPProcessor(image_processor=processor, tokenizer=tokenizer).save_pretrained(folder)


def small_open_clip(folder: Path) -> str:
    towers = {
        "embed_dim": 8,
        "vision_cfg": {"image_size": 16, "layers": 1, "width": 16, "head_width": 8, "patch_size": 8},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    }
    (folder / "tiny-for-tests.json").write_text(json.dumps(towers))
    open_clip.add_model_config(folder / "tiny-for-tests.json")
    torch.save(open_clip.create_model("tiny-for-tests").state_dict(), folder / "weights.pt")
    return f"open_clip:tiny-for-tests/{folder / 'weights.pt'}"


@pytest.fixture(scope="module", params=["transformers", "open_clip", "miniature"])
def scorer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scorer:
    folder = tmp_path_factory.mktemp(request.param)
    match request.param:
        case "transformers":
            small_transformers_clip(folder)
            return load_scorer(str(folder), "cpu", 2)
        case "open_clip":
            return load_scorer(small_open_clip(folder), "cpu", 2)
        case _:
            return load_scorer("miniature", "cpu", 2)


def test_each_input_has_an_embedding_of_unit_length(scorer: Scorer, images: list[NDArray[np.uint8]]) -> None:
    for features in (scorer.embed_images(images), scorer.embed_texts(TEXTS)):
        assert features.shape[0] == 3
        assert torch.allclose(features.norm(dim=1), torch.ones(3), atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_no_bit_of_an_embedding_depends_on_the_other_inputs(
    scorer: Scorer, images: list[NDArray[np.uint8]], n: int
) -> None:
    torch.set_num_threads(1)  # as in the job: threads divide the sums
    scorer = dataclasses.replace(scorer, batch_size=n)
    for embed, items in ((scorer.embed_images, images), (scorer.embed_texts, TEXTS)):
        alone = torch.cat([embed([item]) for item in items])  # type: ignore[operator]
        assert torch.equal(embed(items), alone)  # type: ignore[operator]
        assert torch.equal(embed(items[::-1] * 9)[-3:].flip(0), alone)  # type: ignore[operator]


def test_miniature_gives_matching_phrases_higher_cosines_than_others(tmp_path: Path) -> None:
    from demo.world.scenes import TEST_SEEDS, make_scene

    scorer, matching, others = load_scorer("miniature", "cpu", 64), [], []
    for seed in range(TEST_SEEDS[0], TEST_SEEDS[0] + 12):
        scene = make_scene(seed, "openmoji")
        for phrase in scene.phrases:
            for thing in [scene.objects[i] for i in phrase.objects]:
                x0, y0, x1, y1 = (round(v) for v in thing.box)
                image = scorer.embed_images([scene.image[y0:y1, x0:x1]])
                matching.append(float(image @ scorer.embed_texts([scene.caption[phrase.start : phrase.end]]).T))
                others.append(float(image @ scorer.embed_texts(["freedom and joy"]).T))
    assert np.mean(matching) > np.mean(others) + 0.2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/clip", "/no/such/clip"),
        ("open_clip:ViT-B-32", "ARCHITECTURE/WEIGHTS"),
        ("open_clip:ViT-B-32//no/such/file.pt", "does not exist"),
        ("open_clip:ViT-B-32/no_such_tag", "no_such_tag"),
    ],
)
def test_error_for_a_scorer_that_cannot_be_loaded_names_it(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_scorer(name, "cpu", 1)


@pytest.mark.parametrize("key", ["attn_implementation", "vision_config.quantization_config"])
def test_a_folder_whose_settings_select_code_is_refused_by_file_and_key(tmp_path: Path, key: str) -> None:
    small_transformers_clip(tmp_path)
    select_code(tmp_path / "config.json", key)
    with pytest.raises(UserError, match=rf"score\.scorer=.*config\.json: {key}='someone/kernel' is not allowed"):
        load_scorer(str(tmp_path), "cpu", 1)


def test_a_file_to_which_the_settings_point_is_checked_too(tmp_path: Path) -> None:
    small_transformers_clip(tmp_path)
    shutil.copy(tmp_path / "config.json", tmp_path / "config.1.0.0.json")
    (tmp_path / "config.json").write_text('{"configuration_files": ["config.1.0.0.json"]}')
    load_scorer(str(tmp_path), "cpu", 1)
    select_code(tmp_path / "config.1.0.0.json", "text_config._attn_implementation")
    with pytest.raises(UserError, match=r"text_config\._attn_implementation='someone/kernel' is not allowed"):
        load_scorer(str(tmp_path), "cpu", 1)


def test_miniature_is_part_of_the_repository() -> None:
    assert (MINIATURE / "model.safetensors").stat().st_size < 8e6


THIN = [(2, 640), (900, 3), (3, 341), (30, 341), (201, 40), (7, 512), (1, 77), (77, 1)]


class Largest(TorchDispatchMode):
    """Records the number of elements of the largest tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.n = max([self.n, *(item.numel() for item in pytree.tree_leaves(result) if isinstance(item, torch.Tensor))])
        return result


def thin(shape: tuple[int, int]) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)


def test_memory_of_a_batch_does_not_depend_on_the_shape_of_its_images(
    scorer: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    resize = PILImage.Image.resize
    monkeypatch.setattr(
        PILImage.Image,
        "resize",
        lambda self, size, *args, **kwargs: (sizes.append(3 * size[0] * size[1]), resize(self, size, *args, **kwargs))[
            1
        ],
    )
    scorer = dataclasses.replace(scorer, batch_size=4)
    largest = dict[tuple[int, int], int]()
    for shape in [(16, 16), (16, 64), *THIN, (2, 20_000)]:
        with Largest() as found:
            scorer.embed_images([thin((20, 20)), thin(shape)])
        largest[shape] = max([found.n, *sizes])
        sizes.clear()
    assert max(largest.values()) <= largest[16, 64]


@pytest.mark.parametrize("shape", [*THIN, (224, 1000), (500, 2600), (40, 60)])
@pytest.mark.parametrize(
    "settings",
    [{}, {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}}, {"resample": 2},
     {"crop_size": {"height": 250, "width": 240}}],
)  # fmt: skip
def test_pixels_of_a_thin_image_are_those_of_the_processor(settings: Any, shape: tuple[int, int]) -> None:
    """Up to 2 levels of 255, in at most 2 % of the pixels; 5 % with the bilinear filter."""
    processor = CLIPImageProcessor(**settings, image_mean=[0] * 3, image_std=[1] * 3)
    prepare = image_preparation(processor)
    (whole,) = processor(images=[thin(shape)], return_tensors="pt", input_data_format="channels_last")["pixel_values"]
    (part,) = prepare(thin(shape))["pixel_values"]
    levels = ((whole - part) * 255).abs()
    assert levels.max() < 2.5
    assert (levels > 0.5).float().mean() < 0.05


@pytest.mark.parametrize("size", [32, (32, 48), (48, 32)])
@pytest.mark.parametrize("mode", ["shortest", "squash", "longest"])
def test_pixels_of_a_thin_image_are_those_of_open_clip(mode: str, size: Any) -> None:
    transform = image_transform(size, False, mean=(0, 0, 0), std=(1, 1, 1), resize_mode=mode)
    prepare = open_clip_preparation(transform)
    for shape in [*THIN, (40, 60)]:
        if mode == "longest" and max(shape) > 32 * min(shape):
            assert prepare(thin(shape)).std() > 0  # open_clip itself fails
            continue
        levels = (prepare(thin(shape)) - transform(PILImage.fromarray(thin(shape)))).abs() * 255
        assert levels.max() < 1.5
        assert (levels > 0.5).float().mean() < 0.01


def test_processors_that_squash_or_resize_in_their_own_way_get_the_whole_image() -> None:
    for processor in (LevitImageProcessor(), SiglipImageProcessor(), BlipImageProcessor()):
        prepare = image_preparation(processor)
        for shape in ((3, 100), (100, 3)):
            whole = processor(images=[thin(shape)], return_tensors="pt", input_data_format="channels_last")
            assert torch.equal(prepare(thin(shape))["pixel_values"], whole["pixel_values"])


@pytest.mark.parametrize(("of_tokenizer", "length"), [(10**30, 16), (9, 9)])
def test_length_of_a_text_is_the_smaller_of_tokenizer_and_configuration(
    tmp_path: Path, of_tokenizer: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_transformers_clip(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": of_tokenizer}))
    lengths: list[int] = []
    forward = CLIPModel.get_text_features
    monkeypatch.setattr(
        CLIPModel,
        "get_text_features",
        lambda self, **inputs: (lengths.append(inputs["input_ids"].shape[1]), forward(self, **inputs))[1],
    )
    assert load_scorer(str(tmp_path), "cpu", 2).embed_texts(["a dog " * 30]).isfinite().all()
    assert lengths == [length, length]  # of the trial, and of the text


def test_length_that_nothing_says_is_an_error() -> None:
    with pytest.raises(UserError, match="set model_max_length"):
        token_limit(SimpleNamespace(model_max_length=10**30), None)
