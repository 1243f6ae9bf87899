"""Labelled web texts, and trees that agree with their labels."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from spacy.language import Language
from spacy.tokens import Doc

from pipeline.stages.parse.lexicon import is_present_participle, is_third_person
from pipeline.stages.parse.normalise import normalise
from pipeline.stages.parse.recipe.trees import Tree, Word, tree_of

DATA: Final = Path(__file__).resolve().parents[4] / "tests" / "data"
TEXTS: Final = DATA / "web_texts.json"
"""Web texts in the format of tests/data/web_texts.md; only those of the split `dev` are learned from."""
PHOTOS: Final = DATA / "photo_captions.json"
"""Clean captions, which the parser rehearses."""
NOUN_LABELS: Final = ("nsubj", "dobj", "nsubjpass", "pcomp", "pobj", "dative", "appos", "attr", "ROOT", "conj")
"""Labels of the heads of spaCy's noun chunks."""
MODIFIERS: Final = {
    "DT": "det",
    "JJ": "amod",
    "CD": "nummod",
    "PRP$": "poss",
    "POS": "case",
    "VBN": "amod",
    "VBG": "amod",
}
"""Tag of a word in front of a noun -> its label; others are `compound`."""


class Goal(NamedTuple):
    """A labelled phrase of a segment: spans [start, end) of its words that are right, and ends of its expression."""

    spans: list[tuple[int, int]]
    ends: set[int]


def read_texts(path: Path, split: str) -> list[dict[str, Any]]:
    """Return the texts of a split of a file.

    Args:
        path: file with labelled texts.
        split: `all` for all of them.

    Returns:
        The texts with their labels.
    """
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["captions"]
    return [row for row in rows if split in ("all", row["split"])]


def accepted(phrase: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the spans of characters that are right for a labelled phrase.

    Args:
        phrase: a phrase of a labelled text.

    Returns:
        The spans, the preferred one first.
    """
    return [(phrase["start"], phrase["end"]), *((start, end) for start, end in phrase["alternatives"])]


def agreeing_trees(nlp: Language, teacher: Language, rows: Sequence[dict[str, Any]]) -> Iterator[Tree]:
    """Yield the trees of the segments of labelled texts, by `teacher`, changed to agree with the labels.

    `nlp` has the tokenizer of the stage.
    """
    for row in rows:
        caption = nlp.make_doc(row["text"])
        for segment in normalise(caption, row["text"])[0]:
            words, spaces = [token.text for token in segment.doc], [bool(token.whitespace_) for token in segment.doc]
            if len(words) > 1:
                place = {token: number for number, token in enumerate(segment.tokens)}
                goals = [goal for phrase in row["phrases"] if (goal := _goal(caption, place, phrase)).spans]
                tree = agreeing(teacher(Doc(teacher.vocab, words=words, spaces=spaces)), goals)
                if tree:
                    yield tree


def _goal(caption: Doc, place: dict[int, int], phrase: dict[str, Any]) -> Goal:
    """Return a labelled phrase as words of a segment; without spans if it is not in the segment."""
    spans, ends = [], set[int]()
    for start, end in accepted(phrase):
        span = caption.char_span(start, end)
        inside = [place.get(i) for i in range(span.start, span.end)] if span is not None else [None]
        if None not in inside and inside == list(range(inside[0] or 0, (inside[0] or 0) + len(inside))):
            spans.append((inside[0] or 0, (inside[-1] or 0) + 1))
    for _, end in (phrase["expression"], *phrase["expression_alternatives"]):
        last = caption.char_span(phrase["start"], end, alignment_mode="contract")
        if last is not None and last.end - 1 in place:
            ends.add(place[last.end - 1] + 1)
    return Goal(spans, ends)


def agreeing(doc: Doc, goals: Sequence[Goal]) -> Tree:
    """Return the tree of a parsed segment, changed so that its noun chunks are the labelled phrases."""
    tree, chunks = tree_of(doc), {(chunk.start, chunk.end) for chunk in doc.noun_chunks}
    for spans, _ in goals:
        if not chunks & set(spans):
            plain = [(a, b) for a, b in spans if not any(word.tag == "IN" for word in tree[a:b])]
            if not plain:
                return []
            _make_chunk(tree, *max(plain, key=lambda span: span[1] - span[0]))
    for spans, ends in goals:
        if not is_tree(tree):
            return []
        _describe(tree, max(b for _, b in spans), spans, ends)
    return tree if is_tree(tree) else []


def _make_chunk(tree: Tree, start: int, end: int) -> None:
    """Make the words [start, end) a noun chunk."""
    span = tree[start:end]
    nouns = [word for word in span if word.tag.startswith("NN")]
    noun = nouns[-1] if nouns else span[-1]
    if not nouns:
        noun.tag = "NN"
    top = noun
    while top.head is not top and top.head in span:
        top = top.head
    head, dep = (top.head, top.dep) if top.head is not top else (noun, "ROOT")
    for word in tree:
        if word in span and word is not noun:
            word.head, word.dep = noun, MODIFIERS.get(word.tag, "compound" if word.text[0].isalnum() else "punct")
        elif word.head in span and word is not noun:
            word.head = noun
    if head in span:
        head = noun
    after = tree[end] if end < len(tree) else None
    if head is after and after.tag.startswith("NN"):  # of a verb that was taken for the noun
        if is_present_participle(after.text.lower()):
            noun.head, noun.dep = (after.head, after.dep) if after.head is not after else (noun, "ROOT")
            after.tag, after.dep, after.head = "VBG", "acl", noun
            return
        if is_third_person(after.text.lower()):
            after.tag, noun.head, noun.dep = "VBZ", after, "nsubj"
            if after.head is not after:
                after.head, after.dep = after, "ROOT"
            return
    if head is not noun and tree.index(head) > tree.index(noun) and head.tag.startswith("NN"):
        noun.head, noun.dep = (head.head, head.dep) if head.head is not head else (noun, "ROOT")
        head.head, head.dep = noun, "appos"  # the words of the other noun behind the phrase describe it
    else:
        noun.head, noun.dep = head, dep
    if noun.dep not in NOUN_LABELS:
        is_item = start > 0 and tree[start - 1].tag in (",", "CC")
        kinds = {"I": "pobj", "V": "dobj", "N": "conj" if is_item else "appos"}
        noun.dep = "ROOT" if noun.head is noun else kinds.get(noun.head.tag[0], "appos")


def _describe(tree: Tree, end: int, spans: Sequence[tuple[int, int]], ends: set[int]) -> None:
    """Let the words from `end` to the end of the expression hang from the phrase, and none behind it."""
    inside = {i for start, stop in spans for i in range(start, stop)}
    noun = next(
        (
            tree[i]
            for i in sorted(inside, reverse=True)
            if tree.index(tree[i].head) not in inside or tree[i].head is tree[i]
        ),
        None,
    )
    if noun is None or not ends:
        return
    far = max(ends)
    if far > end and not _hangs(tree[end], noun):
        part = tree[end:far]
        for word in part:
            if word.head not in part and word.dep in ("prep", "acl", "ROOT", "relcl", "advcl", "amod", "nmod", "agent"):
                if word.head is word and (noun.head is word):
                    noun.head, noun.dep = noun, "ROOT"
                word.head = noun
                if word.dep in ("ROOT", "advcl"):
                    word.dep = "acl" if word.tag[0] == "V" else "appos"
    elif far <= end < len(tree) and tree[end].head is noun and tree[end].dep == "prep" and noun.head.tag[0] == "V":
        tree[end].head = noun.head


def _hangs(word: Word, noun: Word) -> bool:
    """True if a word is below a noun."""
    while word is not noun and word.head is not word:
        word = word.head
    return word is noun


def is_tree(words: Tree) -> bool:
    """True if the heads of words form trees whose arcs do not cross. A root is its own head."""
    heads = [words.index(word.head) for word in words]
    for i in range(len(heads)):
        seen, node = set[int](), i
        while heads[node] != node:
            if node in seen:
                return False
            seen.add(node)
            node = heads[node]
    arcs = [(min(i, head), max(i, head)) for i, head in enumerate(heads)]
    return not any(a < c < b < d for a, b in arcs for c, d in arcs)
