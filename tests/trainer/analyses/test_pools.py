"""Pools of texts and images in the true schemas of their files."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.tasks.embedding import picture, small_embedder, write_shards
from trainer.analyses.pools import FLICKR_FILE, PEXELS_FILE, flickr_pool, held_out_pool, pexels_pool, read_pools
from trainer.evaluation.task import MissingFilesError


def write_pexels(root: Path, content: Any) -> Path:
    path = root / PEXELS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def row(name: str, caption: str, box: Any = (4, 8, 60, 50), spans: Any = ((2, 10),)) -> dict[str, Any]:
    image = base64.b64encode(picture(len(name), 80)).decode()
    return {"file_name": name, "caption": caption, "image": image, "annos": [{"bbox": box, "tokens_positive": spans}]}


def write_flickr(root: Path, *rows: dict[str, Any]) -> Path:
    path = root / FLICKR_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{number}\t{json.dumps(entry)}\n" for number, entry in enumerate(rows)))
    return path


def test_texts_of_pexels_have_the_prompts_of_the_released_code(tmp_path: Path) -> None:
    write_pexels(tmp_path, {"captions": ["a kite"], "nouns": ["kite", "sea", "kite"], "adjectives": ["red"]})
    embedder = small_embedder("meru", tmp_path)
    pool = pexels_pool(embedder, tmp_path, 0)
    assert pool.labels == ["a kite", "a photo of a kite.", "a photo of a sea.", "this photo is red."]
    torch.testing.assert_close(pool.lift(embedder), embedder.model.lift_text(embedder.texts(pool.labels)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"captions": [], "nouns": ["a"]}, "'adjectives' is missing"),
        ({"captions": [1], "nouns": [], "adjectives": []}, r"captions\[0\] is 1"),
        ({"captions": [], "nouns": [], "adjectives": []}, "has no texts"),
    ],
)
def test_a_malformed_file_of_pexels_is_an_error(tmp_path: Path, content: Any, message: str) -> None:
    path = write_pexels(tmp_path, content)
    with pytest.raises(UserError, match=message) as caught:
        pexels_pool(small_embedder("meru", tmp_path), tmp_path, 0)
    assert str(path) in str(caught.value)


def test_rows_of_flickr_share_the_image_of_their_file_and_have_crops_with_phrases(tmp_path: Path) -> None:
    write_flickr(
        tmp_path,
        row("7.jpg", "A red kite."),
        row("7.jpg", "A big kite flies.", spans=((2, 10), (0, 1))),
        row("eight.jpg", "A red kite.", box=(0, 0, 31, 32)),
    )
    embedder = small_embedder("hycoclip", tmp_path)
    pool = flickr_pool(embedder, tmp_path, 0)
    labels = ["A red kite.", "A big kite flies.", "red kite", "big kite"]
    assert pool.labels == [*labels, "[image: 7.jpg]", "[image: eight.jpg]", "[box: red kite]", "[box: big kite]"]
    assert pool.is_text.tolist() == [True] * 4 + [False] * 4
    assert pool.skipped["box below 32 x 32 px"] == 1
    assert pool.features[6].equal(pool.features[7]), "the same crop"
    assert not pool.features[4].equal(pool.features[6])
    points = pool.lift(embedder)
    torch.testing.assert_close(points[:4], embedder.model.lift_text(pool.features[:4]))
    torch.testing.assert_close(points[4:], embedder.model.lift_image(pool.features[4:]))


def test_unreadable_images_of_flickr_are_skipped_and_counted(tmp_path: Path) -> None:
    write_flickr(tmp_path, row("7.jpg", "A red kite."), row("8.jpg", "A sea.") | {"image": "AAAA"})
    pool = flickr_pool(small_embedder("hycoclip", tmp_path), tmp_path, 0)
    assert [label for label in pool.labels if label.startswith("[image")] == ["[image: 7.jpg]"]
    assert (pool.skipped["unreadable image"], pool.skipped["unreadable box"]) == (1, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"caption": None}, "line 2: 'caption' is missing"),
        ({"annos": [{"bbox": [1, 2, 3], "tokens_positive": [[0, 1]]}]}, r"annos\[0\] needs bbox of four numbers"),
        ({"annos": [{"bbox": [1, 2, 3, 4], "tokens_positive": []}]}, r"annos\[0\] needs bbox"),
    ],
)
def test_a_malformed_row_of_flickr_is_an_error_that_names_it(tmp_path: Path, change: Any, message: str) -> None:
    write_flickr(tmp_path, row("7.jpg", "A red kite."), row("8.jpg", "A sea.") | change)
    with pytest.raises(UserError, match=message):
        flickr_pool(small_embedder("clip", tmp_path), tmp_path, 0)


def test_a_row_that_is_no_json_is_an_error(tmp_path: Path) -> None:
    write_flickr(tmp_path, row("7.jpg", "A red kite.")).write_text("no tab\n")
    with pytest.raises(UserError, match=r"train-0000\.tsv: line 1, an id, a tab and an object, is not valid JSON"):
        flickr_pool(small_embedder("clip", tmp_path), tmp_path, 0)


def test_pools_that_are_missing_or_malformed_are_listed(tmp_path: Path) -> None:
    embedder = small_embedder("phyclip", tmp_path)
    with pytest.raises(MissingFilesError, match=r"pexels_text\.json.*train-0000\.tsv.*held_out/00000\.tar"):
        read_pools(embedder, tmp_path, 0)
    write_flickr(tmp_path, {"file_name": "7.jpg"})
    with pytest.raises(UserError, match=r"train-0000\.tsv: line 1: 'caption' is missing"):
        read_pools(embedder, tmp_path, 0)
    write_shards(tmp_path, n=3)
    found, problems = read_pools(embedder, tmp_path, 0)
    assert list(found) == ["held_out"]
    assert (list(problems.missing), list(problems.malformed)) == (["pexels"], ["flickr30k_grounded"])
    pool = held_out_pool(embedder, tmp_path, 0)
    assert pool.lift(embedder).shape == (2, len(pool.labels), 8)
    assert len(pool.labels) == 2 * 3 + 2 * 4
