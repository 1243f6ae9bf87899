"""The builder of words.json, on WordNet where it is installed."""

import json
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from trainer.evaluation.data.build_imagenet_tree import DATA_NOUN
from trainer.evaluation.data.build_words import WORDS_FILE, build, read_counts, read_index


@pytest.mark.skipif(not DATA_NOUN.is_file(), reason="needs WordNet 3.0 (wordnet-base)")
def test_wordnet_gives_the_committed_words() -> None:
    assert build(DATA_NOUN.parent) == json.loads(WORDS_FILE.read_text(encoding="utf-8"))


def test_senses_and_counts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("  1 license\ndog n 2 3 @ ~ #m 2 1 02084071 10114209  \n")
    assert read_index(path) == {"dog": ["n02084071", "n10114209"]}
    path.write_text("dog%1:05:00:: 1 42\ndog%1:18:01:: 2 3\ndog%2:38:00:: 1 2\n")
    assert read_counts(path) == {"dog": 42}
    for read in (read_index, read_counts):
        path.write_text("nothing\n")
        with pytest.raises(UserError, match="install wordnet-base"):
            read(path)
