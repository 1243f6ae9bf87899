"""Tests of the alignment of words and tokens: one test per special case, then arbitrary Unicode text."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data._utils.pin_memory import pin_memory

from hypergrit_common.samples import Word, read_words
from trainer.batch import Batch, Stream
from trainer.text.syntax import NONE, RELATIONS, WordTree, align, collate_trees, largest_overlap
from trainer.text.tokenizer import openai_tokenizer

OPENAI = openai_tokenizer()


def words_at(*spans: tuple[int, int]) -> list[Word]:
    """Words with these spans, each a child of the one before."""
    return [Word(start=a, end=b, head=max(i - 1, 0), dep="dep") for i, (a, b) in enumerate(spans)]


def split_as(caption: str, *words: str) -> list[Word]:
    """Words with these texts, which follow each other in the caption."""
    spans, offset = [], 0
    for word in words:
        start = caption.index(word, offset)
        offset = start + len(word)
        spans.append((start, offset))
    return words_at(*spans)


def tokens_of(caption: str, *words: str) -> dict[str, list[str]]:
    """The tokens of each word, as text."""
    ids, tree = align(OPENAI, caption, split_as(caption, *words))
    assert ids == OPENAI.encode(caption)
    assert len(tree.word_of_token) == len(ids)
    pieces: dict[str, list[str]] = {word: [] for word in words}
    for index, owner in zip(ids, tree.word_of_token, strict=True):
        if owner != NONE:
            pieces[words[owner]].append(OPENAI.pieces[index].removesuffix("</w>"))
    return pieces


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("I don't run", {"I": ["i"], "do": ["don"], "n't": ["'t"], "run": ["run"]}),  # the larger overlap
        ("she'll cannot", {"she": ["she"], "'ll": ["'ll"], "can": ["cannot"], "not": []}),
        ("a \ufb01ne \ufb02ower", {"a": ["a"], "\ufb01ne": ["fine"], "\ufb02ower": ["flower"]}),  # split ligatures
        (  # unescaped entities
            "salt &amp;amp; pepper &lt;3",
            {"salt": ["salt"], "&amp;amp;": ["&"], "pepper": ["pepper"], "&lt;3": ["<", "3"]},
        ),
        # repaired mojibake; the vocabulary represents the bytes of é by these characters
        ("cafÃ© table", {"cafÃ©": ["cafÃ©"], "table": ["table"]}),
    ],
)
def test_a_word_has_the_tokens_of_its_characters_whatever_cleaning_changes(
    caption: str, expected: dict[str, list[str]]
) -> None:
    assert tokens_of(caption, *expected) == expected


@pytest.mark.parametrize(
    ("caption", "words", "least"),
    [
        ("dog 🐕‍🦺 runs", ("🐕‍🦺", "runs"), 2),
        ("🇩🇪🇫🇷 flags", ("🇩🇪", "🇫🇷", "flags"), 1),
        ("cafe\u0301 table", ("cafe\u0301", "table"), 1),  # combining marks
        ("z\u0335\u0336a\u0337lgo dog", ("z\u0335\u0336a\u0337lgo", "dog"), 4),
        ("\ufffd \U000e0041 dog \u200b\ue000", ("\ufffd", "dog"), 1),  # unknown characters
        ("İİİİ İzmir by night", ("İİİİ", "İzmir", "by", "night"), 4),  # which are longer in lower case
    ],
)
def test_an_unusual_word_has_the_tokens_of_its_bytes_and_the_last_one_keeps_its_own(
    caption: str, words: tuple[str, ...], least: int
) -> None:
    pieces = tokens_of(caption, *words)
    assert len(pieces[words[0]]) >= least
    assert all(pieces.values())
    assert pieces[words[-1]] == [words[-1]]


def test_empty_words_and_white_space_have_no_tokens_and_no_edges() -> None:
    words = words_at((0, 1), (1, 2), (2, 2), (2, 5))
    _, tree = align(OPENAI, "a\tdog", words)
    assert tree.word_of_token == (NONE, 0, 1, NONE)
    assert tree.head == (0, 1), "dog's head was the empty word"


@pytest.mark.parametrize("caption", ["", " ", "\u2028\t "])
def test_caption_of_white_space_has_no_words(caption: str) -> None:
    ids, tree = align(OPENAI, caption, words_at((0, len(caption))) if caption else [])
    assert len(ids) == 2
    assert tree.word_of_token == (NONE, NONE)
    assert tree.head == tree.relation == ()
    assert collate_trees([tree]).head.shape == (1, 0)


def test_words_beyond_77_tokens_are_dropped_with_their_edges() -> None:
    caption = " ".join(["dog"] * 100)
    ids, tree = align(OPENAI, caption, words_at(*[(4 * i, 4 * i + 3) for i in range(100)]))
    assert len(ids) == len(tree.word_of_token) == 77
    assert tree.word_of_token == (NONE, *range(75), NONE)
    assert tree.head == (0, *range(74))


def test_partly_truncated_word_is_dropped() -> None:
    caption = " ".join(["dog"] * 74) + " qwxzqwxz"
    start = len(caption) - len("qwxzqwxz")
    words = words_at(*[(4 * i, 4 * i + 3) for i in range(74)], (start, len(caption)))
    assert len(OPENAI.encode(caption)) > 77
    _, tree = align(OPENAI, caption, words)
    assert len(tree.head) == 74
    assert tree.word_of_token[75:] == (NONE, NONE)


def test_word_with_a_truncated_head_has_no_edge() -> None:
    caption = " ".join(["dog"] * 100)
    words = [Word(start=4 * i, end=4 * i + 3, head=99, dep="dep") for i in range(100)]
    _, tree = align(OPENAI, caption, words)
    assert tree.head == tuple(range(75))


def test_relation_ids_match_their_labels_and_unknown_labels_become_other() -> None:
    caption = "two cats"
    words = [Word(start=0, end=3, head=1, dep="nummod"), Word(start=4, end=8, head=1, dep="flat:foreign")]
    _, tree = align(OPENAI, caption, words)
    assert [RELATIONS[index] for index in tree.relation] == ["nummod", "other"]


@settings(max_examples=300, deadline=None)
@given(
    st.text(
        alphabet=st.one_of(
            st.characters(codec="utf-8"),
            st.sampled_from("aBİIß&;amp#x20 \u0301\u200d'’-😀ﬁΣÃ©<>/wéDž\u0345ŉ1٣"),
        ),
        max_size=40,
    ),
    st.data(),
)
def test_offsets_of_any_text_are_sorted_and_inside_the_text(text: str, data: st.DataObject) -> None:
    ids, spans = OPENAI.encode_with_offsets(text)
    assert ids == OPENAI.encode(text)
    assert len(spans) == len(ids)
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert sorted(spans, key=lambda span: span[0]) == spans
    boundaries = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)) | {0, len(text)})
    words = words_at(*pairwise(boundaries))
    chosen = largest_overlap(spans, words)
    for (start, end), owner in zip(spans, chosen, strict=True):
        shared = [max(0, min(end, word.end) - max(start, word.start)) for word in words]
        assert owner == (shared.index(max(shared)) if max(shared, default=0) > 0 else NONE)
    truncated, tree = align(OPENAI, text, words)
    assert len(tree.word_of_token) == len(truncated)
    assert set(tree.word_of_token) - {NONE} == set(range(len(tree.head)))
    assert all(0 <= head < len(tree.head) for head in tree.head)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ({"start": 0, "end": 3, "head": 0}, "no 'dep'"),
        ({"start": 0, "end": 3, "head": 1, "dep": "ROOT"}, "but there are 1 words"),
        ({"start": 0, "end": 9, "head": 0, "dep": "ROOT"}, "in a caption of 3 characters"),
        ({"start": 2, "end": 1, "head": 0, "dep": "ROOT"}, "not a parse of this caption"),
        ({"start": "0", "end": 3, "head": 0, "dep": "ROOT"}, "must be integers"),
        ({"start": True, "end": 3, "head": 0, "dep": "ROOT"}, "must be integers"),
    ],
)
def test_invalid_parse_raises_an_error_with_the_index_of_the_word(token: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=rf"tokens\[0\].*{message}"):
        read_words([token], "dog")


def test_overlapping_words_raise_an_error() -> None:
    token = {"start": 0, "end": 3, "head": 0, "dep": "ROOT"}
    with pytest.raises(ValueError, match=r"tokens\[1\]"):
        read_words([token, token], "dog")


def test_collated_trees_are_padded_with_one_row_per_caption() -> None:
    trees = [align(OPENAI, text, split_as(text, *text.split()))[1] for text in ("a dog", "two cats chase a dog")]
    syntax = collate_trees(trees)
    assert syntax.word_of_token.tolist()[0] == [NONE, 0, 1, NONE, NONE, NONE, NONE]
    assert syntax.head.tolist() == [[0, 0, NONE, NONE, NONE], [0, 0, 1, 2, 3]]
    assert syntax.map(lambda tensor: tensor[1:]).head.tolist() == [[0, 0, 1, 2, 3]]


def test_the_tensors_of_a_batch_are_pinned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[Tensor] = []

    def pin(self: Tensor) -> Tensor:  # the real one needs a GPU
        pinned.append(self)
        return self.clone()

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    syntax = collate_trees([WordTree(word_of_token=(0, 1), head=(0, 0), relation=(0, 2))])
    captions, phrases, owner = torch.zeros(1, 2), torch.ones(1, 2), torch.zeros(1, dtype=torch.int64)
    streams = {"text": Stream(captions, "text", owner, syntax=syntax), "box_text": Stream(phrases, "text", owner)}
    (found,) = pin_memory((Batch(streams=streams),))  # what a DataLoader does with a batch
    own = [captions, owner, *(getattr(syntax, name) for name in ("word_of_token", "head", "relation")), phrases]
    assert [id(tensor) for tensor in pinned] == [id(tensor) for tensor in own]
    assert found["text"].owner is found["box_text"].owner is not owner
    assert found["text"].syntax is not None
    assert torch.equal(found["text"].syntax.head, syntax.head)
