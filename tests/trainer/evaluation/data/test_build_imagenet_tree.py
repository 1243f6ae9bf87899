"""The builder of ImageNet's tree, on an invented data.noun and on WordNet where it is installed."""

from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from trainer.evaluation.data.build_imagenet_tree import (
    DATA_NOUN,
    build_tree,
    contract,
    main,
    read_classes,
    read_synsets,
)
from trainer.evaluation.metrics.hierarchy import TREE_FILE, read_tree

NOUNS = """\
  1 This line is a part of the license.
00000001 03 n 01 entity 0 001 ~ 00000002 n 0000 | all that exists
00000002 03 n 02 thing 0 object 1 001 @ 00000001 n 0000 | a thing
00000003 03 n 01 animal 0 001 @ 00000002 n 0000 | a living thing
00000004 05 n 01 cat 0 002 @ 00000003 n 0000 @ 00000002 n 0000 | a small animal
00000005 05 n 01 dog 0 003 @ 00000002 n 0000 @i 00000003 n 0000 ;c 00000001 n 0000 | another one
00000006 06 n 01 saw 0 001 @i 00000002 n 0000 | a tool
"""


def test_synsets_are_read_with_their_hypernyms(tmp_path: Path) -> None:
    (tmp_path / "data.noun").write_text(NOUNS, encoding="utf-8")
    synsets = read_synsets(tmp_path / "data.noun")
    assert synsets["n00000002"] == ("thing", ("n00000001",))
    assert synsets["n00000005"] == ("dog", ("n00000002", "n00000003"))
    assert synsets["n00000006"].hypernyms == ("n00000002",)


def test_longest_path_is_kept_and_nodes_with_one_child_are_contracted(tmp_path: Path) -> None:
    (tmp_path / "data.noun").write_text(NOUNS, encoding="utf-8")
    tree = build_tree(read_synsets(tmp_path / "data.noun"), ["n00000004", "n00000005", "n00000006"])
    # entity has the single child thing; both cat and dog have the longer path through animal.
    assert tree == {
        "n00000003": "n00000002",
        "n00000004": "n00000003",
        "n00000005": "n00000003",
        "n00000006": "n00000002",
    }


def test_classes_are_not_contracted() -> None:
    parents = {"b": "a", "c": "b", "d": "a"}
    assert contract(parents, frozenset("cd")) == {"c": "a", "d": "a"}
    assert contract(parents, frozenset("bcd")) == parents


def test_other_files_and_versions_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "data.noun"
    with pytest.raises(UserError, match=r"data\.noun cannot be read"):
        read_synsets(path)
    path.write_text("00000001 not a synset\n", encoding="utf-8")
    with pytest.raises(UserError, match="install wordnet-base"):
        read_synsets(path)
    path.write_text(NOUNS, encoding="utf-8")
    with pytest.raises(UserError, match="n09999999 and 0 other classes"):
        build_tree(read_synsets(path), ["n09999999"])


@pytest.mark.skipif(not DATA_NOUN.is_file(), reason="needs WordNet 3.0 (wordnet-base)")
def test_wordnet_gives_the_committed_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = tmp_path / "imagenet_tree.txt"
    monkeypatch.setattr("trainer.evaluation.data.build_imagenet_tree.TREE_FILE", built)
    main([])
    assert built.read_bytes() == TREE_FILE.read_bytes()
    assert build_tree(read_synsets(DATA_NOUN), read_classes()) == read_tree().parents
