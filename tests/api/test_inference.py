"""The public API of `trainer`: loading a model, encoding, similarity, entailment."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

import trainer
from common.errors import UserError
from common.images import ORIENTATION_TAG
from tests.trainer.small import small_model
from trainer import MODELS, Model, build_model, load_model
from trainer.checkpoints.model import save_model
from trainer.data.preprocess import PreprocessConfig, fit
from trainer.encoders.config import TextConfig
from trainer.text.tokenizer import Tokenizer

HYPERBOLIC = [name for name in MODELS if name != "clip"]
TEXTS = ["a cat", "a dog on a sofa", "b"]


def saved(folder: Path, name: str) -> Path:
    """Save a small model with random weights as a training run does; return the folder of the run."""
    torch.manual_seed(0)
    model = small_model(name, text=TextConfig(vocab_size=514, context_length=8, width=32, layers=1, heads=2))
    preprocess = PreprocessConfig(size_px=model.config.image.size_px)
    tokenizer = Tokenizer([], model.config.text.context_length)
    save_model(folder / "model", model, tokenizer=tokenizer, preprocess=preprocess, record={})
    return folder


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    return load_model(saved(tmp_path, request.param), device="cpu")


def pictures() -> list[PIL.Image.Image]:
    generator = np.random.default_rng(0)
    return [PIL.Image.fromarray(generator.integers(0, 255, (20, 30, 3), np.uint8)) for _ in range(4)]


def test_a_run_and_its_model_folder_load_the_same_model(tmp_path: Path) -> None:
    folder = saved(tmp_path, "meru")
    first, second = load_model(folder, device="cpu"), load_model(str(folder / "model"), device="cpu")
    assert (first.name, first.embed_dim) == ("meru", second.embed_dim)
    assert torch.equal(first.encode_text(TEXTS), second.encode_text(TEXTS))


def test_encoding_gives_one_row_per_item_whatever_the_batch_size(model: Model) -> None:
    images, texts = model.encode_image(pictures()), model.encode_text(TEXTS)
    assert images.shape == (4, model.embed_dim)
    assert texts.shape == (3, model.embed_dim)
    torch.testing.assert_close(model.encode_image(pictures(), batch_size=3), images)
    torch.testing.assert_close(model.encode_text(TEXTS, batch_size=1), texts)
    torch.testing.assert_close(model.encode_text(TEXTS[1]), texts[1:2])
    assert not images.requires_grad
    assert model.encode_text([]).shape == (0, model.embed_dim)


def test_paths_images_and_arrays_are_encoded_alike(model: Model, tmp_path: Path) -> None:
    picture = pictures()[0]
    picture.save(tmp_path / "a.png")
    expected = model.encode_image(picture)
    for given in (tmp_path / "a.png", str(tmp_path / "a.png"), np.array(picture), [picture]):
        torch.testing.assert_close(model.encode_image(given), expected)


def variants(folder: Path) -> Iterator[Path]:
    """Image files whose pixels depend on transparency, orientation or bit depth."""
    picture = pictures()[0]
    alpha = picture.convert("RGBA")
    alpha.putalpha(PIL.Image.linear_gradient("L").resize(picture.size))
    alpha.save(folder / "alpha.png")
    yield folder / "alpha.png"
    exif = PIL.Image.Exif()
    exif[ORIENTATION_TAG] = 6
    picture.save(folder / "rotated.jpg", exif=exif)
    yield folder / "rotated.jpg"
    PIL.Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100).save(folder / "deep.png")
    yield folder / "deep.png"
    picture.quantize(8).save(folder / "palette.gif")
    yield folder / "palette.gif"


def test_a_file_gives_the_same_embedding_as_a_path_and_as_a_pil_image(tmp_path: Path) -> None:
    model = load_model(saved(tmp_path, "meru"), device="cpu")
    for path in variants(tmp_path):
        with PIL.Image.open(path) as picture:
            assert torch.equal(model.encode_image(picture), model.encode_image(path)), path


@pytest.mark.parametrize("shape", [(4, 4), (3, 4, 4), (4, 4, 4), (0, 4, 3)])
def test_an_array_of_another_shape_is_an_error(shape: tuple[int, ...], tmp_path: Path) -> None:
    model = load_model(saved(tmp_path, "meru"), device="cpu")
    with pytest.raises(UserError, match=r"give uint8 \[height, width, 3\]"):
        model.encode_image(np.zeros(shape, np.uint8))


def test_encoding_and_similarity_are_those_of_the_module(model: Model) -> None:
    images, texts = model.encode_image(pictures()), model.encode_text(TEXTS)
    pixels = torch.stack([fit(np.array(picture), model.preprocess) for picture in pictures()])
    with torch.no_grad():
        expected = model.module.similarity(
            model.module.encode_image(pixels), model.module.encode_text(model.tokenizer(TEXTS))
        )
    assert expected.shape == (4, 3)
    torch.testing.assert_close(model.similarity(images, texts), expected)
    torch.testing.assert_close(model.similarity(texts, images).T, expected)
    assert (model.similarity(texts, texts).diagonal() >= model.similarity(texts, texts).amax(1) - 1e-4).all()


@pytest.mark.parametrize("name", HYPERBOLIC)
def test_entailment_agrees_with_the_energy_of_the_module_pair_by_pair(name: str, tmp_path: Path) -> None:
    model = load_model(saved(tmp_path, name), device="cpu")
    texts, images = model.encode_text(TEXTS), model.encode_image(pictures())
    for scale in (0.5, 1.0, 8.0):
        found = model.entails(texts, images, aperture_scale=scale)
        assert found.shape == (3, 4)
        for i, text in enumerate(texts):
            for j, image in enumerate(images):
                energy = model.module.energy(model._split(text[None]), model._split(image[None]), scale)
                assert bool(found[i, j]) == bool((energy == 0).all())


@pytest.mark.parametrize("name", ["meru", "phyclip", "poinclip"])
def test_entailment_in_small_blocks_is_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(saved(tmp_path, name), device="cpu")
    texts, images = model.encode_text(TEXTS), model.encode_image(pictures())
    expected = model.entails(texts, images, aperture_scale=4)
    monkeypatch.setattr("trainer.inference.MAX_PAIRS", 5)
    assert torch.equal(model.entails(texts, images, aperture_scale=4), expected)


def test_very_wide_cones_entail_every_point_and_cones_of_width_zero_entail_none(tmp_path: Path) -> None:
    model = load_model(saved(tmp_path, "hycoclip"), device="cpu")
    texts, images = model.encode_text(TEXTS), model.encode_image(pictures())
    assert model.entails(texts, images, aperture_scale=100).all()
    assert not model.entails(texts, images, aperture_scale=0).any()


def test_clip_has_no_cones(tmp_path: Path) -> None:
    model = load_model(saved(tmp_path, "clip"), device="cpu")
    with pytest.raises(ValueError, match="clip has no entailment cones; load one of the hyperbolic models"):
        model.entails(model.encode_text(TEXTS), model.encode_text(TEXTS))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{tmp_path / 'nothing'}"):
        load_model(tmp_path / "nothing")
    model = load_model(saved(tmp_path, "meru"), device="cpu")
    (tmp_path / "broken.jpg").write_bytes(b"not an image")
    for name in ("broken.jpg", "missing.jpg"):
        with pytest.raises(UserError, match=rf"{name} cannot be read as an image"):
            model.encode_image([tmp_path / name])
    with (
        pytest.raises(UserError, match="torch finds no CUDA device")
        if not torch.cuda.is_available()
        else pytest.raises(UserError)
    ):
        load_model(tmp_path, device="cuda:99")


def test_a_damaged_released_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.pth").write_bytes(b"")
    with pytest.raises(UserError, match=r"model\.pth"):
        load_model(tmp_path / "model.pth", model_name="meru")


def test_a_released_file_needs_the_name_of_its_model(tmp_path: Path) -> None:
    torch.save({"model": small_model("meru").state_dict()}, tmp_path / "model.pth")
    with pytest.raises(UserError, match=r"model_name"):
        load_model(tmp_path / "model.pth")


def test_a_model_is_built_by_name_with_random_weights() -> None:
    config = small_model("phyclip").config
    assert build_model("phyclip", config).config == config
    with pytest.raises(ValueError, match="unknown model 'siglip'; choose one of clip, meru"):
        build_model("siglip")


def test_the_trainer_lists_its_public_names() -> None:
    assert dir(trainer) == sorted(trainer.__all__) == ["MODELS", "Model", "build_model", "load_model"]
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        trainer.nothing  # noqa: B018
