"""Items of the tasks reduce to their metrics, on invented files of unequal sizes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.tasks.fake_embedder import FakeEmbedder
from tests.trainer.small import small_model
from trainer.evaluation.catalog import TASKS
from trainer.evaluation.task import TaskOptions

Write = Callable[..., Path]


def write_benchmarks(write: Write) -> None:
    """Small data sets of unequal sizes for the tasks with items."""
    images = [{"id": i, "file_name": f"{i}.jpg"} for i in range(12)]
    captions = [{"id": 2 * i + k, "image_id": i, "caption": f"caption {i} {k}"} for i in range(12) for k in range(2)]
    write("coco/annotations/captions_val2017.json", {"images": images, "annotations": captions})
    for i in range(12):
        write(f"coco/val2017/{i}.jpg", f"image {i}")
    for number, name in enumerate(("replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att", "add_obj")):
        write_pairs(write, name, 4 + number)
    write_pairs(write, "add_att", 12)
    for number, name in enumerate(("center", "mid", "margin")):
        write_corpus(write, f"Object/Location/{name}", 5 + number)
    for number, name in enumerate(("large", "medium", "small")):
        write_corpus(write, f"Object/Size/{name}", 6 + number)
    for number, name in enumerate(("dog", "cat", "car")):
        for i in range(2 + number):
            write(f"own/things/{name}/{i}.jpg", f"{name} {i}")
    write("own/things/prompts.txt", "a {}\nthe {}\n")
    write("own/things/tree.txt", "thing - thing\nanimal thing animal\ndog animal dog\ncat animal cat\ncar thing car\n")


def write_pairs(write: Write, name: str, n: int) -> None:
    entry = {"caption": "true", "negative_caption": "false"}
    pairs = {str(i): {"filename": f"{i}.jpg", **{k: f"{v} {name} {i}" for k, v in entry.items()}} for i in range(n)}
    write(f"sugarcrepe/{name}.json", pairs)


def write_corpus(write: Write, column: str, n: int) -> None:
    name = column.replace("/", "_")
    write(f"vl_checklist/corpus/v1/{column}/vg_obj.yaml", f"ANNO_PATH: data/{name}.json\nIMG_ROOT: ../coco/val2017\n")
    rows = [[f"{i}.jpg", {"POS": [f"true {name} {i}"], "NEG": [f"false {name} {i}"]}] for i in range(n)]
    write(f"vl_checklist/data/{name}.json", rows)


@pytest.mark.parametrize("model", ["clip", "phyclip"])
@pytest.mark.parametrize("task", ["classification", "retrieval", "hierarchical", "sugarcrepe", "vlchecklist"])
def test_items_reduce_to_the_metrics(tmp_path: Path, write: Write, task: str, model: str) -> None:
    write_benchmarks(write)
    result = TASKS[task].evaluate(FakeEmbedder(small_model(model)), tmp_path, TaskOptions())
    assert result.items
    for name, items in result.items.items():
        assert items.metric() == pytest.approx(result.metrics[name]), name
    missing = {name for name in result.metrics if name not in result.items}
    assert missing <= {"macro", "accuracy_micro", "things/accuracy_micro"} | {
        name for name in missing if name.endswith("/mean")
    }


def test_own_sets_are_named_and_their_tree_is_used(tmp_path: Path, write: Write) -> None:
    write_benchmarks(write)
    classification = TASKS["classification"].evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    assert list(classification.metrics) == ["things/accuracy", "things/accuracy_micro"]
    assert classification.rules["things/prompts"] == "prompts.txt"
    assert classification.chance["things/accuracy"] == pytest.approx(1 / 3)
    hierarchical = TASKS["hierarchical"].evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    assert hierarchical.n_used == 9
    assert {"things/TIE", "things/J", "things/paper/LCA"} <= hierarchical.metrics.keys()
    assert "own/things/tree.txt" in hierarchical.checksums
    assert "imagenet" in hierarchical.details["missing"]  # type: ignore[operator]


def test_own_set_with_the_name_of_a_known_set_is_refused(tmp_path: Path, write: Write) -> None:
    write("own/pets/dog/0.jpg")
    with pytest.raises(UserError, match="has the name of a known data set"):
        TASKS["classification"].evaluate(FakeEmbedder(), tmp_path, TaskOptions())


def test_tree_without_the_classes_of_the_folders_is_malformed(tmp_path: Path, write: Write) -> None:
    write("own/things/dog/0.jpg")
    write("own/things/tree.txt", "thing - thing\ncat thing cat\n")
    with pytest.raises(UserError, match="dog is not the class cat"):
        TASKS["hierarchical"].evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    write("own/things/tree.txt", "thing - thing\ndog thing dog\nfox thing fox\n")  # a leaf without a folder
    with pytest.raises(UserError, match="things has 1 classes, but the tree has 2 leaves"):
        TASKS["hierarchical"].evaluate(FakeEmbedder(), tmp_path, TaskOptions())
