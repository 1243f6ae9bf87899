"""Build imagenet_tree.txt from WordNet 3.0: `python -m trainer.evaluation.data.build_imagenet_tree [data.noun]`.

The 1,000 classes of ImageNet become the leaves of a tree of hypernyms, the one that HyCoCLIP (appendix C) and later
papers evaluate on:

1. Walk up from each class. A node with several hypernyms keeps the one with the longest path to the top, the first one
   if several are equally long. `HYPERNYMS` lists the exceptions.
2. Move the nodes of `MOVED` to other parents.
3. Contract the nodes that have a single child and are not classes.

The Debian package wordnet-base contains data.noun. The wnid of a synset is "n" and its offset in that file.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import timm

from hypergrit_common.errors import UserError
from trainer.evaluation.metrics.hierarchy import TREE_FILE

Parsed = TypeVar("Parsed")

DATA_NOUN: Final = Path("/usr/share/wordnet/data.noun")

HYPERNYMS: Final = {
    "n00019613": "n00020827",  # substance: matter
    "n04004767": "n04004475",  # printer: the machine
    "n03773504": "n04565375",  # missile: weapon
    "n06595351": "n06589574",  # magazine: publication
    "n04118021": "n03405265",  # rug: furnishing
    "n03876231": "n02730265",  # paintbrush: applicator
}
"""Hypernym of synsets whose hypernym in the tree is not the one with the longest path to the top."""
MOVED: Final = {
    "n06794110": "n04217882",  # street sign: signboard
    "n06874185": "n04217882",  # traffic light: signboard
    "n04149813": "n04217882",  # scoreboard: signboard
    "n09229709": "n00021939",  # bubble: artifact
}
"""Parents that are not hypernyms in WordNet."""
HEADER: Final = """\
# Tree of hypernyms over the 1,000 classes of ImageNet: child, parent and first lemma of the child; the root has no
# parent ("-"). Derived from WordNet 3.0, Copyright 2006 by Princeton University, by build_imagenet_tree.py; the license
# is in WORDNET_LICENSE.txt.
"""


class Synset(NamedTuple):
    """First lemma of a noun synset and its hypernyms: those of kinds (@), then those of instances (@i)."""

    lemma: str
    hypernyms: tuple[str, ...]


def read_synsets(path: Path) -> dict[str, Synset]:
    """Read the noun synsets of a WordNet 3.0 file data.noun, by wnid. Raises UserError for a file of another format.

    A line has the fields offset, file number, type, number of words (hexadecimal), word and id for each word, number of
    pointers, and symbol, offset, part of speech and source/target for each pointer.
    """

    def read(line: str) -> tuple[str, Synset]:
        fields = line.partition(" | ")[0].split()
        start = 5 + 2 * int(fields[3], 16)
        pointers = [fields[start + 4 * i : start + 4 * i + 3] for i in range(int(fields[start - 1]))]
        hypernyms = [f"n{offset}" for kind in ("@", "@i") for symbol, offset, _ in pointers if symbol == kind]
        return f"n{fields[0]}", Synset(fields[4], tuple(hypernyms))

    return dict(read_lines(path, read))


def read_lines(path: Path, read: Callable[[str], Parsed]) -> list[Parsed]:
    """The results of `read` for the lines of a file of WordNet except those of the license. Raises UserError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [read(line) for line in lines if not line.startswith("  ")]
    except (OSError, ValueError, IndexError) as error:
        raise UserError(f"{path} cannot be read as a file of WordNet 3.0 ({error}); install wordnet-base") from error


def read_classes() -> list[str]:
    """Wnids of the 1,000 classes in the order of their indices, from timm."""
    path = Path(timm.__file__).parent / "data" / "_info" / "imagenet_synsets.txt"
    return path.read_text(encoding="utf-8").split()


def build_tree(synsets: Mapping[str, Synset], classes: Sequence[str]) -> dict[str, str]:
    """Parent of each node of the tree over `classes`, except its root. Raises UserError if a class is not in WordNet."""
    missing = [name for name in classes if name not in synsets]
    if missing:
        raise UserError(
            f"{missing[0]} and {len(missing) - 1} other classes are not in data.noun; use that of WordNet 3.0"
        )

    @cache
    def height(node: str) -> int:
        """Length of the longest path to the top."""
        return max((1 + height(parent) for parent in synsets[node].hypernyms), default=0)

    parents: dict[str, str] = {}
    for name in classes:
        node = name
        while node not in parents and (hypernyms := synsets[node].hypernyms):
            # `max` keeps the first of equally long paths.
            parents[node] = MOVED.get(node) or HYPERNYMS.get(node) or max(hypernyms, key=height)
            node = parents[node]
    return contract(parents, frozenset(classes))


def contract(parents: Mapping[str, str], classes: frozenset[str]) -> dict[str, str]:
    """Remove each node that has a single child and is not a class; its child moves up to its parent."""
    parents = dict(parents)
    children: dict[str, set[str]] = defaultdict(set)
    for child, parent in parents.items():
        children[parent].add(child)
    for node in list(children):
        if node in classes or len(children[node]) != 1:
            continue
        (child,) = children.pop(node)
        if node not in parents:
            del parents[child]  # the child becomes the root
        else:
            parent = parents[child] = parents.pop(node)
            children[parent] = children[parent] - {node} | {child}
    return parents


def main(arguments: Sequence[str]) -> None:
    """Write the tree next to this script."""
    synsets = read_synsets(Path(arguments[0]) if arguments else DATA_NOUN)
    parents = build_tree(synsets, read_classes())
    nodes = sorted(parents.keys() | set(parents.values()))
    lines = [f"{node} {parents.get(node, '-')} {synsets[node].lemma}\n" for node in nodes]
    TREE_FILE.write_text(HEADER + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
