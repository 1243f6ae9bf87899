"""Evaluation sets of the miniature study: the tasks of the trainer read them."""

from dataclasses import replace
from pathlib import Path

import pytest

from demo.paper.sets import tree_lines, write_sets
from demo.paper.sizes import SIZES
from demo.world.vocabulary import CONCEPTS
from tests.trainer.evaluation.tasks.fake_embedder import FakeEmbedder
from trainer.evaluation.catalog import TASKS
from trainer.evaluation.metrics.hierarchy import read_tree
from trainer.evaluation.task import TaskOptions

N_PAIRS = 3


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    size = replace(SIZES["smoke"], pictures=1, captioned=5, pairs=N_PAIRS)
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
    ("task", "n_used", "metrics"),
    [
        ("classification", 2 * len(CONCEPTS), {"concepts/accuracy", "unseen_style/accuracy"}),
        ("hierarchical", 2 * len(CONCEPTS), {"concepts/TIE", "unseen_style/R_H"}),
        ("retrieval", 5, {"coco/text_to_image/recall@5", "coco/image_to_text/recall@10"}),
        ("sugarcrepe", 7 * N_PAIRS, {"overall", "swap_att"}),
        ("vlchecklist", 9 * N_PAIRS, {"object", "object/margin", "attribute/color", "relation/spatial"}),
    ],
)
def test_the_tasks_of_the_trainer_read_all_items(sets: Path, task: str, n_used: int, metrics: set[str]) -> None:
    result = TASKS[task].evaluate(FakeEmbedder(), sets, TaskOptions())
    assert result.n_used == n_used
    assert metrics <= result.metrics.keys()
    assert metrics <= result.items.keys()
    assert not result.skipped
    assert not result.details.get("malformed")


def test_walks_have_images_and_texts(sets: Path) -> None:
    assert len(list((sets / "traversal").glob("*.jpg"))) == 4
    assert (sets / "held_out").resolve() == sets.parent / "shards"
