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


def test_openai_vocabulary_has_the_expected_size_and_special_ids(openai: Tokenizer) -> None:
    assert (openai.vocab_size, openai.start_id, openai.end_id) == (49_408, 49_406, 49_407)


@pytest.mark.parametrize("name", ["clip", "phyclip"])
def test_ids_equal_those_of_the_reference(openai: Tokenizer, name: str) -> None:
    with np.load(DATA / f"{name}.npz") as table:
        meta = json.loads(str(table["meta_json"]))
    for kind, captions in meta["captions"].items():
        assert [openai.encode(caption) for caption in captions] == meta["token_ids"][kind]


def test_ids_equal_those_of_open_clips_tokenizer(openai: Tokenizer) -> None:
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


def test_truncated_text_ends_with_end_of_text(openai: Tokenizer) -> None:
    ids = openai.encode("dog " * 200)
    truncated = openai.truncate(ids)
    assert len(ids) == 202
    assert truncated == [*ids[:76], openai.end_id]


def test_batch_is_padded_with_zeros_to_its_longest_text(openai: Tokenizer) -> None:
    batch = openai(["a dog", "a dog and a cat"])
    assert batch.shape == (2, 7)
    assert batch[0].tolist() == [*openai.encode("a dog"), 0, 0, 0]


def test_text_of_a_special_token_is_encoded_as_text(openai: Tokenizer) -> None:
    assert openai.encode("a <|endoftext|> dog").count(openai.end_id) == 1


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=20))
def test_decoding_restores_any_text_except_spaces(text: str) -> None:
    tokenizer = Tokenizer([("a", "b"), ("ab", "c</w>")])
    expected = clean(text).lower()
    assert tokenizer.decode(tokenizer.encode(text)).replace(" ", "") == expected.replace(" ", "")


def test_merges_are_applied_by_rank() -> None:
    tokenizer = Tokenizer([("b", "c</w>"), ("a", "b")])
    assert [tokenizer.pieces[index] for index in tokenizer.encode("abc")[1:-1]] == ["a", "bc</w>"]


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_tokenizer_read_from_written_merges_is_equal(tmp_path: Path, suffix: str) -> None:
    tokenizer = Tokenizer([("d", "o"), ("do", "g</w>")])
    write_merges(tokenizer, tmp_path / "merges.txt")
    if suffix == ".txt.gz":
        (tmp_path / "merges.txt.gz").write_bytes(gzip.compress((tmp_path / "merges.txt").read_bytes()))
    assert read_tokenizer(tmp_path / f"merges{suffix}").encode("a dog") == tokenizer.encode("a dog")


def test_invalid_merges_file_raises_an_error_with_path_and_line(tmp_path: Path) -> None:
    (tmp_path / "merges.txt").write_text("#merges\na b\nnot a merge\n")
    with pytest.raises(ValueError, match=r"merges.txt: line 3 is 'not a merge'; expected two pieces"):
        read_tokenizer(tmp_path / "merges.txt")


def test_a_single_string_is_one_text(openai: Tokenizer) -> None:
    assert openai("a cat").tolist() == openai(["a cat"]).tolist()
