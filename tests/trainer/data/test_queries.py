"""The queries of a caption, and their rows in a batch."""

import traceback
from pathlib import Path

import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.data.loading import small_loader, take
from tests.trainer.data.samples import TOKENIZER, train_files, write_tar
from trainer.data.config import DataConfig
from trainer.data.text_streams import (
    BOX_WEIGHT,
    CAPTION,
    PHRASE_WEIGHT,
    SENTENCE_WEIGHT,
    STREAMS,
    TextRow,
    Texts,
    TextStream,
    checked_rows,
    find_queries,
)

CAPTION_TEXT = "A dog runs. It chases a red  ball near the old tree; then it sleeps."


def test_sentences_come_first_then_phrases_of_boxes_then_parts_below_the_first_sentence() -> None:
    found = find_queries(CAPTION_TEXT, ["a dog", "A DOG", "a red ball"], most=30)
    assert found[:5] == [
        TextRow("A dog runs.", SENTENCE_WEIGHT, CAPTION),
        TextRow("It chases a red ball near the old tree;", SENTENCE_WEIGHT, CAPTION),
        TextRow("then it sleeps.", SENTENCE_WEIGHT, CAPTION),
        TextRow("a dog", BOX_WEIGHT, CAPTION),
        TextRow("a red ball", BOX_WEIGHT, CAPTION),
    ]
    assert found[5:] == [
        TextRow("A dog runs It chases a red ball", PHRASE_WEIGHT, 0),
        TextRow("the old tree", PHRASE_WEIGHT, 0),
        TextRow("then it sleeps", PHRASE_WEIGHT, 0),
    ]
    assert find_queries(CAPTION_TEXT, ["a dog"], most=2) == found[:2]


def test_a_caption_of_one_sentence_has_no_sentence_and_its_parts_stand_below_it() -> None:
    assert find_queries("a cat on a sofa, with two cups", ["a cat on a sofa, with two cups", "ox"], most=5) == [
        TextRow("a cat on a sofa", PHRASE_WEIGHT, CAPTION),
        TextRow("two cups", PHRASE_WEIGHT, CAPTION),
    ]
    assert find_queries("ox", [], most=5) == []


def test_a_long_part_becomes_windows_of_six_words_four_apart() -> None:
    words = [f"w{i}" for i in range(11)]
    texts = [query.text for query in find_queries(" ".join(words), [], most=9)]
    assert texts == [" ".join(words[:6]), " ".join(words[4:10]), " ".join(words[8:])]


def test_a_batch_has_the_queries_of_its_pairs_with_their_owners_and_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DataConfig, "max_queries", 3)
    captions = ["One is red. Two is blue.", "ox"]
    samples = [(f"{i}", train_files(i, n_boxes=2 - 2 * i) | {"child.txt": c.encode()}) for i, c in enumerate(captions)]
    write_tar(
        tmp_path / "00000.tar", [(key, {k: v for k, v in files.items() if k != "json"}) for key, files in samples]
    )
    loader = small_loader(tmp_path, batch=2, needs=frozenset({"queries"}))
    (batch,) = take(loader, 1)
    stream, first = batch["queries"], [key.endswith("/0") for key in batch.keys].index(True)
    texts = ["one is red .", "two is blue .", "one is red two is blue"]  # as the tokenizer splits them
    assert [TOKENIZER.decode(row) for row in stream.rows.tolist()] == texts
    assert stream.owner is not None
    assert stream.owner.tolist() == [first] * 3
    assert stream.parent is not None
    assert stream.parent.tolist() == [CAPTION, CAPTION, 0]
    assert stream.weight is not None
    assert stream.weight.tolist() == [1.0, 1.0, 0.5]
    assert stream.chain == 3


def test_a_batch_without_queries_has_an_empty_stream(tmp_path: Path) -> None:
    files = [(f"{i}", {"child.txt": b"ox"}) for i in range(2)]
    plain = [(key, train_files(1, 0, with_json=False) | text) for key, text in files]
    write_tar(tmp_path / "00000.tar", plain)
    (batch,) = take(small_loader(tmp_path, batch=2, needs=frozenset({"queries"})), 1)
    stream = batch["queries"]
    assert stream.rows.shape == (0, 1)
    assert stream.owner is not None
    assert stream.owner.dtype == torch.int64


def test_a_stream_that_a_model_registers_has_its_rows_and_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def words(texts: Texts) -> list[TextRow]:
        return [TextRow(word, parent=number - 1) for number, word in enumerate(texts.caption.split()[:2])]

    monkeypatch.setitem(STREAMS, "words", TextStream(words, ("parent",)))
    write_tar(tmp_path / "00000.tar", [(f"{i}", train_files(1, 0) | {"child.txt": b"ox cat"}) for i in range(2)])
    (batch,) = take(small_loader(tmp_path, batch=2, needs=frozenset({"words"})), 1)
    stream = batch["words"]
    assert [TOKENIZER.decode(row) for row in stream.rows.tolist()] == ["ox", "cat"] * 2
    assert stream.owner is not None
    assert stream.owner.tolist() == [0, 0, 1, 1]
    assert stream.parent is not None
    assert stream.parent.tolist() == [CAPTION, 0, CAPTION, 2]
    assert stream.weight is None


def nothing_right(texts: Texts) -> list[TextRow]:
    raise RuntimeError(f"no row for {texts.caption[:0]!r}")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_function_of_a_stream_is_shown_with_the_name_of_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setitem(STREAMS, "wrong", TextStream(nothing_right))
    write_tar(tmp_path / "00000.tar", [(f"{i}", train_files(1, 0)) for i in range(2)])
    with pytest.raises(RuntimeError, match="no row for ''") as error:
        take(small_loader(tmp_path, batch=2, needs=frozenset({"wrong"}), workers=workers), 1)
    shown = "".join(traceback.format_exception(error.value))
    assert "in nothing_right" in shown
    assert "The function of the stream wrong raised this" in shown


def test_a_text_is_a_row_of_a_stream_and_other_values_are_explained() -> None:
    texts = Texts("ox cat", [], [])
    assert checked_rows("words", lambda texts: texts.caption.split(), texts) == [TextRow("ox"), TextRow("cat")]
    for wrong in ("ox cat", [1], [("ox", 1.0)]):
        with pytest.raises(UserError, match=r"the function of the stream words gave .* a list of TextRow or of texts"):
            checked_rows("words", lambda _, wrong=wrong: wrong, texts)
