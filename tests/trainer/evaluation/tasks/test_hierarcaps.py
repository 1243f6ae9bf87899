"""HierarCaps on an invented file in its format, with embeddings made for each rule."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.tasks.fake_embedder import FakeEmbedder, constant, random_vector
from tests.trainer.small import small_model
from trainer.evaluation.task import ImageSource, MissingFilesError, TaskOptions
from trainer.evaluation.tasks.hierarcaps import evaluate

Write = Callable[..., Path]
N = 8
ANGLES = (0.0, 0.6, 1.1, math.pi / 2)
CLIP_PERFECT = {"precision": 1, "recall": 1, "tau": 1, "equal_distances": 0}


def write_rows(write: Write, n: int = N, folder: str = "hierarcaps/test_imgs", shared: bool = True) -> None:
    """n images with chains "thing", "kite I", "red kite I", "A red kite I flies."; the first one is `shared`."""
    lines = ["id,captions,image_url"]
    for i in range(n):
        chain = f"thing{'' if shared else i} => kite {i} => red kite {i} => A red kite {i} flies."
        lines.append(f"{i},{chain},http://x/val2014/COCO_val2014_{i:012}.jpg")
        write(f"{folder}/COCO_val2014_{i:012}.jpg")
    write("hierarcaps/hierarcaps_test.csv", "\n".join(lines) + "\n")


def place(item: object) -> tuple[int, int]:
    """Number of the image, and level of the caption (3 for images)."""
    if isinstance(item, ImageSource):
        return int(item.path.stem[-12:]), 3
    words = str(item).split()
    if len(words) < 2:
        return 0, 0
    return int(words[words.index("kite") + 1]), {"kite": 1, "red": 2, "A": 3}[words[0]]


def on_arc(item: object) -> Tensor:
    """Unit vectors at growing angles from the empty text towards the image."""
    number, level = place(item)
    axes = torch.eye(16)
    return math.cos(ANGLES[level]) * axes[0] + math.sin(ANGLES[level]) * axes[1 + number]


def on_ray(item: object) -> Tensor:
    """Points at growing distances from the origin on the ray of the image; images lie beyond their captions."""
    number, level = place(item)
    distance = 3 * level + (2 if isinstance(item, ImageSource) else 0)
    return distance * torch.eye(16)[1 + number]


def test_perfect_embeddings_of_the_radius_rule(tmp_path: Path, write: Write) -> None:
    write_rows(write)
    result = evaluate(FakeEmbedder(text=on_arc, image=on_arc), tmp_path, TaskOptions())
    assert result.metrics | {f"radius/{k}": pytest.approx(v) for k, v in CLIP_PERFECT.items()} == result.metrics
    assert not any(name.startswith("pep") for name in result.metrics)
    assert result.details["n_texts"] == 3 * N + 1


@pytest.mark.parametrize("name", ["meru", "hycoclip"])
def test_perfect_embeddings_of_the_path_rule(tmp_path: Path, write: Write, name: str) -> None:
    write_rows(write)
    result = evaluate(FakeEmbedder(small_model(name), on_ray, on_ray), tmp_path, TaskOptions())
    assert {key: result.metrics[f"path/{key}"] for key in ("precision", "recall")} == {"precision": 1, "recall": 1}
    assert result.metrics["path/tau"] == 1
    examples = result.details["examples"]
    assert isinstance(examples, list)
    assert examples[0]["image"] == "hierarcaps/test_imgs/COCO_val2014_000000000000.jpg"
    assert examples[0]["path_from_root"] == examples[0]["captions"]
    # The shared caption lies at the origin, where the cone is a half-space and the angle undefined.
    assert result.metrics["pep/margin_auc"] > 0.8
    assert result.chance["pep/average_precision"] == pytest.approx(4 / (4 + N - 1))


@pytest.mark.parametrize("name", ["clip", "meru", "phyclip"])
def test_collapsed_embeddings_have_a_tau_of_zero(tmp_path: Path, write: Write, name: str) -> None:
    write_rows(write)
    result = evaluate(FakeEmbedder(small_model(name), constant, constant), tmp_path, TaskOptions())
    for rule in ("radius", "path"):
        assert result.metrics[f"{rule}/tau"] == pytest.approx(0, abs=1e-12)
        assert result.metrics[f"{rule}/equal_distances"] == 1
        assert result.metrics[f"{rule}/recall"] <= 1 / 4
    if name != "clip":
        assert result.metrics["pep/auc"] == result.metrics["pep/margin_auc"] == 0.5
        assert result.metrics["pep/average_precision"] == pytest.approx(result.chance["pep/average_precision"])


def test_random_embeddings_are_near_chance(tmp_path: Path, write: Write) -> None:
    write_rows(write, 150, shared=False)
    result = evaluate(FakeEmbedder(small_model("meru")), tmp_path, TaskOptions())
    assert result.metrics["radius/tau"] == pytest.approx(0, abs=0.15)
    assert result.metrics["path/tau"] == pytest.approx(0, abs=0.15)
    assert result.metrics["radius/precision"] < 0.05
    assert result.metrics["pep/margin_auc"] == pytest.approx(0.5, abs=0.06)
    # Angles between random points of equal norm are obtuse in hyperbolic space: most probabilities tie at 0.
    assert result.metrics["pep/zeros"] > 0.99
    assert result.metrics["pep/auc"] == pytest.approx(0.5, abs=0.01)
    assert result.chance["pep/average_precision"] == pytest.approx(4 / 104)


def test_negatives_are_the_first_ones_by_the_released_rule_and_drawn_by_the_paper(tmp_path: Path, write: Write) -> None:
    write_rows(write, 120, shared=False)
    embedder = FakeEmbedder(small_model("meru"))
    released, *drawn = (
        evaluate(embedder, tmp_path, options)
        for options in (TaskOptions(), TaskOptions(rule="paper"), TaskOptions(rule="paper", seed=1))
    )
    assert len({result.metrics["pep/margin_auc"] for result in (released, *drawn)}) == 3
    assert "first in file order" in released.rules["pep"]
    assert "at random" in drawn[0].rules["pep"]


def test_images_of_coco_are_used_if_there_is_no_folder_of_the_benchmark(tmp_path: Path, write: Write) -> None:
    write_rows(write, folder="coco/val2014")
    (tmp_path / "coco/val2014/COCO_val2014_000000000003.jpg").unlink()
    result = evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    assert (result.n_used, result.skipped) == (N - 1, {"missing image": 1})


def test_limit_and_figure(tmp_path: Path, write: Write) -> None:
    write_rows(write)
    result = evaluate(FakeEmbedder(text=random_vector), tmp_path, TaskOptions(max_examples=3))
    assert result.n_used == 3
    pytest.importorskip("matplotlib")
    result.figures[0].draw(tmp_path / "distances.png")
    assert (tmp_path / "distances.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"id,text\n1,a\n",
            r"\.csv has the columns \['id', 'text'\]; give the columns captions,image_url, separated by commas",
        ),
        (b"id,captions,image_url\n1,a => b => c,http://x/1.jpg\n", "line 2 has no image_url and 4 captions"),
        (b"id,captions,image_url\n1,a => b => c => d,\n", "line 2"),
        (b"id,captions,image_url\n1\n", "line 2"),
        (b"id,captions,image_url\n1,\xff\xfe,x\n", r"hierarcaps_test\.csv cannot be read"),
    ],
)
def test_missing_and_malformed_files_are_user_errors(
    tmp_path: Path, write: Write, content: bytes, message: str
) -> None:
    with pytest.raises(MissingFilesError, match=r"hierarcaps_test\.csv is missing"):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    write("hierarcaps/hierarcaps_test.csv").write_bytes(content)
    with pytest.raises(UserError, match=message):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())


def test_the_expanded_file_compares_positive_with_negative_captions(tmp_path: Path, write: Write) -> None:
    write_rows(write)
    chain = "thing{0} => kite {0} => red kite {0} => A red kite {0} flies."
    lines = ["positive,negative,image_url"]
    lines += [f"{chain.format(i)},{chain.format(i ^ 1)},http://x/COCO_val2014_{i:012}.jpg" for i in range(N)]
    lines.append(f"{chain.format(0)},{chain.format(1)},http://x/none.jpg")
    path = write("hierarcaps/hierarcaps_test_expanded.csv", "\n".join(lines) + "\n")
    result = evaluate(FakeEmbedder(text=on_arc, image=on_arc), tmp_path, TaskOptions())
    found = [result.metrics[f"expanded/level_{level}"] for level in (1, 2, 3, 4)]
    assert found == [0.0, 1.0, 1.0, 1.0]  # the captions of level 1 are equal points, and ties are wrong
    assert result.chance["expanded/level_4"] == 0.5
    assert result.skipped == {"expanded file: missing image": 4}
    assert len(result.checksums) == 2
    path.write_text("positive,negative,image_url\na => b,c => d,http://x/1.jpg\n")
    damaged = evaluate(FakeEmbedder(text=on_arc, image=on_arc), tmp_path, TaskOptions())
    assert damaged.metrics == {key: value for key, value in result.metrics.items() if "expanded" not in key}
    reason = damaged.details["malformed"]["expanded"]  # type: ignore[index]
    assert "expanded.csv, line 2 has no chain of 4 captions" in reason
    assert "expanded" not in damaged.rules
