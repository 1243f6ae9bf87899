from typing import Any

import pytest

from pipeline.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MAX_BARS,
    RIGHT,
    TOP,
    WIDTH,
    histogram_chart,
    nice_ticks,
    round_step,
    short,
)


def data(edges: list[float], **counts: list[int]) -> dict[str, Any]:
    return {
        "edges": edges,
        "counts": counts,
        "n": {s: sum(c) for s, c in counts.items()},
        "mean": dict.fromkeys(counts, 0.5),
    }


def test_empty_histogram_has_no_chart() -> None:
    assert histogram_chart("box_area_ratio", data([0.0, 0.5, 1.0], kept=[0, 0], removed=[0, 0])) is None


def test_heights_of_stacked_bars_are_proportional_to_their_counts() -> None:
    chart = histogram_chart("box_area_ratio", data([0.0, 0.5, 1.0], kept=[4, 2], removed=[2, 0]))
    assert chart is not None
    kept, removed, other = chart.bars
    assert kept.height == pytest.approx(2 * removed.height, abs=0.02)
    assert other.height == pytest.approx(kept.height / 2, abs=0.02)
    assert removed.y + removed.height == pytest.approx(kept.y, abs=0.02)


def test_every_bar_is_inside_the_axes() -> None:
    counts = [[(7 * i) % 13 for i in range(200)], [i % 5 for i in range(200)]]
    for name in ("caption_length", "image_side"):
        edges = [2.0 ** (3 + i / 20) for i in range(201)]
        chart = histogram_chart(name, data(edges, a=counts[0], b=counts[1]))
        assert chart is not None
        assert len(chart.bars) <= 2 * MAX_BARS
        for bar in chart.bars:
            assert bar.width > 0
            assert LEFT <= bar.x <= bar.x + bar.width <= WIDTH - RIGHT + 0.1
            assert TOP - 0.1 <= bar.y <= bar.y + bar.height <= HEIGHT - BOTTOM + 0.1


def test_merged_bins_keep_all_counts() -> None:
    chart = histogram_chart("caption_length", data([5.0 * i for i in range(201)], captions=[1] * 200))
    assert chart is not None
    assert sum(int(bar.title.rsplit(" ", 1)[1]) for bar in chart.bars) == 200


def test_threshold_is_marked_only_if_it_is_on_the_axis() -> None:
    counted = data([0.0, 0.5, 1.0], kept=[4, 2], removed=[2, 0])
    chart = histogram_chart("box_area_ratio", counted, threshold=0.5)
    assert chart is not None
    assert chart.threshold_x == pytest.approx((LEFT + WIDTH - RIGHT) / 2)
    outside = histogram_chart("box_area_ratio", counted, threshold=2.0)
    assert outside is not None
    assert outside.threshold_x is None


@pytest.mark.parametrize("highest", [1, 3, 7, 10, 99, 101, 12345, 10**7])
def test_y_ticks_are_a_few_integers_that_reach_the_highest_bar(highest: int) -> None:
    ticks = nice_ticks(highest)
    assert ticks[0] == 0
    assert ticks[-1] >= highest
    assert 2 <= len(ticks) <= 6
    assert all(isinstance(tick, int) for tick in ticks)


def test_steps_are_round_numbers_and_large_counts_are_abbreviated() -> None:
    assert [round_step(x) for x in (0.011, 0.9, 3, 51)] == [0.02, 1, 5, 100]
    assert [short(n) for n in (7, 1500, 2_000_000)] == ["7", "1.5k", "2M"]
