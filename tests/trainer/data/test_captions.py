"""Samples with several captions, of which the loader draws one."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.errors import UserError
from tests.trainer.data.loading import assert_batches_equal, resumed, small_loader, take
from tests.trainer.data.samples import TOKENIZER, Files, pair_files, train_files, write_tar

NONE = frozenset[str]()
LISTED = [("caption", "aaa"), ("title", "bbb"), ("recaption", "ccc")]


def files(layout: str, **fields: Any) -> Files:
    """A sample with the captions of LISTED, each with its parse."""
    captions = [
        {"kind": kind, "text": text, "tokens": [{"start": 0, "end": 3, "head": 0, "dep": "ROOT"}]}
        for kind, text in LISTED
    ]
    values = {"caption": "aaa", "tokens": captions[0]["tokens"], "captions": captions, **fields}
    if layout == "train":
        return train_files(0) | {"child.txt": b"aaa", "json": json.dumps(values).encode()}
    return pair_files(0) | {"txt": b"aaa", "json": json.dumps(values).encode()}


def drawn(folder: Path, n: int, needs: frozenset[str] = NONE, **settings: Any) -> Counter[str]:
    batches = take(small_loader(folder, 1, needs, **settings), n)
    return Counter(TOKENIZER.decode(batch["text"].rows[0].tolist()).replace(" ", "") for batch in batches)


@pytest.mark.parametrize("layout", ["train", "pairs"])
def test_captions_are_drawn_by_the_weights_of_their_kinds(tmp_path: Path, layout: str) -> None:
    write_tar(tmp_path / "0.tar", [("a", files(layout))])
    assert drawn(tmp_path, 20) == {"aaa": 20}
    evenly = drawn(tmp_path, 300, captions="random")
    assert all(70 <= evenly[text] <= 130 for _, text in LISTED)
    weighted = drawn(tmp_path, 300, captions="random", caption_weights={"title": 0, "recaption": 3})
    assert weighted["bbb"] == 0
    assert 200 <= weighted["ccc"] <= 250
    assert drawn(tmp_path, 5, captions="random", caption_weights=dict.fromkeys(dict(LISTED), 0)) == {"aaa": 5}


def test_a_resumed_run_draws_the_captions_of_an_uninterrupted_one(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", [(f"{n}", files("train")) for n in range(7)])
    expected, first, second = (small_loader(tmp_path, captions="random") for _ in range(3))
    assert_batches_equal(take(resumed(first, 2, second), 4), take(expected, 6)[2:])


def test_a_drawn_caption_has_its_own_parse(tmp_path: Path) -> None:
    captions = [{"kind": "caption", "text": "aaa", "tokens": None}, {"kind": "title", "text": "b c", "tokens": [
        {"start": 0, "end": 1, "head": 1, "dep": "det"}, {"start": 2, "end": 3, "head": 1, "dep": "ROOT"}]}]  # fmt: skip
    write_tar(tmp_path / "0.tar", [("a", files("train", captions=captions))])
    (batch,) = take(small_loader(tmp_path, 1, frozenset({"parse"}), captions="random"), 1)
    assert TOKENIZER.decode(batch["text"].rows[0].tolist()).split() == ["b", "c"]  # the one without a parse is left out
    assert batch["text"].syntax is not None


def test_a_model_with_boxes_gets_the_caption_to_which_they_belong(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", [("a", files("train"))])
    assert drawn(tmp_path, 20, frozenset({"boxes"}), captions="random") == {"aaa": 20}


def test_captions_of_another_form_make_a_sample_bad(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", [("a", files("train", captions=[{"text": 3}]))])
    with pytest.raises(UserError, match="each must have kind and text"):
        small_loader(tmp_path, 1, NONE, captions="random")
