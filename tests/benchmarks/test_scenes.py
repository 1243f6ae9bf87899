"""The independent scenes and their measurement, counted by hand."""

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.ablation import kept
from benchmarks.scenes.measure import bootstrap_intervals, count, own_case, recall
from benchmarks.scenes.words import extension, general_words
from benchmarks.scenes.world import Case, independent_scene
from demo.world.captions import Phrase
from demo.world.scenes import TEST_SEEDS, Object, Scene

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "scenes"
GENERATOR = ("pictures", "words", "layout", "captions", "world")
SHARED = {"demo.world.vocabulary", "demo.world.sprites", "demo.world.captions", "demo.world.scenes"}


def test_generator_shares_drawings_and_types_only_with_that_of_the_training() -> None:
    for name in GENERATOR:
        for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("demo"):
                assert node.module in SHARED
                names = {alias.name for alias in node.names}
                if node.module in ("demo.world.captions", "demo.world.scenes"):
                    assert names <= {"Kind", "Phrase", "Object", "Scene"}


@pytest.mark.parametrize("make", [independent_scene, own_case])
def test_scenes_are_sound_and_equal_in_every_style(make: Any) -> None:
    for seed in TEST_SEEDS[40_000:40_030]:
        case, other = make(seed, "fluent"), make(seed, "noto")
        assert case.scene.caption == other.scene.caption
        assert len(case.tags) == len(case.scene.phrases)
        height, width = case.scene.image.shape[:2]
        for box in (item.box for item in case.scene.objects):
            assert 0 <= box[0] < box[2] <= width
            assert 0 <= box[1] < box[3] <= height
        mentioned = Counter(index for phrase in case.scene.phrases for index in phrase.objects)
        assert set(mentioned) <= set(range(len(case.scene.objects)))
        for phrase in case.scene.phrases:
            assert case.scene.caption[phrase.noun_start : phrase.end].strip()


def test_independent_caption_mentions_each_object_once() -> None:
    for seed in range(60):
        scene = independent_scene(seed, "fluent").scene
        assert sorted(i for phrase in scene.phrases for i in phrase.objects) == list(range(len(scene.objects)))


def test_general_word_describes_all_members_and_no_other_object() -> None:
    assert ("animal", "animals") in general_words({"dog", "duck"}, {"chair"})
    assert ("animal", "animals") not in general_words({"dog"}, {"duck"})
    assert ("device", "devices") not in general_words({"camera"}, {"guitar"})
    assert "piano" in extension(("instrument",))


DOG, CAT, BIRD = (0.0, 0.0, 40.0, 40.0), (60.0, 0.0, 100.0, 40.0), (0.0, 60.0, 40.0, 100.0)
CAPTION = "a dog, a cat and a bird"
CHUNKS = [{"start": 0, "end": 5, "removed": None}, {"start": 7, "end": 12, "removed": None}]


def case() -> Case:
    spans = ((0, 5, 2), (7, 12, 9), (17, 23, 19))
    phrases = tuple(
        Phrase(start=s, end=e, noun_start=n, noun_end=e, kind="object", objects=(i,))
        for i, (s, e, n) in enumerate(spans)
    )
    names = zip(("dog", "cat", "owl"), (DOG, CAT, BIRD), strict=True)
    objects = tuple(Object(concept=name, colour=None, box=box) for name, box in names)
    image = np.zeros((100, 100, 3), np.uint8)
    scene = Scene(seed=0, style="fluent", image=image, objects=objects, caption=CAPTION, phrases=phrases)
    return Case(scene=scene, tags=(frozenset({"plain"}), frozenset({"tinted"}), frozenset({"plain"})))


def row(*found: tuple[int, tuple[float, ...], str | None]) -> dict[str, Any]:
    sides = ("x_min", "y_min", "x_max", "y_max")
    boxes = [
        {"phrase": chunk, "score": 0.9 - 0.1 * i, **dict(zip(sides, (edge / 100 for edge in box), strict=True))}
        for i, (chunk, box, _) in enumerate(found)
    ]
    scores = [{"removed": removed, "clip_cosine": 0.3} for _, _, removed in found]
    return {"caption": CAPTION, "noun_chunks": CHUNKS, "boxes": boxes, "box_scores": scores}


def test_losses_and_false_boxes_are_counted_by_cause() -> None:
    counts = count(case(), row((0, DOG, None), (0, DOG, None), (1, DOG, None), (1, CAT, "low_score")))
    assert (counts["true"], counts["predicted"], counts["right"]) == (3, 3, 1)
    assert counts["false: second box of an object"] == counts["false: another object"] == 1
    assert counts["lost: score below the threshold"] == counts["lost: no phrase"] == 1
    assert (counts["true: plain"], counts["right: plain"], counts["right: tinted"]) == (2, 1, 0)


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        ((1, CAT, "low_clip_score"), "CLIPScore below the threshold"),
        ((1, CAT, "box_too_small"), "box too small"),
        ((1, DOG, "low_score"), "no box at IoU 0.5"),
    ],
)
def test_loss_has_the_cause_of_the_best_box(found: tuple[int, tuple[float, ...], str], cause: str) -> None:
    assert count(case(), row((0, DOG, None), found))[f"lost: {cause}"] == 1


def test_removed_phrase_is_a_cause() -> None:
    data = row((0, DOG, None))
    data["noun_chunks"] = [CHUNKS[0], {**CHUNKS[1], "removed": "relational"}]
    assert count(case(), data)["lost: phrase removed: relational"] == 1


def test_thresholds_are_applied_to_open_rows() -> None:
    data = kept(row((0, DOG, None), (1, CAT, None), (1, CAT, "box_too_small")), 0.85, 0.0)
    assert [score["removed"] for score in data["box_scores"]] == [None, "low_score", "box_too_small"]
    assert kept(row((0, DOG, None)), 0.0, 0.8)["box_scores"][0]["removed"] == "low_clip_score"


def test_interval_encloses_the_figure() -> None:
    counts = [Counter({"right": i % 3 != 0, "predicted": 1, "true": 2}) for i in range(60)]
    bounds = bootstrap_intervals(counts, 200)
    assert bounds["precision"][0] < 2 / 3 < bounds["precision"][1]
    assert bounds["recall"][0] < 1 / 3 < bounds["recall"][1]
    assert bounds["precision"] == (2 * bounds["recall"][0], 2 * bounds["recall"][1])  # from the same samples
    assert recall(Counter()) == 0.0
