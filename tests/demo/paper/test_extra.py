"""The extra experiments: boxes that are moved until they have a given IoU, and the entries of the page."""

from pathlib import Path
from random import Random

import pytest

from demo.paper.extra import IOUS, ORDER, PHASES, SEEDS, move, read_entries
from demo.paper.tables import ACCURACY
from hypergrit_common.json_file import write_object


def iou(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """The IoU of two boxes (x_min, y_min, x_max, y_max)."""
    sides = [max(0.0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1)]
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    inside = sides[0] * sides[1]
    return inside / (sum(areas) - inside)


@pytest.mark.parametrize("wanted", IOUS[1:])
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


def write_values(folder: Path, values: dict[str, dict[str, list[dict[str, float]]]]) -> list[dict[str, object]]:
    (folder / "results").mkdir()
    write_object(values, folder / "results" / "extra.json")
    return read_entries(folder)


def test_sentences_have_paired_differences_with_intervals_over_seeds(tmp_path: Path) -> None:
    base = [{ACCURACY: a, ORDER: 0.9, "pairs": 900.0} for a in (0.10, 0.20, 0.30)]
    loose = [{ACCURACY: a, ORDER: 0.8, "pairs": 1200.0} for a in (0.09, 0.18, 0.27)]
    (found,) = write_values(tmp_path, {"boxes": {"iou1.0": base, "iou0.3": loose}})
    assert found["text"] == [
        "Trainings of HyCoCLIP differ in the IoU of a true box and the same box after a random shift, not in the number of "
        "steps; the pairs that pass are 900 (1.0), 1,200 (0.3).",
        "The accuracy is 20.0 ± 24.8 % at 1.0, and differs by -2.0 ± 2.5 (0.3) points.",  # t of 2 degrees: 4.303
        "Boxes are nearer the root than their images in 90.0 ± 0.0 % of the pairs; this differs by -10.0 ± 0.0 (0.3).",
    ]
    assert Path(str(found["figure"])).stat().st_size > 5000


def test_the_map_of_rates_names_its_extremes_and_what_was_lost(tmp_path: Path) -> None:
    cases = {f"{rate:g} {curvature} {radius}": 0.01 * n for n, (rate, curvature, radius) in enumerate(PHASES, 1)}
    values = {
        case: [{ACCURACY: found, "collapsed": float(n == 0)} for n in range(SEEDS)] for case, found in cases.items()
    }
    (found,) = write_values(tmp_path, {"phases": values})
    expected = "27.0 ± 0.0 (rate 0.008, curvature 10.0, K 0.3), 1.0 ± 0.0 (rate 0.0005, curvature 0.1, K 0.03) %"
    assert expected in str(found["text"])
    assert "In 27 combinations" in str(found["text"])


def test_without_results_the_page_has_no_entries(tmp_path: Path) -> None:
    assert read_entries(tmp_path) == []
