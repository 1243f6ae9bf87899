"""Linear probe of folders of invented images."""

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.tasks.fake_embedder import FakeEmbedder, constant, random_vector
from trainer.evaluation.sets.probe import Split, read_probe, split_off
from trainer.evaluation.task import ImageSource, MissingFilesError, TaskOptions
from trainer.evaluation.tasks.linear_probe import NAMES, evaluate

Write = Callable[..., Path]


def write_set(write: Write, name: str, parts: tuple[str, ...] = ("train", "val", "test"), n: int = 5) -> None:
    for part in parts:
        for kind in ("cat", "dog", "kite"):
            for i in range(n):
                write(f"linear_probe/{name}/{part}/{kind}/{i:03}.jpg")


def by_class(source: ImageSource) -> Tensor:
    return 3 * random_vector(source.path.parent.name) + random_vector("/".join(source.path.parts[-4:]))


def test_accuracy_of_each_set_and_their_mean(tmp_path: Path, write: Write) -> None:
    write_set(write, "pets")
    write_set(write, "dtd")
    embedder = FakeEmbedder(image=by_class)
    result = evaluate(embedder, tmp_path, TaskOptions())
    assert result.metrics == {"dtd/accuracy": 1.0, "pets/accuracy": 1.0, "mean/accuracy": 1.0}
    assert result.chance == pytest.approx(dict.fromkeys(result.metrics, 1 / 3))
    assert result.n_used == 30
    assert all(call["trunk"] and call["fit"] == "crop" for call in embedder.calls)
    missing = result.details["missing"]
    assert isinstance(missing, dict)
    assert all("\n" not in line and len(line) < 300 + len(str(tmp_path)) * 3 for line in missing.values())
    assert sorted(missing) == sorted(set(NAMES) - {"pets", "dtd"})
    assert len(NAMES) == 19


def test_constant_features_have_the_accuracy_of_one_class(tmp_path: Path, write: Write) -> None:
    write_set(write, "pets")
    result = evaluate(FakeEmbedder(image=constant), tmp_path, TaskOptions())
    assert result.metrics["pets/accuracy"] == pytest.approx(1 / 3)


def test_last_images_of_each_class_are_the_validation_split_without_a_folder(tmp_path: Path, write: Write) -> None:
    write_set(write, "pets", ("train", "test"), n=20)
    write_set(write, "cifar10", ("train", "test"), n=20)
    for name, n_val in (("pets", 4), ("cifar10", 2)):
        data = read_probe(tmp_path, name)
        assert (len(data.train.images), len(data.val.images)) == (60 - 3 * n_val, 3 * n_val)
        assert set(data.val.labels) == {0, 1, 2}
        assert [image.path.name for image in data.val.images[:n_val]] == ["016.jpg", "017.jpg", "018.jpg", "019.jpg"][
            -n_val:
        ]
        assert "of each class of train" in data.rules["val"]


def test_classes_with_one_image_stay_in_train() -> None:
    images = [ImageSource(path=Path(f"{i}.jpg")) for i in range(4)]
    train, val, _ = split_off(Split(images=images, labels=[0, 1, 1, 1]), 0.2)
    assert (train.labels, val.labels) == ([0, 1, 1], [1])
    assert val.images == [images[3]]


def test_missing_and_unreadable_images_are_counted(tmp_path: Path, write: Write) -> None:
    write_set(write, "pets")
    write("linear_probe/pets/test/dog/000.jpg", "broken")
    result = evaluate(FakeEmbedder(image=by_class), tmp_path, TaskOptions())
    assert (result.n_used, result.skipped) == (14, {"unreadable image": 1})


def test_wrong_layouts_are_reported(tmp_path: Path, write: Write) -> None:
    with pytest.raises(MissingFilesError, match="has none of the 19 sets with training images"):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    write_set(write, "pets")
    write("linear_probe/pets/test/horse/1.jpg")
    with pytest.raises(UserError, match=r"pets/test has the class 'horse', which .*pets/train lacks"):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    write_set(write, "dtd")
    result = evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    assert list(result.details["malformed"]) == ["pets"]  # type: ignore[call-overload]
    assert list(result.metrics) == ["dtd/accuracy", "mean/accuracy"]
