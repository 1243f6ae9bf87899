"""Thresholds are evaluated only where the output, or its marks, speak about all boxes."""

from pipeline.explore.quality.boxes import Covered, covered
from pipeline.explore.quality.curve import judge, recommended, score_points
from pipeline.explore.quality.known import KnownObject
from tests.pipeline.explore.quality.test_curve import CAT, DOG, LEFT, RIGHT, box, row

JOB: dict[str, float] = {"min_score_with_clip": 0.52, "job_clip_score": 0.65}


def test_low_boxes_without_clip_score_do_not_raise_the_precision_of_low_thresholds() -> None:
    """The job at 0.2 and CLIPScore 0.15 keeps a wrong box, whose cosine an output made at 0.52 does not have."""
    boxes = row(box(0, DOG, LEFT, 0.9, 1.0), box(1, CAT, LEFT, 0.6, 0.1), box(2, DOG, RIGHT, 0.3, None, "low_score"))
    known, limits = [KnownObject(corners=LEFT, span=DOG)], Covered(min_score=0.0, min_clip_score=0.0, **JOB)
    points = [
        point
        for clip in limits.clip_scores()
        for point in score_points(judge(boxes, known, clip), 1, clip, limits.scores(clip))
    ]
    assert {point.min_score for point in points if point.min_clip_score} == {
        *(0.52, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
    }
    assert min(point.min_score for point in points) == 0.0
    best = recommended(points, 0.9)
    assert best is not None
    assert (best.min_score, best.min_clip_score) == (0.9, 1.0)  # the highest of those that keep the same box
    assert (0.52, 0.65) in {(point.min_score, point.min_clip_score) for point in points}


def test_output_covers_pairs_from_the_thresholds_of_its_job_and_marks_from_their_lowest_score(output: str) -> None:
    assert covered(output) == Covered(min_score=0, min_score_with_clip=0.65, min_clip_score=0, job_clip_score=0.65)
    for lowest, score in ((0.3, 0.65), (0.7921, 0.8)):
        limits = covered(output, lowest)
        assert limits.min_score == limits.min_score_with_clip == min(limits.scores(1.0)) == score
        assert min(limits.clip_scores()) == limits.min_clip_score == 0.65


def test_threshold_is_compared_like_in_the_job() -> None:
    """Scores are stored as float32: 0.65 becomes 0.6499999762, which the job keeps at 0.65."""
    found = row(box(0, DOG, LEFT, 0.6499999761581421))
    (point,) = score_points(judge(found, [KnownObject(corners=LEFT, span=DOG)]), 1, 0.0, [0.65])
    assert point.n_kept == 1
