"""Build words.json from WordNet 3.0: `python -m trainer.evaluation.data.build_words [FOLDER]`.

The file holds the words of PHyCLIP's analyses, which the paper does not list: groups of frequent nouns, the closures of
the synsets of `GROUPS`, and the families of figure 5, whose edges lead from a word to its nearest hypernym in the family.

A word is in a group if the synset of its first sense in index.noun, whose first lemma it is, is below the group's. The
most frequent words are taken, by the counts of cntlist.rev, without those whose gloss calls them offensive. The Debian
package wordnet-base contains the files.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from typing import Any, Final

from hypergrit_common.errors import UserError
from trainer.evaluation.data.build_imagenet_tree import DATA_NOUN, Synset, read_lines, read_synsets

WORDS_FILE: Final = Path(__file__).with_name("words.json")
GROUPS: Final = {
    "physical entity": "n00001930",
    "abstraction": "n00002137",
    "living thing": "n00004258",
    "artifact": "n00021939",
    "event": "n00029378",
    "food": "n00021265",
    "location": "n00027167",
}
PER_GROUP: Final = 100
FAMILIES: Final = {
    "mammals": (
        *("animal", "mammal", "carnivore", "dog", "puppy", "corgi", "chihuahua", "poodle", "terrier", "bulldog"),
        *("cat", "kitten", "tiger", "lion", "leopard", "bear", "horse", "pony", "zebra", "cow", "sheep", "goat"),
        *("elephant", "monkey", "gorilla", "rabbit", "mouse", "squirrel"),
    ),
    "vehicles and everyday items": (
        *("vehicle", "car", "taxi", "limousine", "convertible", "truck", "pickup", "van", "bus", "bicycle"),
        *("motorcycle", "train", "boat", "ship", "airplane", "helicopter", "bag", "backpack", "handbag", "purse"),
        *("suitcase", "luggage", "umbrella", "watch", "helmet"),
    ),
}
ROOTS: Final = {"mammals": "n00015388", "vehicles and everyday items": "n00021939"}
"""Synset above all words of a family: animal, artifact. A word has its first sense below it."""


def ancestors(synsets: Mapping[str, Synset], name: str) -> list[str]:
    """The synset and those above it, nearest first."""
    found, layer = [name], [name]
    while layer := [parent for node in layer for parent in synsets[node].hypernyms if parent not in found]:
        found += list(dict.fromkeys(layer))
    return found


def read_index(path: Path) -> dict[str, list[str]]:
    """The synsets of each noun in index.noun, by rank of the sense.

    A line has the fields lemma, part of speech, number of synsets, number of pointers, their symbols, two counts and
    the offsets of the synsets. Raises UserError for a file of another format.
    """

    def read(line: str) -> tuple[str, list[str]]:
        fields = line.split()
        return fields[0], [f"n{offset}" for offset in fields[-int(fields[2]) :]]

    return dict(read_lines(path, read))


def read_counts(path: Path) -> Counter[str]:
    """Occurrences of each noun in its first sense, from lines `LEMMA%1:...:: SENSE COUNT`. Raises UserError."""

    def read(line: str) -> tuple[str, int]:
        key, sense, count = line.split()
        lemma, _, rest = key.partition("%")
        return lemma, int(count) if rest.startswith("1:") and sense == "1" else 0

    counts: Counter[str] = Counter()
    for lemma, n in read_lines(path, read):
        counts[lemma] += n
    return +counts


def read_offensive(path: Path) -> frozenset[str]:
    """The synsets of data.noun whose gloss marks a slur or an offensive term."""
    marks = re.compile(r"\b(slur|offensive|disparag\w*|derogat\w*|obscene)\b")
    lines = (line.partition(" | ") for line in path.read_text(encoding="utf-8").splitlines())
    return frozenset(f"n{line.split()[0]}" for line, _, gloss in lines if marks.search(gloss))


def build_groups(
    synsets: Mapping[str, Synset], index: Mapping[str, Sequence[str]], counts: Mapping[str, int], omit: Set[str]
) -> dict[str, list[str]]:
    """The most frequent words of each group, in alphabetical order, without those of the synsets `omit`."""
    above = cache(lambda name: frozenset(ancestors(synsets, name)))
    first = {word: index[word][0] for word in counts if word.isalpha() and word in index}
    # Names are left out: their lemmas are in upper case.
    words = [word for word, name in first.items() if synsets[name].lemma == word and name not in omit]
    words.sort(key=lambda word: (-counts[word], word))
    return {
        group: sorted([word for word in words if root in above(first[word]) - {first[word]}][:PER_GROUP])
        for group, root in GROUPS.items()
    }


def build_edges(synsets: Mapping[str, Synset], index: Mapping[str, Sequence[str]], family: str) -> list[list[str]]:
    """Edges (word, nearest hypernym) of a family; a word without a hypernym in the family has none.

    Raises UserError for a word without a sense below the root of the family.
    """
    sense = {}
    for word in FAMILIES[family]:
        below = [name for name in index.get(word, ()) if ROOTS[family] in ancestors(synsets, name)]
        if not below:
            raise UserError(f"{word} has no sense below {synsets[ROOTS[family]].lemma}; remove it from {family}")
        sense[word] = below[0]
    word_of = {name: word for word, name in reversed(sense.items())}
    edges = []
    for word, name in sense.items():
        parent = next((word_of[node] for node in ancestors(synsets, name)[1:] if node in word_of), None)
        if parent not in (None, word):
            edges.append([word, str(parent)])
    return edges


def build(folder: Path) -> dict[str, Any]:
    """The content of words.json from the files of WordNet in a folder."""
    synsets, index = read_synsets(folder / "data.noun"), read_index(folder / "index.noun")
    offensive = read_offensive(folder / "data.noun")
    return {
        "source": "WordNet 3.0, Copyright 2006 by Princeton University; WORDNET_LICENSE.txt",
        "groups": build_groups(synsets, index, read_counts(folder / "cntlist.rev"), offensive),
        "families": {
            name: {"words": list(words), "edges": build_edges(synsets, index, name)} for name, words in FAMILIES.items()
        },
    }


def main(arguments: Sequence[str]) -> None:
    """Write the file next to this script."""
    content = build(Path(arguments[0]) if arguments else DATA_NOUN.parent)
    WORDS_FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
