"""Tests of the demo's metrics on rows whose results can be counted by hand."""

from typing import Any

from demo.truth_report import format_table, predictions, truth_metrics, unexpected_drops
from demo.world.truth import TruePhrase, Truth

DOG, CAT = (0.0, 0.0, 0.2, 0.2), (0.6, 0.2, 0.9, 0.6)
CAPTION = "a dog and a cat"


def truth(style: str) -> Truth:
    phrases = (
        TruePhrase(start=0, end=5, noun_start=2, noun_end=5, kind="object", boxes=(DOG,)),
        TruePhrase(start=10, end=15, noun_start=12, noun_end=15, kind="object", boxes=(CAT,)),
    )
    return Truth(seed=0, style=style, caption=CAPTION, phrases=phrases)


def row(id_: str, *boxes: tuple[int, tuple[float, ...], str | None], stage: str | None = None) -> dict[str, Any]:
    """Build a row of the arrow shards from boxes (phrase, xyxy, reason of removal)."""
    sides = ("x_min", "y_min", "x_max", "y_max")
    return {
        "id": id_,
        "stage": stage,
        "noun_chunks": [{"start": 0, "end": 5}, {"start": 10, "end": 15}],
        "boxes": [{"phrase": p, "score": 0.9, **dict(zip(sides, box, strict=True))} for p, box, _ in boxes],
        "box_scores": [{"removed": reason} for *_, reason in boxes],
    }


def test_each_filter_removes_only_its_boxes() -> None:
    example = row("a", (0, DOG, None), (1, CAT, "low_clip_score"), (1, DOG, "low_score"), (0, CAT, "box_too_small"))
    n_remaining = [
        len(predictions(example, level)) for level in ("grounder", "box_too_small", "low_score", "low_clip_score")
    ]
    assert n_remaining == [4, 3, 2, 1]


def test_precision_and_recall_are_reported_by_style_and_filter() -> None:
    rows = [
        row("seen", (0, DOG, None), (1, CAT, None)),
        row("unseen", (0, DOG, None), (1, DOG, "low_clip_score")),
    ]
    found = truth_metrics(rows, {"seen": truth("fluent"), "unseen": truth("noto")})
    assert (found["precision"], found["recall"], found["n_images"]) == (1.0, 0.75, 2)
    assert found["styles"]["trained"]["recall"] == 1.0
    assert found["styles"]["held_out"]["recall"] == 0.5
    assert found["after"]["grounder"]["held_out"]["precision"] == 0.5
    assert "0.750" in format_table(found)


def test_rows_dropped_by_model_stages_lower_recall_but_failed_downloads_do_not() -> None:
    lost, dead = row("lost", stage="ground"), row("dead", stage="download")
    dead["noun_chunks"] = dead["boxes"] = dead["box_scores"] = None
    found = truth_metrics(
        [row("a", (0, DOG, None)), lost, dead], {name: truth("fluent") for name in ("a", "lost", "dead")}
    )
    assert (found["n_images"], found["n_true"], found["recall"]) == (2, 4, 0.25)


def test_rows_without_ground_truth_are_ignored() -> None:
    assert truth_metrics([row("bad", (0, DOG, None))], {})["n_predicted"] == 0


def test_unexpected_drop_counts_are_listed() -> None:
    stats = {"rows": {"dropped": {"download": {"timeout": 2, "dns_error": 1}}}}
    expected = {"download": {"timeout": 3, "dns_error": 1}, "parse": {"no_phrase": 1}}
    assert unexpected_drops(stats, expected) == [
        "download/timeout: 2 rows, expected 3",
        "parse/no_phrase: 0 rows, expected 1",
    ]
