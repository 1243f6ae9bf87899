"""The embedder: cache, duplicates, boxes, errors, and resumption."""

import os
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from tests.trainer.evaluation.tasks.embedding import model_and_tokenizer
from trainer.data.preprocess import PreprocessConfig, fit
from trainer.evaluation.embedder import KEY_BYTES, CachedEmbedder, FeatureCache, hash_model
from trainer.evaluation.sets.pictures import to_square
from trainer.evaluation.task import ImageSource


def write_image(path: Path, seed: int = 0, size: tuple[int, int] = (24, 20)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), np.uint8)
    PIL.Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def embedder(tmp_path: Path) -> CachedEmbedder:
    return CachedEmbedder(*model_and_tokenizer("meru"), tmp_path / "cache", batch_size=3, workers=2)


def test_features_equal_those_of_the_model_in_the_order_given(embedder: CachedEmbedder, tmp_path: Path) -> None:
    texts = ["a cat", "two dogs in a park", "a cat", "x"]
    with torch.no_grad():
        expected = torch.cat([embedder.model.text_features(embedder.tokenizer([text])) for text in texts])
    torch.testing.assert_close(embedder.texts(texts), expected, rtol=1e-4, atol=1e-5)
    images = [ImageSource(path=write_image(tmp_path / f"{i}.png", i)) for i in (3, 1, 3)]
    pixels = [fit(np.array(PIL.Image.open(image.path)), PreprocessConfig(size_px=16)) for image in images]
    with torch.no_grad():
        expected = embedder.model.image_features(torch.stack(pixels))
    torch.testing.assert_close(embedder.images(images).features, expected, rtol=1e-4, atol=1e-5)


def test_nothing_is_embedded_twice_even_by_another_process(
    embedder: CachedEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [ImageSource(path=write_image(tmp_path / f"{i}.png", i)) for i in range(7)]
    texts = [f"text {i}" for i in range(5)]
    first, first_texts = embedder.images(images).features, embedder.texts(texts)
    again = CachedEmbedder(embedder.model, embedder.tokenizer, tmp_path / "cache")
    monkeypatch.setattr(embedder.model, "image_features", None)
    monkeypatch.setattr(embedder.model, "text_features", None)
    renamed = [ImageSource(path=image.path.rename(tmp_path / f"new{i}.png")) for i, image in enumerate(images)]
    assert again.images(renamed[::-1]).features.equal(first.flip(0))
    assert again.texts(texts).equal(first_texts)


def test_an_interrupted_run_keeps_the_features_of_the_finished_batches(
    embedder: CachedEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [ImageSource(path=write_image(tmp_path / f"{i}.png", i)) for i in range(7)]
    calls = []
    original = embedder.model.image_features

    def interrupted(pixels: torch.Tensor) -> torch.Tensor:
        calls.append(len(pixels))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(pixels)

    monkeypatch.setattr(embedder.model, "image_features", interrupted)
    with pytest.raises(KeyboardInterrupt):
        embedder.images(images)
    again = CachedEmbedder(embedder.model, embedder.tokenizer, tmp_path / "cache", batch_size=3)
    again.images(images)
    assert calls == [3, 3, 3, 1]


def test_a_damaged_file_of_the_cache_is_computed_again(embedder: CachedEmbedder, tmp_path: Path) -> None:
    expected = embedder.texts(["a", "b"])
    (file,) = (tmp_path / "cache").rglob("*.npy")
    file.write_bytes(file.read_bytes()[:70])
    again = CachedEmbedder(embedder.model, embedder.tokenizer, tmp_path / "cache")
    torch.testing.assert_close(again.texts(["a", "b"]), expected)


@pytest.mark.parametrize("kind", ["pipe", "zip", "pickle", "another width", "two axes", "too many", "link to a device"])
def test_what_is_no_file_of_the_cache_is_ignored_and_named(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, rows = tmp_path / "a.npy", np.zeros(3, [("key", "u1", KEY_BYTES), ("features", "<f4", 2)])
    np.save(path, rows)
    assert len(FeatureCache(tmp_path, 2).places) == 1
    monkeypatch.setattr("trainer.evaluation.embedder.MAX_ROWS", 3 - (kind == "too many"))
    if kind != "too many":
        path.unlink()
        {
            "pipe": lambda: os.mkfifo(path),
            "zip": lambda: np.savez(path.with_suffix(".npz"), rows) or path.with_suffix(".npz").rename(path),
            "pickle": lambda: path.write_bytes(b"\x80\x04\x95"),
            "another width": lambda: np.save(path, np.zeros(3, [("key", "u1", KEY_BYTES), ("features", "<f4", 3)])),
            "two axes": lambda: np.save(path, rows[None]),
            "link to a device": lambda: path.symlink_to("/dev/zero"),
        }[kind]()
    assert not FeatureCache(tmp_path, 2).places
    assert [line.split(" is damaged")[0] for line in caplog.messages] == [str(path)]


def test_boxes_and_preprocessing_have_features_of_their_own(embedder: CachedEmbedder, tmp_path: Path) -> None:
    path = write_image(tmp_path / "a.png", size=(40, 20))
    whole, box = ImageSource(path=path), ImageSource(path=path, box=(0.0, 0.0, 10.0, 10.0))
    rows = torch.cat(
        [
            embedder.images([whole, box], "crop").features,
            embedder.images([whole], "squeeze").features,
            embedder.images([whole], "pad").features,
            embedder.images([whole], "crop", legacy_norm=True).features,
        ]
    )
    assert (torch.cdist(rows, rows) > 1e-4).sum() == 5 * 4
    trunk = embedder.images([whole], trunk=True).features
    assert trunk.shape == (1, embedder.model.visual.num_features)


def test_images_that_cannot_be_read_have_an_error_and_zeros(embedder: CachedEmbedder, tmp_path: Path) -> None:
    good = write_image(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    images = [
        ImageSource(path=tmp_path / "none.png"),
        ImageSource(path=good),
        ImageSource(path=tmp_path / "bad.png"),
        ImageSource(path=good, box=(500.0, 0.0, 5.0, 5.0)),
    ]
    found = embedder.images(images)
    assert set(found.errors) == {0, 2, 3}
    assert "No such file" in found.errors[0]
    assert "has no pixel inside the image" in found.errors[3]
    assert not found.features[[0, 2, 3]].any()
    assert found.features[1].any()


def test_the_hash_depends_on_weights_settings_and_vocabulary() -> None:
    model, tokenizer = model_and_tokenizer("meru")
    first = hash_model(model, tokenizer)
    assert hash_model(*model_and_tokenizer("meru")) == first
    assert hash_model(model_and_tokenizer("hycoclip")[0], tokenizer) != first
    with torch.no_grad():
        model.curv.add_(1e-3)
    assert hash_model(model, tokenizer) != first


def test_padding_centers_the_image_on_white() -> None:
    square = to_square(np.zeros((10, 40, 3), np.uint8), "pad", 16)
    assert square.shape == (3, 16, 16)
    assert (square[:, 6:10] == 0).all()
    assert (square[:, :6] == 255).all()
    assert (square[:, 10:] == 255).all()
