"""Tokenizers of transformers in the trainer: the same ids, and words aligned with tokens."""

import pickle
from pathlib import Path

import pytest
import transformers

from hypergrit_common.samples import Word
from tests.trainer.tiny_transformers import tiny_tokenizer
from trainer.data.subreddits import Segmenter
from trainer.text.fast_tokenizer import FastTokenizer, load_fast_tokenizer, read_fast_tokenizer, write_fast_tokenizer
from trainer.text.syntax import NONE, align

KINDS = ("bert", "t5", "clip_text_model")
TEXTS = ("", "cat", "The Dog of a box: 12, and ¿ more", "dog " * 30)


def tokenizer_of(kind: str, folder: Path, context_length: int = 12) -> FastTokenizer:
    tiny_tokenizer(kind, folder).save_pretrained(folder)
    return read_fast_tokenizer(folder, context_length)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_transformers_and_truncated_texts_keep_their_end(tmp_path: Path, kind: str) -> None:
    ours = tokenizer_of(kind, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
        truncated = theirs(text, truncation=True, max_length=12)["input_ids"]
        assert ours.truncate(ours.encode(text)) == truncated
    batch = ours(TEXTS)
    assert batch.shape == (4, 12)
    assert (batch[1, len(ours.encode("cat")) :] == ours.pad_id).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_padding_is_no_token_of_a_text(tmp_path: Path, kind: str) -> None:
    tokenizer = tokenizer_of(kind, tmp_path)
    assert tokenizer.pad_id not in [index for text in TEXTS for index in tokenizer.encode(text)]
    assert (tokenizer.pad_id == -1) is (kind == "clip_text_model")  # its padding token is its end of text


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_leaves_out_special_tokens_and_padding(tmp_path: Path, kind: str) -> None:
    tokenizer = tokenizer_of(kind, tmp_path)
    rows = tokenizer(["the dog of a box", "cat", ""])
    assert [tokenizer.decode(row) for row in rows.tolist()] == ["the dog of a box", "cat", ""]


def test_special_tokens_in_a_caption_are_text(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("bert", tmp_path)
    assert tokenizer.encode("cat [SEP] [PAD]").count(tokenizer.encode("")[-1]) == 1
    assert tokenizer.pad_id not in tokenizer.encode("[PAD]")


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickled_or_saved_tokenizer_gives_the_same_ids(tmp_path: Path, kind: str) -> None:
    tokenizer = tokenizer_of(kind, tmp_path / "in")
    write_fast_tokenizer(tokenizer, tmp_path / "tokenizer.json")
    for copy in (
        pickle.loads(pickle.dumps(tokenizer)),
        load_fast_tokenizer(tmp_path / "tokenizer.json", tokenizer.pad_id, 12),
    ):
        assert copy([*TEXTS, "[SEP]"]).equal(tokenizer([*TEXTS, "[SEP]"]))
        assert copy.definition == tokenizer.definition


def test_words_are_aligned_with_word_pieces(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("bert", tmp_path)
    words = [
        Word(start=0, end=4, head=1, dep="nsubj"),
        Word(start=5, end=9, head=1, dep="ROOT"),
        Word(start=10, end=50, head=1, dep="dobj"),
    ]
    ids, tree = align(tokenizer, "cats boxy " + "x" * 40, words)  # ca(t) ##s, box ##y, and one token for each x
    assert len(ids) == 12
    assert tree.word_of_token == (NONE, 0, 0, 1, 1, *([NONE] * 7))  # the third word does not fit
    assert tree.head == (1, 1)


def test_words_of_the_vocabulary_split_the_names_of_subreddits(tmp_path: Path) -> None:
    assert Segmenter(tokenizer_of("bert", tmp_path)).segment("catdogbox") == "cat dog box"


def test_files_that_are_no_tokenizer_are_errors(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(ValueError, match=r"tokenizer\.json: its definition holds no JSON object"):
        load_fast_tokenizer(tmp_path / "tokenizer.json", 0, 12)
    with pytest.raises(ValueError, match=r"tokenizer\.json holds no JSON object"):
        read_fast_tokenizer(tmp_path, 12)
