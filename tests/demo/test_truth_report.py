"""The demo's figures, on rows whose answers can be counted by hand."""

from typing import Any

from demo.truth_report import predictions, table_of, truth_figures, unexpected_drops
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
    """A row of the arrow shards whose boxes are (phrase, xyxy, why removed)."""
    sides = ("x_min", "y_min", "x_max", "y_max")
    return {
        "id": id_,
        "stage": stage,
        "noun_chunks": [{"start": 0, "end": 5}, {"start": 10, "end": 15}],
        "boxes": [{"phrase": p, "score": 0.9, **dict(zip(sides, box, strict=True))} for p, box, _ in boxes],
        "box_scores": [{"removed": why} for *_, why in boxes],
    }


def test_each_filter_takes_its_own_boxes_and_leaves_the_later_ones() -> None:
    one = row("a", (0, DOG, None), (1, CAT, "low_clip_score"), (1, DOG, "low_score"), (0, CAT, "box_too_small"))
    left = [len(predictions(one, level)) for level in ("grounder", "box_too_small", "low_score", "low_clip_score")]
    assert left == [4, 3, 2, 1]


def test_precision_and_recall_are_told_apart_by_style_and_filter() -> None:
    rows = [
        row("seen", (0, DOG, None), (1, CAT, None)),
        row("unseen", (0, DOG, None), (1, DOG, "low_clip_score")),
    ]
    found = truth_figures(rows, {"seen": truth("fluent"), "unseen": truth("noto")})
    assert (found["precision"], found["recall"], found["n_images"]) == (1.0, 0.75, 2)
    assert found["styles"]["trained"]["recall"] == 1.0
    assert found["styles"]["held_out"]["recall"] == 0.5
    assert found["after"]["grounder"]["held_out"]["precision"] == 0.5
    assert "0.750" in table_of(found)


def test_rows_the_models_gave_up_on_count_against_recall_but_dead_links_do_not() -> None:
    lost, dead = row("lost", stage="ground"), row("dead", stage="download")
    dead["noun_chunks"] = dead["boxes"] = dead["box_scores"] = None
    found = truth_figures(
        [row("a", (0, DOG, None)), lost, dead], {name: truth("fluent") for name in ("a", "lost", "dead")}
    )
    assert (found["n_images"], found["n_true"], found["recall"]) == (2, 4, 0.25)


def test_rows_without_a_truth_are_left_out() -> None:
    assert truth_figures([row("bad", (0, DOG, None))], {})["n_predicted"] == 0


def test_a_drop_that_was_not_planned_is_named() -> None:
    stats = {"rows": {"dropped": {"download": {"timeout": 2, "dns_error": 1}}}}
    expected = {"download": {"timeout": 3, "dns_error": 1}, "parse": {"no_phrase": 1}}
    assert unexpected_drops(stats, expected) == [
        "download/timeout: 2 rows, expected 3",
        "parse/no_phrase: 0 rows, expected 1",
    ]
