import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.text.tokenizer import Tokenizer, clean, openai_tokenizer, read_tokenizer, write_merges

DATA = Path(__file__).parents[2] / "parity" / "data"


@pytest.fixture(scope="module")
def openai() -> Tokenizer:
    return openai_tokenizer()


def test_openai_vocabulary_has_its_sizes_and_special_ids(openai: Tokenizer) -> None:
    assert (openai.vocab_size, openai.start_id, openai.end_id) == (49_408, 49_406, 49_407)


@pytest.mark.parametrize("name", ["clip", "phyclip"])
def test_captions_of_the_reference_get_its_ids(openai: Tokenizer, name: str) -> None:
    with np.load(DATA / f"{name}.npz") as table:
        meta = json.loads(str(table["meta_json"]))
    for kind, captions in meta["captions"].items():
        assert [openai.encode(caption) for caption in captions] == meta["token_ids"][kind]


def test_a_text_agrees_with_open_clips_tokenizer(openai: Tokenizer) -> None:
    from open_clip.tokenizer import SimpleTokenizer

    theirs = SimpleTokenizer()
    for text in (
        "aaaa bbbbb",
        "Don't! it's 2024, she'll",
        "naïve café — “quoted” &amp;amp; ﬁne",
        "日本語 😀🏽 \t x",
        "",
    ):
        assert openai.encode(text)[1:-1] == theirs.encode(clean(text).lower())


def test_a_long_text_is_cut_and_still_ends_in_end_of_text(openai: Tokenizer) -> None:
    ids = openai.encode("dog " * 200)
    cut = openai.cut(ids)
    assert len(ids) == 202
    assert cut == [*ids[:76], openai.end_id]


def test_a_batch_is_padded_to_its_longest_text_with_zeros(openai: Tokenizer) -> None:
    batch = openai(["a dog", "a dog and a cat"])
    assert batch.shape == (2, 7)
    assert batch[0].tolist() == [*openai.encode("a dog"), 0, 0, 0]


def test_the_text_of_a_special_token_is_only_text(openai: Tokenizer) -> None:
    assert openai.encode("a <|endoftext|> dog").count(openai.end_id) == 1


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=20))
def test_any_text_comes_back_up_to_spaces(text: str) -> None:
    tokenizer = Tokenizer([("a", "b"), ("ab", "c</w>")])
    expected = clean(text).lower()
    assert tokenizer.decode(tokenizer.encode(text)).replace(" ", "") == expected.replace(" ", "")


def test_merges_go_by_rank_and_not_from_left_to_right() -> None:
    tokenizer = Tokenizer([("b", "c</w>"), ("a", "b")])
    assert [tokenizer.pieces[index] for index in tokenizer.encode("abc")[1:-1]] == ["a", "bc</w>"]


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_merges_written_to_a_file_make_the_same_tokenizer(tmp_path: Path, suffix: str) -> None:
    tokenizer = Tokenizer([("d", "o"), ("do", "g</w>")])
    write_merges(tokenizer, tmp_path / "merges.txt")
    if suffix == ".txt.gz":
        (tmp_path / "merges.txt.gz").write_bytes(gzip.compress((tmp_path / "merges.txt").read_bytes()))
    assert read_tokenizer(tmp_path / f"merges{suffix}").encode("a dog") == tokenizer.encode("a dog")


def test_a_file_that_holds_no_merges_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "merges.txt").write_text("#merges\na b\nnot a merge\n")
    with pytest.raises(ValueError, match=r"merges.txt: line 3 .* not two pieces"):
        read_tokenizer(tmp_path / "merges.txt")
