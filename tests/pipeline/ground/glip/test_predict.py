"""The grounder: images, captions and spans in, boxes out."""

import numpy as np
import pytest

from pipeline.ground.glip.config import CONFIGS
from pipeline.ground.glip.images import MEAN_BGR, STD_BGR, batch_images, network_size, padded_size, resize
from pipeline.ground.glip.predict import GlipGrounder
from pipeline.ground.glip.text import Prompter
from pipeline.ground.grounder import Detection, Image
from tests.pipeline.ground.glip.tiny import TINY, tiny_model, write_vocab


@pytest.fixture(scope="module")
def grounder(tmp_path_factory: pytest.TempPathFactory) -> GlipGrounder:
    prompter = Prompter(write_vocab(tmp_path_factory.mktemp("vocab")), TINY.text)
    return GlipGrounder(tiny_model(), prompter, "cpu", 0.0, "caption")


def picture(height: int, width: int, seed: int = 0) -> Image:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def assert_close(found: list[Detection] | None, wanted: list[Detection] | None) -> None:
    assert found is not None
    assert wanted is not None
    assert len(found) == len(wanted) > 0
    for mine, other in zip(found, wanted, strict=True):
        assert mine.phrase == other.phrase
        assert mine.score == pytest.approx(other.score, abs=1e-4)
        assert mine.box == pytest.approx(other.box, abs=1e-4)


def test_an_image_gets_the_same_boxes_alone_and_in_any_batch(grounder: GlipGrounder) -> None:
    images = [picture(96, 96), picture(48, 60, 1), picture(96, 90, 2), picture(60, 48, 3)]
    captions = ["a red dog", "two dogs on a sofa", "dog", "the tennis racket left of a person"]
    spans = [[(2, 9)], [(0, 8), (12, 18)], [(0, 3)], [(0, 17), (26, 34)]]
    together = grounder(images, captions, spans)
    for i, found in enumerate(together):
        assert_close(found, grounder(images[i : i + 1], captions[i : i + 1], spans[i : i + 1])[0])


def test_one_bad_member_spoils_no_batch(grounder: GlipGrounder) -> None:
    images = [picture(96, 96), picture(1, 1), picture(3, 900), picture(96, 96, 4), picture(96, 96, 5)]
    captions = ["a dog", "a dog", "a dog", "\U0001f600\U0001f680", ""]
    spans = [[(0, 5)], [(0, 5)], [(0, 5)], [(0, 1)], [(3, 9)]]
    found = grounder(images, captions, spans)
    assert [row is None for row in found] == [False, False, False, True, True]
    assert_close(found[0], grounder(images[:1], captions[:1], spans[:1])[0])
    boxes = np.array([d.box for row in found for d in row or []])
    assert (boxes >= 0).all()
    assert (boxes <= 1).all()


def test_phrases_past_one_prompt_are_all_asked_for(grounder: GlipGrounder) -> None:
    caption = "red dog " * 40
    spans = [(8 * i, 8 * i + 7) for i in range(40)]
    found = grounder([picture(96, 96)], [caption], [spans])[0]
    assert found is not None
    assert {d.phrase for d in found} <= set(range(40))
    assert len({d.phrase // 15 for d in found}) > 1  # boxes from several prompts


def test_an_empty_batch_is_no_trouble(grounder: GlipGrounder) -> None:
    assert grounder([], [], []) == []


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ((480, 640), (800, 1066)),
        ((640, 480), (1066, 800)),
        ((500, 1000), (666, 1332)),  # the long side's limit decides
        ((800, 1333), (800, 1333)),
        ((1, 1), (800, 800)),
        ((1, 10_000), (1, 1333)),
        ((10_000, 3), (1333, 1)),
    ],
)
def test_network_sizes_follow_the_short_side_up_to_the_long_sides_limit(
    size: tuple[int, int], wanted: tuple[int, int]
) -> None:
    assert network_size(*size, CONFIGS["glip_t"].detect) == wanted


def test_images_become_bgr_normalised_and_zero_padded() -> None:
    image = np.zeros((20, 33, 3), np.uint8)
    image[..., 0] = 200  # red
    batch = batch_images([image])
    assert tuple(batch.shape) == (1, 3, *padded_size((20, 33))) == (1, 3, 32, 64)
    red = (200 - MEAN_BGR[2]) / STD_BGR[2]
    assert batch[0, 2, 0, 0].item() == pytest.approx(red)
    assert batch[0, 0, 0, 0].item() == pytest.approx(-MEAN_BGR[0] / STD_BGR[0])
    assert not batch[0, :, 20:].any()
    assert not batch[0, :, :, 33:].any()


def test_resizing_keeps_an_image_of_the_right_size() -> None:
    image = picture(10, 12)
    assert resize(image, (10, 12)) is image
    assert resize(image, (20, 24)).shape == (20, 24, 3)
