"""Heads of the miniature study: cached features give the results of the embedded pictures, and a training is repeatable."""

from pathlib import Path

import pytest
import torch

from demo.paper.data import TOWERS
from demo.paper.heads import HeadEmbedder, TowerFeatures
from demo.paper.sets import write_image
from demo.world.scenes import TEST_SEEDS
from trainer.checkpoints.model import load_model
from trainer.evaluation.embedder import CachedEmbedder
from trainer.evaluation.task import ImageSource

TEXTS = ["a dog", "a red balloon above a cat", "a dog"]


@pytest.fixture
def images(tmp_path: Path) -> list[ImageSource]:
    for number in range(3):
        write_image(tmp_path / f"{number}.jpg", TEST_SEEDS[number])
    return [ImageSource(path=tmp_path / f"{number}.jpg") for number in (0, 1, 2, 1)]


def test_the_features_of_a_head_are_those_of_its_model(tmp_path: Path, images: list[ImageSource]) -> None:
    loaded = load_model("demo/weights/hycoclip")
    head = HeadEmbedder(loaded.model, loaded.tokenizer, TowerFeatures(Path("demo/weights/hycoclip/tower")))
    plain = CachedEmbedder(loaded.model, loaded.tokenizer, tmp_path / "cache")
    torch.testing.assert_close(head.texts(TEXTS), plain.texts(TEXTS), atol=0.02, rtol=0.02)  # half precision
    torch.testing.assert_close(head.images(images).features, plain.images(images).features, atol=0.02, rtol=0.02)


def test_features_are_not_computed_again(images: list[ImageSource], monkeypatch: pytest.MonkeyPatch) -> None:
    tower = TowerFeatures(TOWERS["crops"])
    texts, pictures = tower.texts(TEXTS), tower.images(images, "crop")
    for name in ("texts", "images"):
        monkeypatch.setattr(tower.embedder, name, lambda _: pytest.fail("a feature is computed again"))
    assert torch.equal(tower.texts(TEXTS), texts)
    assert torch.equal(tower.images(images, "crop"), pictures)
    assert pictures[1].equal(pictures[3])
