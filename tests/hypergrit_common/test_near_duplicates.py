"""The perceptual hash: against the formula, and on pictures that are the same or not."""

from itertools import combinations

import cv2
import numpy as np
import pytest

from hypergrit_common.images import Image
from hypergrit_common.near_duplicates import find_near, perceptual_hash
from tests.pipeline.commands.derive.outputs import picture


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


@pytest.mark.parametrize(("radius", "max_pairs"), [(0, 5), (3, 5), (6, 2**22)])
def test_near_hashes_equal_those_of_all_pairs(radius: int, max_pairs: int) -> None:
    random = np.random.default_rng(0)
    queries = random.integers(0, 2**63, 200, np.uint64)
    others = queries[:100].copy()
    for row in range(100):  # row % 9 different bits
        for bit in random.choice(64, row % 9, replace=False):
            others[row] ^= np.uint64(1) << np.uint64(bit)
    pairs = np.bitwise_count(queries[:, None] ^ others[None]) <= radius
    assert find_near(queries, others, radius, max_pairs).tolist() == pairs.any(1).tolist()
    assert pairs.any(1).sum() >= 100 * (radius + 1) // 9


def test_nothing_is_near_an_empty_set() -> None:
    none = np.zeros(0, np.uint64)
    assert find_near(np.array([5], np.uint64), none, 3).tolist() == [False]
    assert find_near(none, np.array([5], np.uint64), 3).tolist() == []
