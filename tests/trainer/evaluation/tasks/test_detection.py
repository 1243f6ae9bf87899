"""Classification of ground-truth boxes on an invented file of COCO instances."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.tasks.fake_embedder import FakeEmbedder, constant, random_vector
from tests.trainer.small import small_model
from trainer.evaluation.task import ImageSource, MissingFilesError, TaskOptions
from trainer.evaluation.tasks.detection import BASE, NOVEL, PROMPTS, evaluate, similarities

Write = Callable[..., Path]
CATEGORIES = sorted((*NOVEL, *BASE, 10))
NAME_OF_TEXT = {prompt.replace("{}", f"kind{c}"): c for c in CATEGORIES for prompt in PROMPTS}


def annotation(number: int, image: int, category: int, box: list[float], crowd: int = 0) -> dict[str, object]:
    return {"id": number, "image_id": image, "category_id": category, "bbox": box, "area": 9.0, "iscrowd": crowd}


def instances(annotations: list[dict[str, object]], n_images: int = 40) -> dict[str, object]:
    return {
        "categories": [{"id": c, "name": f"kind{c}", "supercategory": "thing"} for c in CATEGORIES],
        "images": [{"id": i, "file_name": f"{i:012}.jpg", "width": 200, "height": 100} for i in range(n_images)],
        "annotations": annotations,
    }


def write_coco(write: Write, annotations: list[dict[str, object]], n_images: int = 40) -> None:
    write("coco/annotations/instances_val2017.json", instances(annotations, n_images))
    for i in range(n_images):
        write(f"coco/val2017/{i:012}.jpg")


def one_of_each(n_images: int = 40) -> list[dict[str, object]]:
    """Two boxes of each category that do not overlap others of their image; the left edge tells the category."""
    categories = [c for c in CATEGORIES for _ in range(2)]
    return [annotation(i, i % n_images, c, [c, 20 * (i // n_images), 9, 9]) for i, c in enumerate(categories)]


def right(item: object) -> Tensor:
    category = int(item.box[0]) if isinstance(item, ImageSource) and item.box else NAME_OF_TEXT[str(item)]
    return random_vector(f"category {category}")


def test_perfect_model(tmp_path: Path, write: Write) -> None:
    write_coco(write, one_of_each())
    for name in ("clip", "meru", "phyclip"):
        result = evaluate(FakeEmbedder(small_model(name), right, right), tmp_path, TaskOptions())
        assert result.metrics == pytest.approx(dict.fromkeys(result.metrics, 1.0))
    assert {"AP", "AP50", "base/AP50", "65/novel/AP50", "65/base/AP50", "65/all/AP50"} <= result.metrics.keys()
    assert {f"best/{name}" for name in ("AP", "65/all/AP50")} <= result.metrics.keys()
    assert len(NOVEL) == 17
    assert len(BASE) == 48
    assert result.n_used == 130
    assert result.details["AP_by_category"] == pytest.approx({f"kind{c}": 1.0 for c in NOVEL})


def test_constant_model_has_the_share_of_each_category(tmp_path: Path, write: Write) -> None:
    write_coco(write, one_of_each())
    result = evaluate(FakeEmbedder(text=constant, image=constant), tmp_path, TaskOptions())
    assert result.metrics["AP"] == pytest.approx(1 / 17, rel=0.02)
    assert result.metrics["65/all/AP50"] == pytest.approx(1 / 65, rel=0.02)


def test_random_model_is_near_the_share_of_each_category(tmp_path: Path, write: Write) -> None:
    write_coco(write, [annotation(i, i % 40, NOVEL[i % 17], [i % 150, i % 70, 9, 9]) for i in range(1700)])
    result = evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    assert result.metrics["AP50"] == pytest.approx(1 / 17, abs=0.03)


def test_context_enlarges_the_crop_and_not_the_box(tmp_path: Path, write: Write) -> None:
    write_coco(write, [annotation(0, 0, 17, [17, 4, 8, 20])])
    embedder = FakeEmbedder(text=constant, image=constant)
    result = evaluate(embedder, tmp_path, TaskOptions(box_context=1.5))
    assert [image.box for image in embedder.seen] == [(15, -1, 12, 30)]
    assert result.rules["image"] == "box, squeezed to a square, with sides of 1.5 times the box"
    assert result.metrics["AP"] == pytest.approx(1.0)


def test_scores_are_comparable_between_images(tmp_path: Path, write: Write) -> None:
    """Adding a constant to the similarities of an image, as a norm does to inner products, must not change AP."""
    embedder = FakeEmbedder(small_model("meru"), right, right)
    names = [f"kind{c}" for c in CATEGORIES]
    near, far = (similarities(embedder, norm * random_vector("image")[None], names) for norm in (0.5, 3.0))
    assert near.dtype == torch.float64
    model = embedder.model
    prompts = torch.stack([right(PROMPTS[0].replace("{}", name)) for name in names])
    with torch.no_grad():
        distances = -model.similarity(model.lift_image(random_vector("image")[None]), model.lift_text(prompts))
    found = similarities(embedder, random_vector("image")[None], names)
    torch.testing.assert_close(found, -distances.double() * model.logit_scale.exp().item(), rtol=1e-4, atol=1e-3)
    assert not torch.allclose(near, far)


def test_crowds_other_categories_and_boxes_outside_are_not_classified(tmp_path: Path, write: Write) -> None:
    rows = [
        annotation(0, 0, 17, [17, 0, 9, 9]),
        annotation(1, 0, 17, [40, 0, 50, 50], crowd=1),
        annotation(2, 0, 10, [10, 0, 9, 9]),
        annotation(3, 0, 18, [18, 0, 0, 9]),
        annotation(4, 0, 18, [200, 0, 9, 9]),
        annotation(5, 1, 18, [18, 0, 9, 9]),
        annotation(6, 2, 18, [18, 0, 9, 9]),
    ]
    write_coco(write, rows)
    (tmp_path / "coco/val2017/000000000001.jpg").unlink()
    embedder = FakeEmbedder(text=right, image=right)
    result = evaluate(embedder, tmp_path, TaskOptions())
    assert result.n_used == 2
    assert result.skipped == {"box without area": 2, "missing image": 1, "crowd": 1}
    assert [image.box for image in embedder.seen] == [(17, 0, 9, 9), (18, 0, 9, 9)]
    assert embedder.calls[0]["fit"] == "squeeze"
    assert result.metrics["AP"] == pytest.approx(1)
    assert "base/AP" not in result.metrics


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bbox": [1, 2, 3]}, r"annotation 7: the box \[1, 2, 3\]"),
        ({"bbox": None}, "annotation 7: the box None"),
        ({"image_id": 99}, "annotation 7 names image 99"),
        ({"category_id": "17"}, "annotation 7: 'category_id' is '17'; it must be of type int"),
    ],
)
def test_malformed_annotations_are_user_errors(
    tmp_path: Path, write: Write, change: dict[str, object], message: str
) -> None:
    write_coco(write, [annotation(7, 0, 17, [0, 0, 9, 9]) | change])
    with pytest.raises(UserError, match=message):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())


def test_missing_files_and_categories_are_user_errors(tmp_path: Path, write: Write) -> None:
    with pytest.raises(MissingFilesError, match=r"instances_val2017\.json is missing"):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    write_coco(write, one_of_each())
    table = instances(one_of_each()) | {"categories": [{"id": 1, "name": "person"}]}
    write("coco/annotations/instances_val2017.json", table)
    with pytest.raises(UserError, match="lacks the category 2;"):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())
