"""The sketches keep their stated errors, and merging does not depend on the order where it is exact."""

import itertools
import random
from collections import Counter

import numpy as np
import pytest

from pipeline.summary.histogram import ACCURACY, Distinct, Frequent, Histogram, make_histograms
from pipeline.summary.totals import MAX_DROPPED, MAX_KEPT, Chosen


def zipf(n: int, seed: int) -> list[str]:
    ranks = np.random.default_rng(seed).zipf(1.3, n) % 20_000
    return [f"text {rank}" for rank in ranks]


def sketch_of(texts: list[str], capacity: int) -> Frequent:
    sketch = Frequent(capacity)
    sketch.update(texts)
    sketch.shrink()
    return sketch


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("kind", ["zipf", "flat"])
def test_counts_of_merged_parts_are_within_the_error_of_misra_and_gries(shape: str, kind: str) -> None:
    parts = [zipf(4000, seed) for seed in range(16)]
    if kind == "flat":
        parts = [[f"text {(i * 7 + seed) % 5000}" for i in range(4000)] for seed in range(16)]
    true, capacity = Counter(itertools.chain(*parts)), 200
    sketches = [sketch_of(part, capacity) for part in parts]
    if shape == "tree":
        while len(sketches) > 1:
            for left, right in zip(sketches[::2], sketches[1::2], strict=True):
                left.merge(right)
                left.shrink()
            sketches = sketches[::2]
    whole = sketches[0]
    for other in sketches[1:]:
        whole.merge(other)
        whole.shrink()
    assert len(whole.counts) <= capacity
    assert 0 < whole.error <= (true.total() - whole.counts.total()) / (capacity + 1)
    assert all(whole.counts[text] <= n <= whole.counts[text] + whole.error for text, n in true.items())
    upper = whole.upper_bounds()
    assert all(n >= true[text] > whole.error for text, n in upper.items())  # none that a missing text may exceed
    if kind == "zipf":
        assert [text for text, _ in upper.most_common(5)] == [text for text, _ in true.most_common(5)]
    else:
        assert not upper


def test_few_texts_are_counted_exactly() -> None:
    one, other = sketch_of(["a", "b", "a"], 3), sketch_of(["b", "c"], 3)
    one.merge(other)
    one.shrink()
    assert (one.counts, one.error) == (Counter(a=2, b=2, c=1), 0)
    assert Frequent.from_json(one.to_json()).upper_bounds() == {"a": 2, "b": 2, "c": 1}


def hashes(n: int, seed: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(seed).integers(0, 2**64, n, dtype=np.uint64)


def test_distinct_hashes_are_counted_exactly_up_to_the_size_and_within_the_error_above() -> None:
    size, errors = 1024, []
    for seed in range(20):
        sketch, found = Distinct(size), hashes(40_000, seed)
        sketch.add(found[:1000])
        sketch.add(found[500:1000])
        assert (sketch.n, sketch.count(), sketch.standard_error()) == (1500, 1000, 0)
        for _ in range(2):  # else the estimate is cut off at the number of all hashes
            sketch.add(found)
        assert not sketch.is_exact
        errors.append(sketch.count() / 40_000 - 1)
        assert sketch.standard_error() == pytest.approx(1 / 32, rel=0.01)
    assert np.std(errors) < 1.6 / 32  # 20 draws
    assert abs(np.mean(errors)) < 3 / 32 / 20**0.5


def test_distinct_hashes_do_not_depend_on_the_order_of_merging() -> None:
    parts = []
    for i in range(6):
        part = Distinct(500)
        part.add(hashes(2000, 0)[i * 300 : i * 300 + 400])
        parts.append(part)
    found = []
    for order in (parts, parts[::-1]):
        whole = Distinct(500)
        for part in order:
            whole.merge(part)
        found.append(whole.to_json())
    assert found[0] == found[1]
    assert found[0]["n"] == 2400


def test_percentiles_are_within_one_percent_and_merging_is_exact() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.lognormal(0, 2, 5000), -rng.lognormal(-3, 1, 3000), np.zeros(50)])
    rng.shuffle(values)
    edges = np.linspace(0, 1, 11)
    whole, merged = Histogram(edges, "x"), Histogram(edges, "x")
    whole.add("x", values)
    for part in np.array_split(values, 7)[::-1]:
        one = Histogram(edges, "x")
        one.add("x", part)
        merged.merge(one)
    assert merged.to_json() == whole.to_json()
    for percent in (1, 5, 25, 37, 50, 75, 95, 100):
        exact = np.quantile(values, percent / 100, method="inverted_cdf")
        assert merged.series["x"].percentile(percent) == pytest.approx(exact, rel=ACCURACY * 1.0001, abs=1e-6)
    assert merged.to_statistics()["mean"]["x"] == pytest.approx(values.mean(), abs=1e-4)


def test_percentiles_of_small_whole_numbers_are_exact() -> None:
    histogram = make_histograms()["boxes_per_image"]
    histogram.add("images", np.array([1.0] * 30 + [2.0] * 40 + [3.0] * 29 + [49.0] * 1))
    found = histogram.to_statistics()
    assert found["percentiles"]["images"] == {"5": 1, "25": 1, "50": 2, "75": 3, "95": 3}
    assert histogram.series["images"].percentile(100) == pytest.approx(49, rel=ACCURACY)


def test_a_histogram_with_other_bins_is_refused() -> None:
    histogram = Histogram(np.linspace(0, 1, 3), "x")
    with pytest.raises(ValueError, match="5 bins"):
        histogram.load(Histogram(np.linspace(0, 1, 6), "x").to_json())
    with pytest.raises(ValueError, match="series y"):
        histogram.load(Histogram(np.linspace(0, 1, 3), "y").to_json())


def test_chosen_shards_do_not_depend_on_the_order() -> None:
    found = []
    for seed in range(3):
        indices = list(range(100))
        random.Random(seed).shuffle(indices)
        whole = Chosen()
        for index in indices:
            part = Chosen()
            part.add_kept([index])
            part.add_dropped(("download", "timeout"), [index])
            whole.merge(part)
        found.append(whole.to_json())
    assert found[0] == found[1] == found[2]
    assert len(found[0]["kept"]) == MAX_KEPT
    assert found[0]["dropped"] == {"download": {"timeout": list(range(MAX_DROPPED))}}
