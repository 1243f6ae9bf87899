"""The perceptual hash: against the formula, and on pictures that are the same or not."""

from itertools import combinations

import cv2
import numpy as np
import pytest

from common.images import Image
from pipeline.derive.phash import perceptual_hash
from tests.pipeline.derive.outputs import picture


def distance(a: Image, b: Image) -> int:
    return (perceptual_hash(a) ^ perceptual_hash(b)).bit_count()


def test_the_bits_are_those_of_the_discrete_cosine_transform() -> None:
    image = picture(3)
    grey = cv2.resize(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), (32, 32), interpolation=cv2.INTER_AREA)
    lowest = cv2.dct(grey.astype(np.float64))[1:9, 1:9]
    bits = "".join("01"[int(value > np.median(lowest))] for value in lowest.ravel())
    assert f"{perceptual_hash(image):064b}" == bits


@pytest.mark.parametrize("seed", range(5))
def test_other_sizes_qualities_and_brightnesses_change_few_bits(seed: int) -> None:
    image = picture(seed)
    _, jpeg = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 30])
    small = cv2.resize(image, (64, 48), interpolation=cv2.INTER_AREA)
    for other in (cv2.imdecode(jpeg, cv2.IMREAD_COLOR), small, (image * 0.8).astype(np.uint8)):
        assert distance(image, np.asarray(other, np.uint8)) <= 6
    assert distance(image, image[:, ::-1]) > 16


def test_different_pictures_are_far_apart_and_pictures_of_one_colour_equal() -> None:
    assert min(distance(a, b) for a, b in combinations(map(picture, range(20)), 2)) > 8
    assert {perceptual_hash(np.full((h, w, 3), grey, np.uint8)) for h, w, grey in ((1, 1, 0), (40, 3, 200))} == {0}
