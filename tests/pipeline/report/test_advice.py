import json
from pathlib import Path
from typing import Any, cast

import pytest

from pipeline.report.advice import CHOSEN, find_advice
from schemas.stats import Statistics
from schemas.status import PASSING, REASONS


@pytest.fixture
def stats(output: Path) -> Any:
    """Statistics of 1,000 rows of which 900 are kept; tests change them."""
    found = json.loads((output / "stats.json").read_text())
    found["rows"] = {"read": 1000, "kept": 900, "dropped": {"download": {"http_error": 100}}, "unfinished": 0}
    return found


def advice(stats: Any) -> dict[str, str]:
    """The warnings: key -> its texts."""
    return {found.key: f"{found.text}; {found.action}" for found in find_advice(cast(Statistics, stats))}


def test_an_ordinary_job_has_no_warnings(stats: Any) -> None:
    assert advice(stats) == {}


def test_a_job_that_kept_nothing_names_the_most_frequent_reason_and_its_key(stats: Any) -> None:
    stats["rows"] |= {"kept": 0, "dropped": {"read": {"bad_row": 10}, "download": {"private_address": 990}}}
    found = advice(stats)
    assert found.keys() == {"nothing_kept"}
    assert "download.allowed_private_hosts" in found["nothing_kept"]


def test_a_job_that_kept_nothing_names_a_chosen_reason_that_dropped_most_and_the_next_one(stats: Any) -> None:
    stats["rows"] = {"read": 60, "kept": 0, "dropped": {"read": {"taken_down": 58}, "download": {"private_address": 2}}}
    first, second = advice(stats)["nothing_kept"].split("; ")[1:]
    assert first.startswith("read dropped 58 of them as taken_down: The list of read.takedown")
    assert second.startswith("download dropped 2 of them as private_address: Add the names")
    stats["rows"]["dropped"]["download"] = {"private_address": 59}
    assert "taken_down" not in advice(stats)["nothing_kept"]


def test_lower_thresholds_are_advised_for_rewrite_only_if_the_job_kept_all(stats: Any) -> None:
    stats["rows"] |= {"kept": 880, "dropped": {"score": {"low_score": 120}}}
    assert "need another job" in advice(stats)["cheaper_verb"]
    stats["config"].setdefault("score", {})["keep_all"] = True
    assert "source=OUT output=NEW` with lower thresholds" in advice(stats)["cheaper_verb"]


@pytest.mark.parametrize(("stage", "reason"), [(stage, reason) for stage in REASONS for reason in REASONS[stage]])
def test_a_reason_that_nobody_chose_is_named_if_it_takes_most_rows(stats: Any, stage: str, reason: str) -> None:
    stats["rows"] |= {"kept": 499, "dropped": {stage: {reason: 501}}}
    found = advice(stats)
    assert ("one_reason" in found) == (reason not in CHOSEN)
    assert reason in found.get("one_reason", reason)
    stats["rows"] |= {"kept": 500, "dropped": {stage: {reason: 500}}}
    assert "one_reason" not in advice(stats)


@pytest.mark.parametrize(
    ("removed", "threshold"),
    [
        ({"box_too_small": 2413}, "score.min_side_px"),
        ({"box_too_small": 1500, "low_score": 40, "low_clip_score": 890}, "score.min_clip_score"),
        ({"box_too_small": 1500, "low_score": 800, "low_clip_score": 85}, None),
    ],
)
def test_the_threshold_that_removes_nearly_all_boxes_that_reach_it_is_named_and_no_other(
    stats: Any, removed: dict[str, int], threshold: str | None
) -> None:
    stats["boxes"] = {"found": 2437, "removed": removed, "kept": 2437 - sum(removed.values())}
    found = advice(stats)
    assert found.get("threshold", "None").partition(" ")[0] == str(threshold)


@pytest.mark.parametrize(
    ("dropped", "verb"),
    [
        ({"download": {PASSING[0]: 60, PASSING[1]: 60}}, "retry=true"),
        ({"score": {"low_score": 60, "box_too_small": 60}}, "hypergrit rewrite"),
        ({"download": {"http_error": 300}, "ground": {"no_box": 300}}, None),
    ],
)
def test_rows_that_a_cheaper_verb_may_save_are_counted(stats: Any, dropped: Any, verb: str | None) -> None:
    stats["rows"] |= {"kept": 880, "dropped": dropped}
    found = advice(stats)
    assert ("cheaper_verb" in found) == (verb is not None)
    assert str(verb or "") in found.get("cheaper_verb", "")


def test_pictures_unlike_their_caption_are_counted_unless_a_threshold_drops_them(stats: Any) -> None:
    counts = stats["histograms"]["clip_similarity"]["counts"]["images"]
    counts[:] = [0] * len(counts)
    counts[59], counts[60] = 45, 855  # cosines from 0.18 and from 0.2, where a box needs 0.26
    found = advice(stats)
    assert found["unlike_caption"].startswith("45 of 900 pictures are unlike their caption: the cosine is below 0.2;")
    counts[59] -= 1
    assert "unlike_caption" not in advice(stats)
    counts[59] += 1
    stats["provenance"]["thresholds"]["min_image_similarity"] = 0.1
    assert "unlike_caption" not in advice(stats)


def test_given_boxes_without_a_phrase_are_counted_by_reason_and_name_the_unit(stats: Any) -> None:
    stats["boxes"] |= {
        "given": {"boxes": 900, "rows": 300, "split": 2},
        "removed": {"absent": 9, "row_dropped_early": 7},
    }
    assert advice(stats) == {}  # nobody's fault
    stats["boxes"]["removed"] |= {"empty_span": 2}
    assert advice(stats)["given_boxes"].startswith(
        "2 of the 900 given boxes have no phrase in their caption: empty_span 2;"
    )
    assert "code points" not in advice(stats)["given_boxes"]
    stats["boxes"]["removed"] |= {"other_units": 1_000}
    assert "GRIT's spans count characters (code points)" in advice(stats)["given_boxes"]


@pytest.mark.parametrize(("rows", "split", "is_said"), [(5, 4, True), (5, 3, False), (10_000, 99, False)])
def test_spans_that_cut_words_in_more_than_a_few_rows_name_the_unit(
    stats: Any, rows: int, split: int, is_said: bool
) -> None:
    stats["boxes"]["given"] = {"boxes": 2 * rows, "rows": rows, "split": split}
    assert ("code points" in advice(stats).get("given_spans", "")) == is_said
