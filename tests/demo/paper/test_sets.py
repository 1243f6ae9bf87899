"""Evaluation sets of the miniature study: the tasks of the trainer read them."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from demo.paper.plan import SIZES
from demo.paper.scenes import is_unseen
from demo.paper.sets import tree_lines, write_sets
from demo.world.layout import draw_layout
from demo.world.scenes import DEFAULT, compose
from demo.world.vocabulary import CONCEPTS
from tests.trainer.evaluation.tasks.fake_embedder import FakeEmbedder
from trainer.evaluation.catalog import TASKS
from trainer.evaluation.metrics.hierarchy import read_tree
from trainer.evaluation.task import TaskOptions

N_PAIRS = 3
N = len(CONCEPTS)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    size = replace(SIZES["smoke"], pictures=1, captioned=8, pairs=N_PAIRS)
    (folder / "shards").mkdir()
    write_sets(folder / "sets", size, folder / "shards")
    return folder / "sets"


def test_tree_has_all_concepts_as_leaves_and_one_root(tmp_path: Path) -> None:
    (tmp_path / "tree.txt").write_text("\n".join(tree_lines()), encoding="utf-8")
    tree = read_tree(tmp_path / "tree.txt")
    assert sorted(tree.classes) == sorted(concept.name.replace(" ", "_") for concept in CONCEPTS)
    assert {tree.path(name)[-1] for name in tree.classes} == {"entity.n.01"}
    assert tree.path("dog")[1:3] == ["canine.n.02", "carnivore.n.01"]


@pytest.mark.parametrize(
    ("folder", "task", "n_used", "metrics"),
    [
        ("test", "classification", 2 * N, {"scenes/accuracy", "unseen_style/accuracy"}),
        ("test", "hierarchical", 2 * N, {"scenes/TIE", "unseen_style/R_H"}),
        pytest.param(
            "test",
            "retrieval",
            8,
            {"coco/text_to_image/recall@5", "coco/image_to_text/recall@10"},
            marks=pytest.mark.rest,
        ),
        ("test", "sugarcrepe", 7 * N_PAIRS, {"overall", "swap_att"}),
        pytest.param(
            "test",
            "vlchecklist",
            9 * N_PAIRS,
            {"object", "object/margin", "attribute/color", "relation/spatial"},
            marks=pytest.mark.rest,
        ),
        ("unseen", "sugarcrepe", 2 * N_PAIRS, {"replace_obj", "replace_att"}),
        pytest.param("seen", "sugarcrepe", 2 * N_PAIRS, {"replace_obj", "replace_att"}, marks=pytest.mark.rest),
        ("validation", "classification", N, {"scenes/accuracy"}),
        ("validation", "retrieval", 4, {"coco/text_to_image/recall@5"}),
    ],
)
def test_the_tasks_of_the_trainer_read_all_items(
    sets: Path, folder: str, task: str, n_used: int, metrics: set[str]
) -> None:
    result = TASKS[task].evaluate(FakeEmbedder(), sets / folder, TaskOptions())
    assert result.n_used == n_used
    assert metrics <= result.metrics.keys()
    assert metrics <= result.items.keys()
    assert not result.skipped
    assert not result.details.get("malformed")


def test_scenes_of_a_concept_show_it_alone_and_no_scene_is_in_two_splits(sets: Path) -> None:
    seeds: dict[str, set[int]] = {}
    for split in ("test", "validation"):
        paths = list((sets / split / "own" / "scenes").glob("*/*.jpg"))
        seeds[split] = {int(path.stem) for path in (sets / split).glob("coco/val2017/*.jpg")}
        for path in paths:
            slots = draw_layout(Random(f"layout {int(path.stem)}"), DEFAULT)
            assert [slot.concept.name.replace(" ", "_") for slot in slots] == [path.parent.name]
            seeds[split].add(int(path.stem))
    assert not seeds["test"] & seeds["validation"]


def test_files_of_unseen_pairs_name_pairs_that_training_never_shows(sets: Path) -> None:
    for kind in ("unseen", "seen"):
        found = json.loads((sets / kind / "sugarcrepe" / "replace_obj.json").read_text("utf-8"))
        for entry in found.values():
            pairs = {key: names(entry[key]) for key in ("caption", "negative_caption")}
            assert is_unseen("concepts", *pairs["caption"]) == (kind == "unseen")
            assert not is_unseen("concepts", *pairs["negative_caption"])
        colours = json.loads((sets / kind / "sugarcrepe" / "replace_att.json").read_text("utf-8"))
        for entry in colours.values():
            assert is_unseen("colour", *entry["caption"].split(" ", 2)[1:]) == (kind == "unseen")
            assert not is_unseen("colour", *entry["negative_caption"].split(" ", 2)[1:])


def names(caption: str) -> list[str]:
    """The sorted concepts of a caption such as "a dog and an owl"."""
    return sorted(phrase.split(" ", 1)[1] for phrase in caption.split(" and "))


def test_true_captions_of_added_objects_name_all_objects(sets: Path) -> None:
    found = json.loads((sets / "test" / "sugarcrepe" / "add_obj.json").read_text("utf-8"))
    for entry in found.values():
        n = len(compose(int(entry["filename"].split(".")[0]))[0])
        assert entry["caption"].replace(", ", " and ").count(" and ") == n - 1
        assert entry["negative_caption"].replace(", ", " and ").count(" and ") == n


def test_chains_go_from_a_general_word_to_the_caption(sets: Path) -> None:
    lines = (sets / "test" / "chains" / "scenes.csv").read_text("utf-8").splitlines()[1:]
    assert len(lines) == len(list((sets / "test" / "chains" / "scenes").glob("*.jpg"))) == 2
    for line in lines:
        _, noun, coloured, caption = line.strip('"').split(" => ")
        assert coloured.split(" ", 2)[2] == noun.split(" ", 1)[1]
        assert coloured.split(" ", 1)[1] in caption.lower()


def test_walks_have_images_and_texts(sets: Path) -> None:
    assert len(list((sets / "test" / "traversal").glob("*.jpg"))) == 4
    assert (sets / "test" / "held_out").resolve() == sets.parent / "shards"
