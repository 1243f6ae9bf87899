import numpy as np
import pytest
import torch

from trainer.data.preprocess import PreprocessConfig, fit, preprocess


def test_squash_keeps_the_full_image_and_crop_its_centre() -> None:
    image = np.zeros((40, 80, 3), np.uint8)
    image[:, 40:] = 255
    squashed = preprocess(image, PreprocessConfig(size_px=16, mode="squash"))
    assert squashed.shape == (3, 16, 16)
    assert squashed[:, :, :7].max() < 0.05
    assert squashed[:, :, 9:].min() > 0.95
    image[:, :20] = 255
    assert preprocess(image, PreprocessConfig(size_px=16, mode="crop"))[:, :, 1:7].max() < 0.1


@pytest.mark.parametrize("shape", [(50, 70), (97, 41), (33, 32), (32, 427)])
def test_pixels_equal_those_of_torchvision(shape: tuple[int, int]) -> None:
    from torchvision.transforms.v2 import CenterCrop, Compose, InterpolationMode, Resize

    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    pixels = torch.from_numpy(image).permute(2, 0, 1)
    theirs = Compose([Resize(32, InterpolationMode.BICUBIC, antialias=True), CenterCrop(32)])
    assert torch.equal(fit(image, PreprocessConfig(size_px=32, mode="crop")), theirs(pixels))
    squashed = Resize([32, 32], InterpolationMode.BICUBIC, antialias=True)(pixels)
    assert torch.equal(fit(image, PreprocessConfig(size_px=32, mode="squash")), squashed)


def test_values_are_between_zero_and_one() -> None:
    image = np.random.default_rng(0).integers(0, 2, (9, 9, 3), np.uint8) * np.uint8(255)
    pixels = preprocess(image, PreprocessConfig(size_px=30, mode="squash"))
    assert pixels.dtype == torch.float32
    assert 0 <= pixels.min() <= pixels.max() <= 1
