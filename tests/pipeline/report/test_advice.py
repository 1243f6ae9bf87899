import json
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np
import pytest

from pipeline.images import encode_jpeg
from pipeline.report.advice import CHOSEN, MOST_HOSTS, Advice, find_advice
from schemas.stats import Statistics
from schemas.status import REASONS


@pytest.fixture
def stats(output: Path) -> Any:
    """Statistics of 1,000 rows of which 900 are kept; tests change them."""
    found = json.loads((output / "stats.json").read_text())
    found["rows"] = {"read": 1000, "kept": 900, "dropped": {"download": {"http_error": 100}}, "unfinished": 0}
    found["failures"] = [{"host": "a.org", "rows": 60, "reasons": {"http_error": 60}, "of": 500}]
    found["histograms"] = {}
    return found


def texts(stats: Any, pictures: tuple[bytes, ...] = ()) -> list[str]:
    return [advice.text for advice in find_advice(cast(Statistics, stats), pictures)]


def test_an_ordinary_job_has_no_warnings(stats: Any) -> None:
    assert find_advice(stats) == []


def test_a_job_that_kept_nothing_names_the_most_frequent_reason(stats: Any) -> None:
    stats["rows"] |= {"kept": 0, "dropped": {"read": {"bad_row": 10}, "download": {"dns_error": 990}}}
    first = find_advice(stats)[0]
    assert first == Advice(
        "no row was kept", "the most frequent reason is download: dns_error (990 rows); see its examples", "rows"
    )


def test_one_reason_for_all_rows_names_the_key_that_changes_it(stats: Any) -> None:
    stats["rows"] |= {"kept": 0, "dropped": {"download": {"private_address": 1000}}}
    action = find_advice(stats)[0].action
    assert action.startswith("download: private_address is the reason of all: ")
    assert "download.allowed_private_hosts" in action


@pytest.mark.parametrize(
    ("stage", "reason", "n", "n_usual"),
    [("download", "dns_error", 400, 300), ("read", "bad_row", 30, 15), ("ground", "no_box", 400, 200)],
)
def test_a_reason_far_above_its_usual_share_is_named(stats: Any, stage: str, reason: str, n: int, n_usual: int) -> None:
    stats["rows"] |= {"kept": 1000 - n_usual, "dropped": {stage: {reason: n_usual}}}
    assert texts(stats) == []
    stats["rows"] |= {"kept": 1000 - n, "dropped": {stage: {reason: n}}}
    (text,) = texts(stats)
    usual = "in the drawings of the demo" if stage == "ground" else "usually"
    assert text.startswith(f"{stage}: {reason}: {n / 10:.0f}% of 1,000 rows, {usual} about ")


@pytest.mark.parametrize(("stage", "reason"), [(stage, reason) for stage in REASONS for reason in REASONS[stage]])
def test_every_reason_that_nobody_chose_is_named_if_it_drops_half_of_the_rows(
    stats: Any, stage: str, reason: str
) -> None:
    stats["rows"] |= {"kept": 500, "dropped": {stage: {reason: 500}}}
    is_named = any(text.startswith(f"{stage}: {reason}: 50%") for text in texts(stats))
    assert is_named == (reason not in CHOSEN and reason not in ("internal_error", "http_error"))
    stats["rows"] |= {"kept": 10, "dropped": {stage: {reason: 990}}}
    assert bool(texts(stats)) == (reason not in CHOSEN)


def test_shares_are_those_of_the_rows_that_reach_the_stage(stats: Any) -> None:
    reasons = {"http_error": 400, "timeout": 200}
    stats["rows"] |= {"kept": 250, "dropped": {"download": reasons, "ground": {"no_box": 150}}}
    assert texts(stats) == ["ground: no_box: 38% of 400 rows, in the drawings of the demo about 0%"]


def test_a_host_whose_rows_fail_is_named_only_if_those_of_other_hosts_do_not(stats: Any) -> None:
    stats["failures"] = [{"host": "b.org", "rows": 60, "reasons": {"timeout": 50, "http_error": 10}, "of": 62}]
    assert texts(stats) == ["host b.org: 60 of its 62 rows failed, most often as timeout"]
    stats["rows"] |= {"kept": 400, "dropped": {"download": {"http_error": 300, "timeout": 300}}}
    assert texts(stats) == []


def test_all_failing_hosts_are_named_up_to_a_number(stats: Any) -> None:
    large = {"host": "large.org", "rows": 90, "reasons": {"http_error": 90}, "of": 800}  # most of its rows are fine
    dead = [{"host": f"{i}.org", "rows": 25 - i, "reasons": {"dns_error": 25 - i}, "of": 25 - i} for i in range(5)]
    stats["rows"] |= {"kept": 795, "dropped": {"download": {"http_error": 90, "dns_error": 115}}}
    stats["failures"] = [large, *dead]
    assert [text.partition(":")[0] for text in texts(stats)] == [f"host {i}.org" for i in range(MOST_HOSTS)]


def histogram(kept: dict[int, int], removed: dict[int, int]) -> dict[str, Any]:
    """A histogram of grounding scores; the keys are bins of 0.02."""
    counts = {name: [bins.get(i, 0) for i in range(50)] for name, bins in (("kept", kept), ("removed", removed))}
    n = {name: sum(values) for name, values in counts.items()}
    edges = np.linspace(0, 1, 51).round(4).tolist()
    return {"edges": edges, "counts": counts, "n": n, "mean": dict.fromkeys(n, 0.5)}


def test_a_threshold_within_the_bulk_of_the_scores_is_named(stats: Any) -> None:
    stats["provenance"]["thresholds"]["min_score"] = 0.64  # the lower edge of bin 32
    stats["histograms"] = {"grounding_score": histogram({32: 10, 33: 20, 40: 170}, {10: 500})}
    assert texts(stats) == []
    stats["histograms"] = {"grounding_score": histogram({32: 90, 33: 60, 40: 50}, {31: 100})}
    assert texts(stats) == [
        "score.min_score=0.64 cuts through the bulk of the scores: 75% of the kept boxes are just above it"
    ]


@pytest.mark.parametrize(
    ("removed", "expected"),
    [
        ({"box_too_small": 2413}, ["score.min_side_px removes 2,413 of the 2,437 boxes"]),
        ({"low_score": 2413}, ["score.min_score removes 2,413 of the 2,437 boxes"]),
        (
            {"box_too_small": 1500, "low_score": 40, "low_clip_score": 890},
            ["score.min_clip_score removes 890 of the 897"],
        ),
        ({"box_too_small": 1500, "low_score": 800, "low_clip_score": 85}, []),
    ],
)
def test_the_threshold_that_removes_nearly_all_boxes_that_reach_it_is_named_and_no_other(
    stats: Any, removed: dict[str, int], expected: list[str]
) -> None:
    stats["boxes"] = {"found": 2437, "removed": removed, "kept": 2437 - sum(removed.values())}
    stats["histograms"] = {"grounding_score": histogram({40: 24}, {10: 2413})}
    assert [text.partition(" boxes")[0] + " boxes" * ("2,437" in text) for text in texts(stats)] == expected


def test_values_beyond_the_axis_are_named(stats: Any) -> None:
    counts = {"captions": [90] * 1 + [0] * 198 + [10]}
    stats["histograms"] = {
        "caption_length": {"edges": list(range(0, 1005, 5)), "counts": counts, "n": {"captions": 100}, "mean": {}}
    }
    assert texts(stats) == ["caption_length: 10% of the values are at or beyond the end of the axis, 995"]


def texture(seed: int) -> bytes:
    """An image whose colours change softly everywhere, as in a photograph."""
    noise = np.random.default_rng(seed).integers(0, 256, (40, 40, 3), np.uint8)
    return encode_jpeg(np.asarray(cv2.resize(noise, (160, 160), interpolation=cv2.INTER_CUBIC), np.uint8))


def test_miniature_models_on_images_unlike_drawings_are_named(stats: Any) -> None:
    stats["config"] = {"ground": {"grounder": "miniature"}, "score": {"scorer": "open_clip:ViT-B-32/openai"}}
    pictures = tuple(texture(seed) for seed in range(8))
    (text,) = texts(stats, pictures)
    assert text.startswith("grounder=miniature: the miniature models know only drawn scenes")
    assert texts(stats, pictures[:7]) == []  # too few to tell
    stats["config"]["ground"]["grounder"] = "models/glip_t"
    assert texts(stats, pictures) == []


def test_pictures_of_the_demo_are_like_drawings(stats: Any, output: Path) -> None:
    import base64
    import re

    stats["config"] = {"ground": {"grounder": "miniature"}, "score": {"scorer": "miniature"}}
    found = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', (output / "report.html").read_text())
    assert len(found) >= 8
    assert texts(stats, tuple(base64.b64decode(item) for item in found)) == []
