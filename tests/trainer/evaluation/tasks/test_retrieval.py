"""Retrieval on invented files in the schemas of COCO and of Karpathy's Flickr30k."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.tasks.embedding import model_and_tokenizer
from trainer.evaluation.task import Fit, ImageFeatures, ImageSource, MissingFilesError, TaskOptions
from trainer.evaluation.tasks.examples import Problems
from trainer.evaluation.tasks.retrieval import evaluate, read_coco, read_own
from trainer.models.registry import build_model

N = 6


class Stub:
    """An embedder with given features of images and texts, by name of the file and by text."""

    def __init__(self, name: str, images: dict[str, Tensor], texts: dict[str, Tensor]) -> None:
        config = model_and_tokenizer(name)[0].config
        self.model = build_model(name, config)
        self.image_rows, self.text_rows = images, texts
        self.fits: set[str] = set()

    def texts(self, texts: Any) -> Tensor:
        return torch.stack([self.text_rows[text] for text in texts])

    def images(
        self, images: Any, fit: Fit = "crop", *, legacy_norm: bool = False, trunk: bool = False
    ) -> ImageFeatures:
        self.fits.add(fit)
        errors = {i: "No such file" for i, image in enumerate(images) if not image.path.is_file()}
        return ImageFeatures(
            features=torch.stack([self.image_rows[image.path.name] for image in images]), errors=errors
        )


def write_coco(root: Path, **changes: Any) -> dict[str, Any]:
    """Write N images with five captions each, image 1 with seven; captions are not in the order of the images."""
    folder = root / "coco" / "val2017"
    folder.mkdir(parents=True)
    (root / "coco" / "annotations").mkdir()
    ids = [70, 7, 3, 900, 41, 5]
    for number in ids:
        PIL.Image.fromarray(np.full((8, 8, 3), number % 255, np.uint8)).save(folder / f"{number:012d}.jpg")
    captions = [(number, f"caption {i} of {number}") for i in range(5) for number in ids]
    captions += [(7, "caption 5 of 7"), (7, "caption 6 of 7")]
    content: dict[str, Any] = {
        "images": [
            {
                "id": number,
                "file_name": f"{number:012d}.jpg",
                "height": 8,
                "width": 8,
                "flickr_url": f"http://f/{number}",
            }
            for number in ids
        ],
        "annotations": [
            {"id": 1000 + i, "image_id": number, "caption": text} for i, (number, text) in enumerate(captions)
        ],
    }
    content |= changes
    (root / "coco" / "annotations" / "captions_val2017.json").write_text(json.dumps(content))
    return content


def stub_for(content: dict[str, Any], kind: str, name: str = "clip") -> Stub:
    """An embedder whose captions equal their images ("perfect"), or with equal points ("constant"), or random ones."""
    generator = torch.Generator().manual_seed(0)
    basis = {image["id"]: 3 * row for image, row in zip(content["images"], torch.eye(16), strict=False)}

    def feature(number: int) -> Tensor:
        if kind == "random":
            return torch.randn(16, generator=generator)
        return basis[number] if kind == "perfect" else torch.ones(16)

    return Stub(
        name,
        {image["file_name"]: feature(image["id"]) for image in content["images"]},
        {entry["caption"]: feature(entry["image_id"]) for entry in content["annotations"]},
    )


@pytest.mark.parametrize("name", ["clip", "meru", "phyclip"])
def test_perfect_points_have_recall_1_in_both_directions(name: str, tmp_path: Path) -> None:
    stub = stub_for(write_coco(tmp_path), "perfect", name)
    result = evaluate(stub, tmp_path, TaskOptions())
    assert result.metrics["coco/text_to_image/recall@1"] == 1.0
    assert result.metrics["coco/image_to_text/recall@1"] == 1.0
    assert result.n_used == N
    assert stub.fits == {"squeeze"}
    assert "'flickr30k': 'expected" in str(result.details["missing"])
    assert "the papers use 5000 and 25014" in result.rules["coco/pool"]
    assert result.checksums.keys() == {"coco/annotations/captions_val2017.json"}


@pytest.mark.parametrize("name", ["clip", "meru", "phyclip"])
def test_equal_points_count_against_the_model(name: str, tmp_path: Path) -> None:
    result = evaluate(stub_for(write_coco(tmp_path), "constant", name), tmp_path, TaskOptions())
    for direction in ("text_to_image", "image_to_text"):
        assert result.metrics[f"coco/{direction}/recall@5"] == 0.0
    assert result.metrics["coco/text_to_image/recall@10"] == 1.0  # there are six images only
    assert result.chance["coco/text_to_image/recall@1"] == pytest.approx(1 / N)


def test_random_points_are_near_the_chance_level(tmp_path: Path) -> None:
    result = evaluate(stub_for(write_coco(tmp_path), "random"), tmp_path, TaskOptions())
    for name, chance in result.chance.items():
        assert result.metrics[name] == pytest.approx(chance, abs=0.45)
    assert result.metrics["coco/text_to_image/recall@1"] < 1


def test_a_missing_image_is_skipped_with_its_captions(tmp_path: Path) -> None:
    stub = stub_for(write_coco(tmp_path), "perfect")
    (tmp_path / "coco" / "val2017" / "000000000007.jpg").unlink()
    result = evaluate(stub, tmp_path, TaskOptions())
    assert result.n_used == N - 1
    assert result.skipped == {"coco: unreadable image": 1, "coco: caption of an unreadable image": 7}


def test_karpathys_test_split_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "flickr30k" / "flickr30k_images"
    folder.mkdir(parents=True)
    images = []
    for i, split in enumerate(["train", "test", "test"]):
        (folder / f"{i}.jpg").write_bytes(b"x")
        sentences = [{"raw": f"text {i} {j}", "tokens": ["text"], "sentid": 5 * i + j, "imgid": i} for j in range(5)]
        images.append({"filename": f"{i}.jpg", "split": split, "imgid": i, "sentids": [], "sentences": sentences})
    file = tmp_path / "flickr30k" / "dataset_flickr30k.json"
    file.write_text(json.dumps({"images": images, "dataset": "flickr30k"}))
    features = {f"{i}.jpg": torch.eye(16)[i] for i in range(3)}
    texts = {f"text {i} {j}": torch.eye(16)[i] for i in range(3) for j in range(5)}
    result = evaluate(Stub("clip", features, texts), tmp_path, TaskOptions())
    assert result.n_used == 2
    assert result.metrics["flickr30k/text_to_image/recall@1"] == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"annotations": [{"id": 1, "image_id": 12, "caption": "x"}]}, r"annotations\[0\]: image_id 12 is not among"),
        ({"annotations": [{"id": 1, "image_id": 7}]}, r"annotations\[0\]: 'caption' is missing"),
        ({"images": {}}, "'images' is {}; it must be of type list"),
    ],
)
def test_malformed_annotations_are_an_error_that_names_the_entry(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    stub = stub_for(write_coco(tmp_path / "good"), "perfect")
    write_coco(tmp_path / "bad", **changes)
    with pytest.raises(UserError, match=message) as found:
        evaluate(stub, tmp_path / "bad", TaskOptions())
    assert str(found.value).startswith(f"{tmp_path / 'bad'}")
    assert "\n" not in str(found.value)


def test_a_folder_without_files_names_both_layouts(tmp_path: Path) -> None:
    with pytest.raises(MissingFilesError, match=r"captions_val2017\.json.*dataset_flickr30k\.json"):
        evaluate(stub_for(write_coco(tmp_path / "coco_root"), "perfect"), tmp_path, TaskOptions())


def test_addresses_are_read_for_contamination(tmp_path: Path) -> None:
    write_coco(tmp_path)
    found = read_coco(tmp_path, 2, Problems())
    assert [image.urls for image in found.images] == [("http://f/70",), ("http://f/7",)]
    assert found.images[0] == ImageSource(path=tmp_path / "coco/val2017/000000000070.jpg")
    assert found.captions.count("caption 0 of 70") == 1


def test_pictures_are_named_by_their_path_below_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write_coco(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    result = evaluate(stub_for(content, "perfect"), Path("data"), TaskOptions())
    (first, *_) = result.details["coco"]["nearest captions"]  # type: ignore[index]
    assert first["image"].startswith("coco/val2017/")


OWN = {"b.png": ["a red bus", "a bus"], "sub/a.png": ["two owls"], "c.png": ["snow", "a hill in snow", "a bus"]}
"""Captions of the images of a set of one's own; one caption belongs to two images."""


def write_own(root: Path, kind: str) -> None:
    folder = root / "retrieval"
    folder.mkdir()
    for image in OWN:
        (folder / "mine" / image).parent.mkdir(parents=True, exist_ok=True)
        (folder / "mine" / image).touch()
    rows = [(image, caption) for image, captions in OWN.items() for caption in captions]
    rows = rows[1::2] + rows[::2]  # the captions of an image need not follow each other
    if kind == "csv":
        lines = "\n".join(f'"{caption}",{image},x' for image, caption in rows)
        (folder / "mine.csv").write_text(f"\ufeffcaption,image,more\n{lines}\n", encoding="utf-8")
    elif kind == "jsonl":
        (folder / "mine.jsonl").write_text("\n".join(json.dumps({"image": i, "caption": c}) for i, c in rows))
    else:
        images = [
            {
                "filepath": str(Path(image).parent),
                "filename": Path(image).name,
                "split": split,
                "sentences": [{"raw": c} for c in cs],
            }
            for image, cs, split in [*((i, cs, "test") for i, cs in OWN.items()), ("t.png", ["x"], "train")]
        ]
        (folder / "mine.json").write_text(json.dumps({"images": images}))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json"])
def test_a_set_of_ones_own_has_the_recall_of_a_loop(kind: str, tmp_path: Path) -> None:
    write_own(tmp_path, kind)
    generator = torch.Generator().manual_seed(3)
    texts = {text: torch.randn(16, generator=generator) for captions in OWN.values() for text in captions}
    images = {Path(image).name: torch.randn(16, generator=generator) for image in OWN}
    result = evaluate(Stub("clip", images, texts), tmp_path, TaskOptions())

    def score(image: str, text: str) -> float:
        return torch.cosine_similarity(images[Path(image).name], texts[text], dim=0).item()

    pairs = [(image, text) for image, captions in OWN.items() for text in captions]
    for k in (1, 5, 10):
        # ranks count against the model: a candidate at least as good as the best own one is before it
        found = [
            sum(score(other, text) >= score(image, text) for other in OWN if other != image) < k
            for image, text in pairs
        ]
        assert result.metrics[f"mine/text_to_image/recall@{k}"] == pytest.approx(sum(found) / len(found))
        hits = [
            sum(
                score(image, text) >= max(score(image, own) for own in captions)
                for other, text in pairs
                if other != image
            )
            < k
            for image, captions in OWN.items()
        ]
        assert result.metrics[f"mine/image_to_text/recall@{k}"] == pytest.approx(sum(hits) / len(hits))
    assert "papers" not in str(result.rules)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"image": "../x.png", "caption": "a"}, r"mine.jsonl, line 2: the image '../x.png' is not below"),
        ({"image": "/x.png", "caption": "a"}, "is not below"),
        ({"image": "x.png", "caption": " "}, "line 2 has no caption"),
        ({"image": "x.png", "text": "a"}, "'caption' is missing"),
    ],
)
def test_bad_rows_of_ones_own_set_are_named(row: dict[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "retrieval").mkdir()
    rows = [{"image": "b.png", "caption": "a bus"}, row, *({"image": "b.png", "caption": f"{i}"} for i in range(300))]
    (tmp_path / "retrieval" / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    problems = Problems()
    found = read_own(tmp_path / "retrieval" / "mine.jsonl", 0, problems)
    assert len(found.captions) == 301
    assert re.search(message, str(problems.malformed))


def test_lines_of_json_are_numbered_as_in_the_file_and_hold_every_character(tmp_path: Path) -> None:
    rows = [json.dumps({"image": "b.png", "caption": f"a\u2028bus {i}"}, ensure_ascii=False) for i in range(300)]
    (tmp_path / "mine.jsonl").write_text("\n".join(["", *rows[:4], "", "[7]", *rows[4:]]), encoding="utf-8")
    problems = Problems()
    found = read_own(tmp_path / "mine.jsonl", 0, problems)
    assert len(found.captions) == 300
    assert found.captions[0] == "a\u2028bus 0"
    assert [error.partition(";")[0] for error in problems.malformed.values()] == [
        f"{tmp_path / 'mine.jsonl'}, line 7 holds no JSON object"
    ]
