"""One field of an annotation file that no file system, text or image can hold: a line, or a skipped entry."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.tasks.embedding import model_and_tokenizer
from trainer.evaluation.embedder import CachedEmbedder
from trainer.evaluation.run.contamination import ROW, count_copies
from trainer.evaluation.task import TaskOptions
from trainer.evaluation.tasks import detection, hierarcaps_expanded, retrieval
from trainer.evaluation.tasks.aro import evaluate_attribution
from trainer.evaluation.tasks.examples import Problems

N = 4
CAPTIONS, INSTANCES = "coco/annotations/captions_val2017.json", "coco/annotations/instances_val2017.json"
ATTRIBUTION = "aro/visual_genome_attribution.json"
LONG = f"{'a' * 300}.jpg"


@pytest.fixture
def embedder(tmp_path: Path) -> CachedEmbedder:
    return CachedEmbedder(*model_and_tokenizer("meru"), tmp_path / "cache", batch_size=4, workers=1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """N images of 24 x 20 px with annotations for three tasks."""
    for folder in ("coco/val2017", "coco/annotations", "aro/images"):
        (tmp_path / folder).mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 255, (N, 20, 24, 3), np.uint8)
    for i in range(N):
        for folder in ("coco/val2017", "aro/images"):
            PIL.Image.fromarray(pixels[i]).save(tmp_path / folder / f"{i}.jpg")
    images = [
        {"id": i, "file_name": f"{i}.jpg", "width": 24, "height": 20, "coco_url": f"http://c/{i}"} for i in range(N)
    ]
    boxes = [{"id": i, "image_id": i, "category_id": 17, "bbox": [1, 1, 9, 9], "iscrowd": 0} for i in range(N)]
    categories = [{"id": i, "name": f"thing {i}"} for i in (*detection.NOVEL, *detection.BASE)]
    captions = [{"id": i, "image_id": i, "caption": f"caption {i}"} for i in range(N)]
    sides = {"bbox_x": 1, "bbox_y": 1, "bbox_w": 9, "bbox_h": 9}
    pair = {"true_caption": "a", "false_caption": "b", "attributes": ["red", "wet"]}
    for name, content in (
        (CAPTIONS, {"images": images, "annotations": captions}),
        (INSTANCES, {"images": images, "annotations": boxes, "categories": categories}),
        (ATTRIBUTION, [{"image_path": f"{i}.jpg", **sides, **pair} for i in range(N)]),
    ):
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def change(path: Path, edit: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["a\0b.jpg", LONG])
def test_a_name_that_no_file_can_have_is_a_skipped_image(root: Path, embedder: CachedEmbedder, name: str) -> None:
    change(root / CAPTIONS, lambda content: content["images"][0].update(file_name=name))
    change(root / INSTANCES, lambda content: content["images"][0].update(file_name=name))
    change(root / ATTRIBUTION, lambda content: content[0].update(image_path=name))
    found = retrieval.evaluate(embedder, root, TaskOptions())
    assert (found.n_used, found.skipped["coco: unreadable image"]) == (N - 1, 1)
    for evaluate in (detection.evaluate, evaluate_attribution):
        part = evaluate(embedder, root, TaskOptions())
        assert (part.n_used, part.skipped) == (N - 1, {"missing image": 1})
    assert count_copies(embedder.seen, np.zeros(1, ROW), 1).n_images >= N


@pytest.mark.parametrize("key", ["caption", "file_name"])
def test_half_a_surrogate_pair_is_a_line_that_names_the_entry(root: Path, embedder: CachedEmbedder, key: str) -> None:
    part, where = ("annotations", r"annotations\[2\]") if key == "caption" else ("images", "image 2")
    change(root / CAPTIONS, lambda content: content[part][2].update({key: "red \ud800 kite"}))
    with pytest.raises(UserError, match=rf"{where}: '{key}' is 'red \\ud800 kite', which is not valid Unicode"):
        retrieval.evaluate(embedder, root, TaskOptions())


def test_an_address_that_is_not_unicode_has_no_copy(root: Path, embedder: CachedEmbedder) -> None:
    change(root / CAPTIONS, lambda content: content["images"][0].update(coco_url="http://\ud800"))
    assert retrieval.evaluate(embedder, root, TaskOptions()).n_used == N
    copies = count_copies(embedder.seen, np.zeros(1, ROW), 1)
    assert (copies.n_images, copies.n_with_url, copies.by_url) == (N, N, 0)


@pytest.mark.parametrize("value", [10**400, 1e308, "Infinity", 2**31])
def test_huge_boxes_are_a_line_that_names_the_entry(root: Path, embedder: CachedEmbedder, value: Any) -> None:
    number = float("inf") if value == "Infinity" else value
    change(root / ATTRIBUTION, lambda content: content[1].update(bbox_x=number, bbox_w=number))
    with pytest.raises(UserError, match=r"attribution\.json, entry 1: the box \[") as found:
        evaluate_attribution(embedder, root, TaskOptions())
    assert len(str(found.value)) < 400
    change(root / INSTANCES, lambda content: content["annotations"][1].update(bbox=[number, 1, number, 9]))
    with pytest.raises(UserError, match=r"annotation 1: the box"):
        detection.evaluate(embedder, root, TaskOptions())


def test_ids_beyond_64_bits_are_ids(root: Path, embedder: CachedEmbedder) -> None:
    expected = detection.evaluate(embedder, root, TaskOptions()).metrics

    def edit(content: Any) -> None:
        content["images"][0]["id"] = content["annotations"][0]["image_id"] = 10**30

    change(root / INSTANCES, edit)
    assert detection.evaluate(embedder, root, TaskOptions()).metrics == expected


def test_an_address_that_is_null_is_none(root: Path, embedder: CachedEmbedder) -> None:
    for file in (CAPTIONS, INSTANCES):
        change(root / file, lambda content: content["images"][0].update(coco_url=None))
    for evaluate in (detection.evaluate, retrieval.evaluate):
        embedder.seen.clear()
        evaluate(embedder, root, TaskOptions())
        assert sorted(image.urls for image in embedder.seen) == [(), *((f"http://c/{i}",) for i in range(1, N))]


def test_one_malformed_entry_of_many_is_skipped_and_named(root: Path, embedder: CachedEmbedder) -> None:
    def repeat(entries: list[Any], key: str) -> None:
        entries[:] = [dict(entry) for entry in entries for _ in range(30)]
        entries[1][key] = None

    change(root / CAPTIONS, lambda content: repeat(content["annotations"], "caption"))
    change(root / INSTANCES, lambda content: repeat(content["annotations"], "bbox"))
    change(root / ATTRIBUTION, lambda content: repeat(content, "true_caption"))
    for evaluate, file in (
        (retrieval.evaluate, CAPTIONS),
        (detection.evaluate, INSTANCES),
        (evaluate_attribution, ATTRIBUTION),
    ):
        found, name = evaluate(embedder, root, TaskOptions()), Path(file).name
        assert found.skipped == {f"malformed entry of {name}": 1}
        assert list(found.details["malformed"]) == [f"{name}, item 1"]  # type: ignore[call-overload]
        assert found.n_used == (N if evaluate is retrieval.evaluate else 30 * N - 1)


@pytest.mark.parametrize("part", ["image", "category"])
def test_an_id_with_two_meanings_is_a_malformed_entry(root: Path, embedder: CachedEmbedder, part: str) -> None:
    def edit(content: Any) -> None:
        if part == "category":
            content["categories"].append({"id": 17, "name": "dog"})
        else:
            content["images"].append(content["images"][1] | {"file_name": "2.jpg"})

    change(root / INSTANCES, edit)
    with pytest.raises(UserError, match=f"{part} {17 if part == 'category' else 1} contradicts an earlier entry"):
        detection.evaluate(embedder, root, TaskOptions())
    if part == "image":
        change(root / CAPTIONS, edit)
        with pytest.raises(UserError, match="image 1 contradicts an earlier entry with the same id"):
            retrieval.evaluate(embedder, root, TaskOptions())


@pytest.mark.parametrize("flag", ["0", True, 2, None])
def test_a_crowd_flag_or_side_of_a_box_of_another_type_is_a_malformed_entry(
    root: Path, embedder: CachedEmbedder, flag: object
) -> None:
    change(root / INSTANCES, lambda content: content["annotations"][1].update(iscrowd=flag))
    with pytest.raises(UserError, match="annotation 1: 'iscrowd' is"):
        detection.evaluate(embedder, root, TaskOptions())
    change(root / ATTRIBUTION, lambda content: content[1].update(bbox_x=True))
    with pytest.raises(UserError, match=r"entry 1: the box \[True, 1, 9, 9\]"):
        evaluate_attribution(embedder, root, TaskOptions())


def test_one_malformed_image_of_many_is_skipped_and_named(root: Path, embedder: CachedEmbedder) -> None:
    def edit(content: Any) -> None:
        content["images"] += [content["images"][0] | {"id": i, "file_name": f"{i}.jpg"} for i in range(N, 200)]
        content["images"][-1]["file_name"] = None

    for evaluate, file in ((retrieval.evaluate, CAPTIONS), (detection.evaluate, INSTANCES)):
        change(root / file, edit)
        found, name = evaluate(embedder, root, TaskOptions()), f"{Path(file).name}/images"
        assert found.skipped[f"malformed entry of {name}"] == 1
        assert list(found.details["malformed"]) == [f"{name}, item 199"]  # type: ignore[call-overload]
        assert found.n_used == N


def test_one_malformed_row_of_the_expanded_file_is_skipped_and_named(tmp_path: Path) -> None:
    path, problems = tmp_path / "expanded.csv", Problems()
    path.write_text(
        "positive,negative,image_url\n" + "a => b => c => d,e => f => g => h,http://x/1.jpg\n" * 99 + "a,b,c\n"
    )
    columns = ("positive", "negative", "image_url")
    assert len(hierarcaps_expanded.read_table(path, columns, problems, hierarcaps_expanded.read_pair)) == 99
    assert list(problems.malformed) == ["expanded.csv, item 99"]
    assert "line 101 has no chain of 4 captions" in problems.malformed["expanded.csv, item 99"]
