import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from hypergrit_common.errors import UserError
from hypergrit_common.images import Image
from pipeline.images import StoredImages, encode_jpeg
from pipeline.stages.ground.load import score_threshold
from pipeline.stages.score.filters import ScoreConfig, clip_score, clip_score_threshold, measure_box, resolve_thresholds
from pipeline.stages.score.scorers import LinearHead, Scorer
from pipeline.stages.score.stage import ModelScores, Place, Score
from schemas.scores import SCORES
from tests.pipeline.rows import table_after

CAPTION = "red and blue"
CHUNKS = [{"start": 0, "end": 3, "root": 0, "removed": None}, {"start": 8, "end": 12, "root": 2, "removed": None}]
THRESHOLDS: dict[str, float] = {"min_score": 0.5, "min_clip_score": 0.65}


def colour_scorer(seen: list[str] | None = None, batch_size: int = 2) -> Scorer:
    """A scorer without a network: embeds an image as its mean colour, a text as the colours that it names (red, blue).

    Embedded texts are appended to `seen`.
    """

    def images(batch: Sequence[Image]) -> torch.Tensor:
        return torch.tensor(np.stack([image.reshape(-1, 3).mean(axis=0) for image in batch])) + 1

    def texts(batch: Sequence[str]) -> torch.Tensor:
        if seen is not None:
            seen.extend(batch)
        return torch.tensor([[float("red" in text), 0.0, float("blue" in text)] for text in batch])

    return Scorer(encode_images=images, encode_texts=texts, batch_size=batch_size)


def row(*boxes: tuple[int, float, float, float], **more: object) -> dict[str, object]:
    """Left half red, right half blue, 200 x 100; boxes are (phrase, x_min, x_max, score)."""
    image = np.zeros((100, 200, 3), np.uint8)
    image[:, :100, 0] = image[:, 100:, 2] = 255
    full = [
        {"phrase": phrase, "x_min": a, "y_min": 0.0, "x_max": b, "y_max": 1.0, "score": score}
        for phrase, a, b, score in boxes
    ]
    base = {"caption": CAPTION, "noun_chunks": CHUNKS, "boxes": full, "width": 200, "height": 100}
    return {**base, "image": encode_jpeg(image), **more}


def score_stage(scorer: Scorer | None = None, **settings: object) -> Score:
    config = ScoreConfig(**(THRESHOLDS | settings))
    return Score(config, resolve_thresholds(config, grounder="miniature"), scorer=scorer or colour_scorer())


def removals(*boxes: tuple[int, float, float, float], **settings: object) -> list[str | None]:
    """Reason why each box of a row is removed; None if it is kept."""
    (out,) = score_stage(**settings)(table_after("ground", [row(*boxes)])).to_pylist()
    return [score["removed"] for score in out["box_scores"]]


def test_box_with_the_colour_of_its_phrase_is_kept_with_its_cosine() -> None:
    (out,) = score_stage()(table_after("ground", [row((0, 0.0, 0.4, 0.9))])).to_pylist()
    (score,) = out["box_scores"]
    assert score["removed"] is None
    assert score["clip_cosine"] > 0.95
    assert score["area_px"] == pytest.approx(0.4 * 200 * 100)
    assert out["clip_similarity"] == pytest.approx(1.0, abs=0.02)


def test_box_below_32_px_squared_is_removed_as_too_small() -> None:
    assert removals((0, 0.0, 0.050, 0.9), (0, 0.0, 0.052, 0.9)) == ["box_too_small", None]


def test_side_rule_compares_width_and_height() -> None:
    assert removals((0, 0.0, 0.15, 0.9), (0, 0.0, 0.17, 0.9), size_rule="side") == ["box_too_small", None]


@pytest.mark.parametrize(
    ("x_max", "expected"),
    [(0.32, "box_too_small"), (0.329, "box_too_small"), (0.331, None)],
)
def test_released_rule_requires_more_than_the_area_in_whole_pixels(x_max: float, expected: str | None) -> None:
    """HyCoCLIP's conversion of GRIT: 32 x 32 px are too small, and a fraction of a pixel does not count."""
    box = {"x_min": 0.0, "y_min": 0.0, "x_max": x_max, "y_max": 0.329, "score": 0.9}
    thresholds = ScoreConfig(min_side_px=32, size_rule="released", min_score=0, min_clip_score=0)
    assert measure_box(box, 100, 100, thresholds)["removed"] == expected


def test_box_with_a_low_grounding_score_is_removed_before_clip_sees_it() -> None:
    (out,) = score_stage()(table_after("ground", [row((0, 0.0, 0.4, 0.9), (1, 0.5, 1.0, 0.4))])).to_pylist()
    assert [score["removed"] for score in out["box_scores"]] == [None, "low_score"]
    assert out["box_scores"][1]["clip_cosine"] is None


def test_box_with_a_score_at_the_threshold_is_kept_although_scores_are_stored_as_float32() -> None:
    assert removals((0, 0.0, 0.4, 0.65), min_score=0.65) == [None]


def test_box_with_another_colour_than_its_phrase_is_removed_for_a_low_clip_score() -> None:
    assert removals((0, 0.0, 0.4, 0.9), (0, 0.6, 1.0, 0.9)) == [None, "low_clip_score"]


def test_row_without_a_kept_box_is_dropped_after_the_last_filter_that_removed_a_box() -> None:
    rows = [
        row((0, 0.0, 0.01, 0.9)),
        row((0, 0.0, 0.01, 0.9), (0, 0.0, 0.4, 0.2)),
        row((0, 0.0, 0.4, 0.2), (0, 0.6, 1.0, 0.9)),
        row((0, 0.0, 0.4, 0.9), (0, 0.6, 1.0, 0.9)),
    ]
    table = score_stage()(table_after("ground", rows))
    assert table["reason"].to_pylist() == ["box_too_small", "low_score", "low_clip_score", None]
    assert table["detail"].to_pylist()[:2] == ["largest area 200 px²", "best 0.20, threshold 0.50"]
    assert [value is None for value in table["clip_similarity"].to_pylist()] == [True, True, True, False]
    assert [value is None for value in table["image"].to_pylist()] == [True, True, True, False]


@pytest.mark.parametrize(
    ("boxes", "least", "reason"),
    [
        ([(0, 0.0, 0.5, 0.9), (1, 0.5, 1.0, 0.9)], 1.0, None),
        ([(0, 0.0, 0.5, 0.9), (0, 0.1, 0.5, 0.9)], 0.5, None),  # two boxes of one phrase are one phrase of two
        ([(0, 0.0, 0.5, 0.9), (0, 0.1, 0.5, 0.9)], 0.51, "low_grounded_share"),
        ([(0, 0.0, 0.5, 0.9), (1, 0.5, 1.0, 0.3)], 0.51, "low_grounded_share"),  # a removed box is none
        ([(0, 0.0, 0.5, 0.3)], 0.5, "low_score"),
        ([(0, 0.0, 0.5, 0.9)], 0.0, None),
        ([(0, 0.0, 0.5, 0.9)], None, None),
    ],
)
def test_row_of_which_too_few_phrases_have_a_kept_box_is_dropped(
    boxes: list[tuple[int, float, float, float]], least: float | None, reason: str | None
) -> None:
    (out,) = score_stage(min_grounded_share=least)(table_after("ground", [row(*boxes)])).to_pylist()
    assert out["reason"] == reason
    removed = [*CHUNKS, {"start": 4, "end": 7, "root": 1, "removed": "absent"}]
    (same,) = score_stage(min_grounded_share=least)(
        table_after("ground", [row(*boxes, noun_chunks=removed)])
    ).to_pylist()
    assert same["reason"] == reason


def test_pairs_have_a_share_only_if_their_phrases_were_looked_for() -> None:
    given = {"given_noun_chunks": [], "given_chunks": [0, 1]}
    rows = [row(), row(noun_chunks=[]), row((0, 0.0, 0.5, 0.9), **given)]
    found = {}
    for has_grounder in (True, False):
        config = ScoreConfig(**(THRESHOLDS | {"min_grounded_share": 0.6}))
        thresholds = resolve_thresholds(config, grounder="miniature")
        stage = Score(config, thresholds, colour_scorer(), keeps_pairs=True, has_grounder=has_grounder)
        found[has_grounder] = stage(table_after("ground", rows))["reason"].to_pylist()
    assert found == {
        True: ["low_grounded_share", None, "low_grounded_share"],
        False: [None, None, "low_grounded_share"],
    }


def test_each_phrase_is_embedded_once() -> None:
    seen: list[str] = []
    rows = [row((0, 0.0, 0.4, 0.9), (0, 0.1, 0.4, 0.9)), row((0, 0.0, 0.4, 0.9), (1, 0.6, 1.0, 0.9))]
    score_stage(colour_scorer(seen, batch_size=1))(table_after("ground", rows))
    assert sorted(seen) == ["blue", "red", CAPTION]


def test_the_head_scores_the_same_embeddings_whichever_score_is_asked_first() -> None:
    rows, images, found = {0: row((0, 0.0, 0.4, 0.9))}, pa.chunked_array([[row()["image"]]]), []
    entries = [score for score in SCORES if score.column in ("clip_cosine", "clip_similarity", "head_score")]
    for order in (entries, entries[::-1]):
        head = LinearHead("head", torch.tensor([1.0, 2.0, 4.0]), torch.tensor(0.5))
        scores = ModelScores(images, colour_scorer(), StoredImages(max_bytes=0), head)
        found.append({s.column: scores(s, rows, [Place(0, 0 if s.of == "crop" else None)]) for s in order})
    assert found[0] == found[1]
    assert None not in found[0]["head_score"]


def test_with_keep_all_every_box_has_a_cosine_and_dropped_rows_keep_their_image() -> None:
    rows = [row((0, 0.0, 0.01, 0.9), (0, 0.0, 0.4, 0.2)), row((0, 0.0, 0.4, 0.9), (0, 0.6, 1.0, 0.9))]
    table = score_stage(keep_all=True)(table_after("ground", rows))
    plain = score_stage()(table_after("ground", rows))
    for name in ("status", "stage", "reason", "detail"):
        assert table[name].to_pylist() == plain[name].to_pylist()
    assert [[score["removed"] for score in scores] for scores in table["box_scores"].to_pylist()] == [
        ["box_too_small", "low_score"],
        [None, "low_clip_score"],
    ]
    assert all(score["clip_cosine"] is not None for scores in table["box_scores"].to_pylist() for score in scores)
    assert None not in table["clip_similarity"].to_pylist()
    assert table["image"].to_pylist() == [row["image"] for row in rows]


def test_a_box_without_pixels_has_no_cosine() -> None:
    (out,) = score_stage(keep_all=True)(table_after("ground", [row((0, 0.501, 0.504, 0.9))])).to_pylist()
    assert (out["reason"], out["box_scores"][0]["clip_cosine"]) == ("box_too_small", None)


def test_dropped_rows_are_not_changed() -> None:
    dropped = row(status="dropped", stage="ground", reason="no_box", image=None, boxes=[])
    (out,) = score_stage()(table_after("ground", [dropped])).to_pylist()
    assert (out["stage"], out["reason"], out["box_scores"]) == ("ground", "no_box", None)


def test_clip_score_is_two_and_a_half_times_the_positive_cosine() -> None:
    assert clip_score(0.26) == pytest.approx(0.65)
    assert clip_score(-0.3) == 0.0


def test_thresholds_that_are_not_set_are_those_of_the_models(tmp_path: Path) -> None:
    for name, thresholds in (("grounder", {"score": 0.42}), ("scorer", {"clip_score": 0.8})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"thresholds": thresholds}))
    grounder, scorer = str(tmp_path / "grounder"), str(tmp_path / "scorer")
    assert resolve_thresholds(ScoreConfig(scorer=scorer), grounder) == ScoreConfig(
        scorer=scorer, min_side_px=32, size_rule="area", min_score=0.42, min_clip_score=0.8
    )
    set_here = ScoreConfig(scorer=scorer, min_score=0.1, min_clip_score=0.2, min_side_px=8, size_rule="side")
    assert resolve_thresholds(set_here, grounder) == ScoreConfig(
        scorer=scorer, min_side_px=8, size_rule="side", min_score=0.1, min_clip_score=0.2
    )


@pytest.mark.parametrize(
    ("read", "key", "most"), [(score_threshold, "score", 1), (clip_score_threshold, "clip_score", 2.5)]
)
def test_a_threshold_of_a_model_is_a_number_in_range_or_the_default(
    read: Callable[[str], float], key: str, most: float, tmp_path: Path
) -> None:
    assert read(str(tmp_path)) == 0.65
    for value in (0, 0.8, most, most + 0.1, "high"):
        config = {"thresholds": {key: value}, "detect": {"score_threshold": 0.4}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        is_valid = isinstance(value, int | float) and value <= most
        with contextlib.nullcontext() if is_valid else pytest.raises(UserError, match="score threshold"):
            assert read(str(tmp_path)) == value


def test_stage_applies_the_thresholds_it_is_given_instead_of_those_of_its_config() -> None:
    thresholds = ScoreConfig(min_side_px=32, size_rule="area", min_score=0.95, min_clip_score=0.65)
    stage = Score(ScoreConfig(min_score=0.1), thresholds, scorer=colour_scorer())
    table = stage(table_after("ground", [row((0, 0.0, 0.4, 0.9))]))
    assert table.select(["reason", "detail"]).to_pylist() == [
        {"reason": "low_score", "detail": "best 0.90, threshold 0.95"}
    ]


def test_box_whose_phrase_is_probably_not_in_the_image_is_removed_as_low_presence() -> None:
    boxes = ((0, 0.0, 0.5, 0.9), (1, 0.5, 1.0, 0.9))
    stored = [
        row(*boxes, presence=[0.2, 0.9]),
        row(*boxes, presence=[0.2, 0.1]),
        row(*boxes),
        row(*boxes, presence=[None, 0.3]),
    ]
    table = score_stage(min_presence=0.3)(table_after("ground", stored))
    removed = [[score["removed"] for score in scores] for scores in table["box_scores"].to_pylist()]
    assert removed == [["low_presence", None], ["low_presence"] * 2, [None, None], [None, None]]
    assert table["reason"].to_pylist() == [None, "low_presence", None, None]
    assert score_stage()(table_after("ground", stored))["reason"].to_pylist() == [None] * 4
