"""SugarCrepe on invented files in its format."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.tasks.fake_embedder import FakeEmbedder, constant, random_vector
from tests.trainer.small import small_model
from trainer.evaluation.task import MissingFilesError, TaskOptions
from trainer.evaluation.tasks.sugarcrepe import FILES, evaluate

Write = Callable[..., Path]


def write_files(write: Write, n: int = 1) -> None:
    """Seven files with n pairs each; add_obj has three times as many. Keys are not contiguous."""
    for name in FILES:
        count = 3 * n if name == "add_obj" else n
        entry = {"caption": "A red kite.", "negative_caption": "A blue kite."}
        write(f"sugarcrepe/{name}.json", {str(3 * i): {"filename": f"{name}{i}.jpg", **entry} for i in range(count)})
        for i in range(count):
            write(f"coco/val2017/{name}{i}.jpg")


def kite(item: object) -> Tensor:
    """Images and true captions share a direction; false captions have the opposite one."""
    return -random_vector("kite") if item == "A blue kite." else random_vector("kite")


def test_perfect_model_is_right_in_all_files(tmp_path: Path, write: Write) -> None:
    write_files(write)
    result = evaluate(FakeEmbedder(text=kite, image=kite), tmp_path, TaskOptions())
    assert result.metrics == dict.fromkeys([*FILES, "overall", "macro"], 1.0)
    assert result.chance == dict.fromkeys(result.metrics, 0.5)
    assert (result.n_used, result.skipped) == (9, {})
    assert len(result.checksums) == 7
    assert all(len(value) == 64 for value in result.checksums.values())


def test_units_do_not_depend_on_the_folder_and_a_limit_applies_to_each_file(tmp_path: Path, write: Write) -> None:
    write_files(write, n=4)
    moved = shutil.copytree(tmp_path, tmp_path / "moved", ignore=shutil.ignore_patterns("moved"))
    here, there = (evaluate(FakeEmbedder(), root, TaskOptions()).items for root in (tmp_path, moved))
    assert len(set(here["overall"].units.tolist())) == 36
    assert all(here[name].units.tolist() == there[name].units.tolist() for name in (*FILES, "overall"))
    assert evaluate(FakeEmbedder(), tmp_path, TaskOptions(max_examples=2)).n_used == 14


@pytest.mark.parametrize("name", ["clip", "meru", "phyclip", "poinclip"])
def test_constant_model_is_always_wrong(tmp_path: Path, write: Write, name: str) -> None:
    write_files(write, n=30)
    result = evaluate(FakeEmbedder(small_model(name), constant, constant), tmp_path, TaskOptions())
    assert result.metrics == dict.fromkeys(result.metrics, 0.0)


def test_random_model_is_right_half_of_the_time(tmp_path: Path, write: Write) -> None:
    write_files(write, n=150)
    result = evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    assert result.metrics["overall"] == pytest.approx(0.5, abs=0.06)


def test_overall_is_the_mean_over_pairs_and_macro_over_files(tmp_path: Path, write: Write) -> None:
    write_files(write)

    def image(source: object) -> Tensor:
        return random_vector("kite") * (1 if "add_obj" in str(source) else -1)

    result = evaluate(FakeEmbedder(text=kite, image=image), tmp_path, TaskOptions())
    assert result.metrics["overall"] == pytest.approx(3 / 9)
    assert result.metrics["macro"] == pytest.approx(1 / 7)


def test_images_are_squeezed_by_the_released_rule(tmp_path: Path, write: Write) -> None:
    write_files(write)
    for rule, fit in (("released", "squeeze"), ("paper", "crop")):
        embedder = FakeEmbedder()
        evaluate(embedder, tmp_path, TaskOptions(rule=rule))  # type: ignore[arg-type]
        assert [call["fit"] for call in embedder.calls] == [fit]


def test_missing_and_unreadable_images_are_counted(tmp_path: Path, write: Write) -> None:
    write_files(write)
    (tmp_path / "coco/val2017/add_obj0.jpg").unlink()
    write("coco/val2017/add_obj1.jpg", "broken")
    result = evaluate(FakeEmbedder(text=kite, image=kite), tmp_path, TaskOptions())
    assert (result.n_used, result.skipped) == (7, {"missing image": 1, "unreadable image": 1})
    assert result.metrics["overall"] == 1


def test_missing_files_are_named(tmp_path: Path, write: Write) -> None:
    with pytest.raises(MissingFilesError, match=r"replace_obj\.json is missing; expected sugarcrepe/replace_obj"):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    write_files(write)
    for path in (tmp_path / "coco/val2017").iterdir():
        path.unlink()
    with pytest.raises(MissingFilesError, match=r"none of the 9 images is usable, such as .*replace_obj0\.jpg"):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"replace_obj\.json cannot be read as JSON"),
        ([], r"replace_obj\.json does not hold an object"),
        ({"4": {"filename": "a.jpg", "caption": "A."}}, r"replace_obj\.json, entry '4': 'negative_caption' is missing"),
        (
            {"4": {"filename": 1, "caption": "A.", "negative_caption": "B."}},
            "entry '4': 'filename' is 1; it must be of type str",
        ),
        ({"4": 7}, "entry '4': 'filename' is missing"),
    ],
)
def test_malformed_files_are_user_errors(tmp_path: Path, write: Write, content: object, message: str) -> None:
    for name in FILES:
        write(f"sugarcrepe/{name}.json", content)
    with pytest.raises(UserError, match=message):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())


def test_the_other_files_are_evaluated_without_overall(tmp_path: Path, write: Write) -> None:
    write_files(write)
    write("sugarcrepe/add_att.json", {"0": {"filename": 1}})
    (tmp_path / "sugarcrepe/swap_obj.json").unlink()
    result = evaluate(FakeEmbedder(text=kite, image=kite), tmp_path, TaskOptions())
    assert result.metrics == dict.fromkeys([name for name in FILES if name not in ("add_att", "swap_obj")], 1.0)
    assert result.n_used == 7
    assert "swap_obj.json is missing" in result.details["missing"]["swap_obj"]  # type: ignore[index]
    assert "add_att.json, entry '0': 'filename'" in result.details["malformed"]["add_att"]  # type: ignore[index]
    assert len(result.checksums) == 5
