"""Decide which noun chunks of a parse are grounded, and expand them to referring expressions.

Follows GRIT (Kosmos-2, arXiv 2306.14824, section 2.1) and HyCoCLIP (appendix A): abstract nouns are removed, and each
remaining noun chunk is expanded along the dependency tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.parse.config import ParseConfig
from pipeline.parse.types import Chunk, RefExp, Token
from pipeline.parse.word_lists import ABSTRACT, CONCRETE, RELATIONAL, SIGNS

NOUNS: Final = frozenset({"NOUN", "PROPN"})
"""Parts of speech of nouns."""
CONJUNCTS: Final = frozenset({"conj", "cc"})
"""Dependency labels that an expression does not extend across."""
EDGE_MARKS: Final = frozenset({"PUNCT", "SPACE"})
"""Parts of speech that are removed from the ends of an expression, except for CLOSING marks."""
CLOSING: Final = frozenset("\"')]}”’»")


@dataclass(frozen=True, kw_only=True)
class PhraseRules:
    """Rules that decide which noun chunks are removed.

    `keep` overrides all other word lists; a chunk without a noun is removed in any case.
    """

    abstract: frozenset[str]
    suffixes: tuple[str, ...]
    keep: frozenset[str]

    @classmethod
    def from_config(cls, config: ParseConfig) -> "PhraseRules":
        """Combine the word lists of this project with the additions and exceptions of `config`."""
        return cls(
            abstract=ABSTRACT | {word.lower() for word in config.extra_abstract},
            suffixes=tuple(config.abstract_suffixes),
            keep=frozenset(word.lower() for word in config.keep),
        )

    def removal(self, tokens: Sequence[Token], first: int, root: int) -> str | None:
        """Return why a noun chunk is removed (schemas.status.PHRASE_REMOVALS), or None if it is grounded.

        The chunk consists of the tokens `first` to `root`; `root` is its head noun.
        """
        lemma = tokens[root].lemma.lower()
        next_lemma = tokens[root + 1].lemma.lower() if root + 1 < len(tokens) else ""
        if all(token.pos not in NOUNS for token in tokens[first : root + 1]):
            return "pronoun"
        if lemma in self.keep:
            return None
        if lemma in RELATIONAL:
            return "relational"
        if lemma in self.abstract or (lemma in SIGNS and next_lemma == "of"):
            return "abstract"
        if lemma.endswith(self.suffixes) and lemma not in CONCRETE:
            return "abstract"
        return None


def referring_expressions(
    caption: str, tokens: Sequence[Token], chunks: Sequence[Chunk], token_spans: Sequence[tuple[int, int]]
) -> list[RefExp]:
    """Return the referring expression of each noun chunk that is not removed.

    The expression is the noun chunk together with the adjacent tokens that descend from its root in the dependency
    tree, without punctuation at its ends. Conjuncts (`conj`, `cc`) are not followed: in "a dog with a ball and a cat"
    the cat does not describe the dog. `token_spans` holds the token range [first, end) of each chunk.
    """
    children: list[list[int]] = [[] for _ in tokens]
    for index, token in enumerate(tokens):
        if token.head != index:
            children[token.head].append(index)
    found: list[tuple[int, int, int]] = []
    for number, (chunk, (first, end)) in enumerate(zip(chunks, token_spans, strict=True)):
        if chunk.removed is None:
            low, high = _expand(caption, tokens, children, chunk.root, first, end)
            found.append((number, tokens[low].start, tokens[high - 1].end))
    return mark_maximal(found)


def _expand(
    caption: str, tokens: Sequence[Token], children: Sequence[Sequence[int]], root: int, first: int, end: int
) -> tuple[int, int]:
    """Extend the token range [first, end) on both sides by adjacent descendants of `root`."""
    inside, pending = set(range(first, end)), [root]
    while pending:
        followed = [child for child in children[pending.pop()] if tokens[child].dep not in CONJUNCTS]
        inside.update(followed)
        pending += followed
    low, high = first, end
    while low - 1 in inside:
        low -= 1
    while high in inside:
        high += 1
    while low < first and _is_edge_mark(caption, tokens[low]):
        low += 1
    while high > end and _is_edge_mark(caption, tokens[high - 1]):
        high -= 1
    return low, high


def mark_maximal(expressions: Sequence[tuple[int, int, int]]) -> list[RefExp]:
    """Convert (chunk, start, end) to RefExp; `is_maximal` is false for an expression that lies inside another one.

    Of several expressions with the same span, the first one is maximal.
    """
    # Sorted like this, a span lies inside an earlier one exactly if one of them ends at its end or behind it.
    order = sorted(range(len(expressions)), key=lambda i: (expressions[i][1], -expressions[i][2], i))
    is_maximal = [False] * len(expressions)
    furthest = -1
    for i in order:
        end = expressions[i][2]
        is_maximal[i] = end > furthest
        furthest = max(furthest, end)
    return [RefExp(chunk, start, end, is_maximal[i]) for i, (chunk, start, end) in enumerate(expressions)]


def _is_edge_mark(caption: str, token: Token) -> bool:
    """True for white space and punctuation to remove from the ends of an expression."""
    return token.pos in EDGE_MARKS and caption[token.start : token.end] not in CLOSING
