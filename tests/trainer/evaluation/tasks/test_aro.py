"""VG-Attribution and VG-Relation on invented files in their format."""

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.tasks.fake_embedder import FakeEmbedder, constant, random_vector
from trainer.evaluation.task import ImageSource, TaskOptions
from trainer.evaluation.tasks.aro import evaluate_attribution, evaluate_relation

Write = Callable[..., Path]


def case(number: int, first: str = "red", second: str = "wet") -> dict[str, object]:
    return {
        "image_path": f"{number}.jpg",
        "bbox_x": 4,
        "bbox_y": 8,
        "bbox_w": 60,
        "bbox_h": 50,
        "attributes": [first, second],
        "relation_name": first,
        "true_caption": f"the {first} kite and the {second} sand",
        "false_caption": f"the {second} kite and the {first} sand",
        "obj1_name": "kite",
    }


def write_cases(write: Write, cases: list[dict[str, object]], name: str = "attribution") -> None:
    write(f"aro/visual_genome_{name}.json", cases)
    for entry in cases:
        write(f"aro/images/{entry['image_path']}")


def first_caption(item: object) -> Tensor:
    """Images resemble captions that begin with "the red"."""
    wanted = isinstance(item, ImageSource) or str(item).startswith("the red")
    return random_vector("red") * (1 if wanted else -1)


def test_macro_leaves_out_groups_below_25_cases(tmp_path: Path, write: Write) -> None:
    cases = [case(i) for i in range(30)] + [case(i, "wet", "red") for i in range(30, 55)] + [case(60, "red", "old")]
    write_cases(write, cases)
    result = evaluate_attribution(FakeEmbedder(text=first_caption, image=first_caption), tmp_path, TaskOptions())
    assert result.metrics == pytest.approx({"macro": 1 / 2, "micro": 31 / 56, "macro_all_groups": 2 / 3})
    assert result.details["n_groups_in_macro"] == 2
    mistakes = result.details["mistakes"]
    assert isinstance(mistakes, list)
    assert len(mistakes) == 12
    assert mistakes[0] == {
        "image": "aro/images/30.jpg",
        "box": [4, 8, 60, 50],
        "group": "wet_red",
        "true": "the wet kite and the red sand",
        "chosen": "the red kite and the wet sand",
    }
    assert result.details["most_frequent"] == [
        {"group": "red_wet", "accuracy": 1.0, "n": 30},
        {"group": "wet_red", "accuracy": 0.0, "n": 25},
        {"group": "red_old", "accuracy": 1.0, "n": 1},
    ]


def test_relations_are_grouped_by_name(tmp_path: Path, write: Write) -> None:
    write_cases(write, [case(i) for i in range(25)], "relation")
    result = evaluate_relation(FakeEmbedder(text=first_caption, image=first_caption), tmp_path, TaskOptions())
    assert result.metrics == {"macro": 1, "micro": 1, "macro_all_groups": 1}
    assert result.details["most_frequent"] == [{"group": "red", "accuracy": 1.0, "n": 25}]


def test_images_are_cropped_to_the_box(tmp_path: Path, write: Write) -> None:
    write_cases(write, [case(0)])
    embedder = FakeEmbedder()
    evaluate_attribution(embedder, tmp_path, TaskOptions())
    assert embedder.seen == [ImageSource(path=tmp_path / "aro/images/0.jpg", box=(4, 8, 60, 50))]
    assert embedder.calls == [{"fit": "crop", "legacy_norm": False, "trunk": False}]


def test_constant_model_is_always_wrong_and_a_random_one_right_half_of_the_time(tmp_path: Path, write: Write) -> None:
    write_cases(write, [case(i, f"red{i % 20}", f"wet{i % 9}") for i in range(900)])
    result = evaluate_attribution(FakeEmbedder(text=constant, image=constant), tmp_path, TaskOptions())
    assert result.metrics["micro"] == 0
    random = evaluate_attribution(FakeEmbedder(), tmp_path, TaskOptions())
    assert random.metrics["micro"] == pytest.approx(0.5, abs=0.07)
    assert "macro" not in random.metrics


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attributes": ["red"]}, "entry 1 has 1 attributes instead of 2"),
        ({"bbox_w": None}, r"entry 1: the box \[4, 8, None, 50\]"),
        ({"true_caption": None}, "entry 1: 'true_caption' is missing"),
    ],
)
def test_malformed_entries_are_user_errors(
    tmp_path: Path, write: Write, change: dict[str, object], message: str
) -> None:
    write_cases(write, [case(0), case(1) | change])
    with pytest.raises(UserError, match=rf"visual_genome_attribution\.json, {message}"):
        evaluate_attribution(FakeEmbedder(), tmp_path, TaskOptions())
