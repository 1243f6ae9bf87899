"""Dependency trees of clean captions, rewritten as the web writes.

A clean caption has a tree that a larger parser finds without trouble. The same words as a title, in capitals, without
articles, or with a participle in place of a verb have nearly the same tree, which parsers do not find.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

CASES: Final = ("title", "title", "title", "upper", "lower", "sentence", "sentence", "none")
SMALL: Final = frozenset(["a", "an", "the", "of", "in", "on", "and", "with", "at", "to", "for", "by", "or", "from"])
"""Words that titles mostly leave in lower case."""
NO_SPACE: Final = frozenset(".,)!?:;'") | {"'s", "n't"}
"""Tokens without a space in front."""


@dataclass(eq=False)
class Word:
    """A word of a tree; that of the root is its own head."""

    text: str
    tag: str
    dep: str
    head: Any = None

    def __post_init__(self) -> None:
        self.head = self.head or self


Tree = list[Word]


def tree_of(doc: Doc) -> Tree:
    """Return the tree of a parsed document."""
    words = [Word(token.text, token.tag_, token.dep_) for token in doc]
    for word, token in zip(words, doc, strict=True):
        word.head = words[token.head.i]
    return words


def example(nlp: Language, tree: Tree) -> Example:
    """Return a tree as a text to parse, with its solution."""
    words = [word.text for word in tree]
    spaces = [after.lower() not in NO_SPACE for after in words[1:]] + [False]
    solution = Doc(
        nlp.vocab,
        words=words,
        spaces=spaces,
        tags=[word.tag for word in tree],
        deps=[word.dep for word in tree],
        heads=[tree.index(word.head) for word in tree],
    )
    return Example(Doc(nlp.vocab, words=words, spaces=spaces), solution)


def children(tree: Tree, head: Word) -> Tree:
    """Return the words that hang from a word."""
    return [word for word in tree if word.head is head and word is not head]


def without(tree: Tree, gone: Sequence[Word]) -> Tree:
    """Return a tree without some words, whose children hang from their heads."""
    for word in tree:
        while word.head in gone and word.head.head is not word.head:
            word.head = word.head.head
    return [word for word in tree if word not in gone]


# Captions rewritten as the web writes.


def rewritten(tree: Tree, random: Random) -> Tree:
    """Return a tree of the same things in the style of a web text."""
    tree = with_participle(tree, keeps_auxiliary=random.random() < 0.3)
    if random.random() < 0.7:
        share = random.choice((1, 1, 0.5))
        articles = [word for word in tree if word.tag == "DT" and word.text.lower() in ("a", "an", "the")]
        tree = without(tree, [word for word in articles if not children(tree, word) and random.random() < share])
    if random.random() < 0.7 and len(tree) > 1 and tree[-1].text == "." and not children(tree, tree[-1]):
        tree = tree[:-1]
    return in_case(tree, random.choice(CASES), random)


def with_participle(tree: Tree, keeps_auxiliary: bool) -> Tree:
    """Return "A man riding a horse" for "A man is riding a horse": the participle describes the noun, which is the root.

    The parser's own mistake, a noun as the subject of a participle without an auxiliary, is corrected in the same way.
    """
    verb = next((word for word in tree if word.dep == "ROOT" and word.tag in ("VBG", "VBN")), None)
    if verb is None:
        return tree
    below = children(tree, verb)
    subjects = [word for word in below if word.dep in ("nsubj", "nsubjpass")]
    auxiliaries = [word for word in below if word.dep in ("aux", "auxpass")]
    is_first = all(word in subjects or word in auxiliaries for word in below if tree.index(word) < tree.index(verb))
    if len(subjects) != 1 or not subjects[0].tag.startswith("NN") or not is_first or (auxiliaries and keeps_auxiliary):
        return tree
    noun = subjects[0]
    if below[-1].dep == "punct":
        below[-1].head = noun
    noun.dep, noun.head, verb.dep, verb.head = "ROOT", noun, "acl", noun
    return without(tree, auxiliaries)


def in_case(tree: Tree, case: str, random: Random) -> Tree:
    """Write the words of a tree as a title, in capitals, in lower case, or the first one with a capital letter."""
    for i, word in enumerate(tree):
        is_small = word.text.lower() in SMALL and i > 0 and random.random() > 0.15
        if case == "upper":
            word.text = word.text.upper()
        elif case == "lower":
            word.text = word.text.lower()
        elif (case == "title" and not is_small) or (case == "sentence" and i == 0):
            word.text = word.text[:1].upper() + word.text[1:]
    return tree
