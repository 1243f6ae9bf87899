"""The extra experiments: boxes that are moved until they have a given IoU."""

from random import Random

import pytest

from demo.paper.extra import IOUS, move


def iou(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """The IoU of two boxes (x_min, y_min, x_max, y_max)."""
    sides = [max(0.0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1)]
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    inside = sides[0] * sides[1]
    return inside / (sum(areas) - inside)


@pytest.mark.parametrize("wanted", IOUS)
def test_a_box_is_moved_until_it_has_the_iou(wanted: float) -> None:
    box = (0.4, 0.35, 0.6, 0.65)
    for seed in range(20):
        found = move(box, wanted, Random(seed))
        assert iou(box, found) == pytest.approx(wanted, abs=1e-6)
        assert found[2] - found[0] == pytest.approx(0.2)
    assert len({move(box, wanted, Random(seed)) for seed in range(20)}) == 20


def test_a_moved_box_stays_in_the_picture() -> None:
    for seed in range(20):
        found = move((0.0, 0.0, 0.9, 0.5), 0.3, Random(seed))
        assert min(found) >= 0
        assert max(found) <= 1
        assert found[0] < found[2]
        assert found[1] < found[3]
