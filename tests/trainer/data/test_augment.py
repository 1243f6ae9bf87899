import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from hypergrit_common.images import Image
from tests.trainer.data.loading import assert_batches_equal, resumed, small_loader, take
from tests.trainer.data.samples import write_shards
from trainer.data.config import AugmentConfig
from trainer.data.crops import augment, jitter


def random_image(seed: int = 0) -> Image:
    return np.random.default_rng(seed).integers(0, 256, (16, 16, 3), np.uint8)


def changed(seed: int = 0, **fields: float) -> Image:
    image = random_image()
    augment(image, AugmentConfig(**fields), random.Random(seed))
    return image


def test_flip_mirrors_columns_and_greyscale_has_equal_channels() -> None:
    assert np.array_equal(changed(), random_image())
    assert np.array_equal(changed(flip=1), random_image()[:, ::-1])
    grey = changed(greyscale=1)
    assert np.array_equal(grey[..., 0], grey[..., 1])
    assert np.array_equal(grey[..., 0], grey[..., 2])
    luma = random_image() @ np.array([0.299, 0.587, 0.114])  # ITU-R BT.601
    assert np.abs(grey[..., 0] - luma).max() <= 1


def test_probabilities_are_those_of_the_settings() -> None:
    n_flipped = sum(np.array_equal(changed(seed, flip=0.3), random_image()[:, ::-1]) for seed in range(1000))
    assert 250 < n_flipped < 350


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue"])
def test_jitter_equals_torchvision_with_the_drawn_factor(name: str) -> None:
    strengths: dict[str, Any] = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0, name: 0.3}
    pixels = torch.from_numpy(random_image()).permute(2, 0, 1)
    factor = random.Random(5).uniform(-0.3, 0.3) + (name != "hue")
    strengths_there = {name: (factor, factor)}
    expected = v2.ColorJitter(**strengths_there)(pixels)
    found = jitter(pixels, AugmentConfig(**strengths), random.Random(5))
    torch.testing.assert_close(found, expected, atol=1, rtol=0)
    assert not torch.equal(found, pixels)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return write_shards(tmp_path / "shards", [8])


def test_batches_are_the_crops_without_augmentation_after_it_whatever_the_processes(shards: Path) -> None:
    plain = take(small_loader(shards), 4)
    flipped = take(small_loader(shards, augment=AugmentConfig(flip=1.0)), 4)
    for before, after in zip(plain, flipped, strict=True):
        assert torch.equal(before["image"].rows.flip(3), after["image"].rows)
        assert torch.equal(before["box_image"].rows.flip(3), after["box_image"].rows)
    config = AugmentConfig(flip=0.5, jitter=0.5, greyscale=0.5)
    expected = take(small_loader(shards, augment=config), 4)
    assert_batches_equal(take(small_loader(shards, augment=config, workers=2), 4), expected)
    source = resumed(small_loader(shards, augment=config), 2, small_loader(shards, augment=config))
    assert_batches_equal(take(source, 2), expected[2:])
