"""Hierarchical classification on invented images in ImageNet's layout."""

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.tasks.fake_embedder import FakeEmbedder, constant, random_vector
from tests.trainer.small import small_model
from trainer.evaluation.catalog import set_infos
from trainer.evaluation.metrics.hierarchy import read_tree
from trainer.evaluation.task import MissingFilesError, TaskOptions
from trainer.evaluation.tasks.hierarchical import evaluate

Write = Callable[..., Path]
CLASSES = read_tree().classes
NAMES, PROMPTS = set_infos()["imagenet"].names, set_infos()["imagenet"].prompts
NAME_OF_TEXT = {prompt.replace("{}", name): name for name in NAMES for prompt in PROMPTS}


def write_images(write: Write, classes: range = range(0, 1000, 100), n: int = 2) -> None:
    """n images of each of `classes`, and empty folders of the other classes."""
    folder = write("imagenet/val/readme.txt").parent
    for name in CLASSES:
        (folder / name).mkdir(exist_ok=True)
    for i in classes:
        for k in range(n):
            write(f"imagenet/val/{CLASSES[i]}/ILSVRC2012_val_{i:05}{k}.JPEG")


def class_name(text: str) -> Tensor:
    return random_vector(NAME_OF_TEXT[text])


def image_class(source: object) -> Tensor:
    wnid = source.path.parent.name  # type: ignore[attr-defined]
    return random_vector(NAMES[CLASSES.index(wnid)])


def test_class_names_match_the_synsets() -> None:
    assert len(NAMES) == len(CLASSES) == 1000
    lemmas = [read_tree().names[wnid].lower().replace("_", " ") for wnid in CLASSES]
    assert [lemmas[i] for i in (0, 1, 980, 999)] == ["tench", "goldfish", "volcano", "toilet tissue"]
    same = sum(name.lower() == lemma for name, lemma in zip(NAMES, lemmas, strict=True))
    assert same > 400  # a shift by one leaves fewer than 10


@pytest.mark.parametrize("name", ["clip", "meru", "phyclip"])
def test_perfect_model(tmp_path: Path, write: Write, name: str) -> None:
    write_images(write)
    embedder = FakeEmbedder(small_model(name), class_name, image_class)
    result = evaluate(embedder, tmp_path, TaskOptions())
    best = {"TIE": 0, "J": 1, "P_H": 1, "R_H": 1, "accuracy_micro": 1}
    released, paper = {"LCA": 1, "LCA_max": 1}, {"LCA": 0, "LCA_max": 0}
    assert {key: value for key, value in result.metrics.items() if "/" not in key} == best | released
    assert result.metrics["paper/LCA"] == 0
    assert result.details["confusions"] == []
    swapped = evaluate(embedder, tmp_path, TaskOptions(rule="paper"))
    assert {key: value for key, value in swapped.metrics.items() if "/" not in key} == best | paper
    assert swapped.metrics["released/LCA"] == 1
    assert result.n_used == 20


def test_constant_model_predicts_one_class(tmp_path: Path, write: Write) -> None:
    write_images(write, range(0, 1000, 5), 1)
    result = evaluate(FakeEmbedder(text=constant, image=constant), tmp_path, TaskOptions())
    assert result.metrics["accuracy_micro"] <= 1 / 200
    assert result.metrics["TIE"] > 8
    assert result.details["confusions"]


def test_random_model_has_the_measured_metrics(tmp_path: Path, write: Write) -> None:
    write_images(write, range(1000), 1)
    result = evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    measured = {"TIE": 11.429, "LCA": 5.716, "LCA_max": 7.038, "J": 0.3123, "P_H": 0.4675, "R_H": 0.4675}
    assert {name: result.chance[name] for name in measured} == pytest.approx(measured, abs=5e-4)
    assert {name: result.metrics[name] for name in measured} == pytest.approx(measured, rel=0.1)


def test_inner_product_and_distance_of_one_factor_give_equal_metrics(tmp_path: Path, write: Write) -> None:
    write_images(write, range(0, 1000, 10), 1)
    embedder = FakeEmbedder(small_model("meru"))
    released = evaluate(embedder, tmp_path, TaskOptions(ranking="released"))
    assert evaluate(embedder, tmp_path, TaskOptions(ranking="metric")).metrics == released.metrics


def test_confusions_name_the_common_ancestor(tmp_path: Path, write: Write) -> None:
    write_images(write, range(2), 3)

    def swapped(source: object) -> Tensor:
        wnid = source.path.parent.name  # type: ignore[attr-defined]
        return random_vector(NAMES[1 - CLASSES.index(wnid)])

    result = evaluate(FakeEmbedder(text=class_name, image=swapped), tmp_path, TaskOptions())
    confusion = {"true": "tench", "predicted": "goldfish", "n": 3}
    found = result.details["confusions"]
    assert isinstance(found, list)
    assert confusion.items() <= found[0].items()
    assert found[0]["common"] == "cyprinid"
    pytest.importorskip("matplotlib")
    result.figures[0].draw(tmp_path / "edges.png")
    assert (tmp_path / "edges.png").read_bytes().startswith(b"\x89PNG")


def test_limit_takes_images_at_equal_distances(tmp_path: Path, write: Write) -> None:
    write_images(write, range(3), 5)
    embedder = FakeEmbedder()
    assert evaluate(embedder, tmp_path, TaskOptions(max_examples=3)).n_used == 3
    assert [image.path.parent.name for image in embedder.seen] == [CLASSES[i] for i in (0, 1, 2)]


def test_missing_and_unreadable_images_are_counted(tmp_path: Path, write: Write) -> None:
    write_images(write)
    write(f"imagenet/val/{CLASSES[0]}/ILSVRC2012_val_000000.JPEG", "broken")
    result = evaluate(FakeEmbedder(text=class_name, image=image_class), tmp_path, TaskOptions())
    assert (result.n_used, result.skipped) == (19, {"unreadable image": 1})
    assert result.metrics["TIE"] == 0


def test_wrong_layouts_are_reported(tmp_path: Path, write: Write) -> None:
    with pytest.raises(MissingFilesError, match=r"expected .*/imagenet/val/WNID"):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    write_images(write)
    (tmp_path / "imagenet/val" / CLASSES[999]).rmdir()
    with pytest.raises(UserError, match="999 classes, but imagenet has 1000"):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    write("imagenet/val/n99999999/1.JPEG")
    with pytest.raises(UserError, match="imagenet/val/n99999999 is not the class n15075141"):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())
