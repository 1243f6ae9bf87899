"""From a dependency parse to phrases: which noun chunks can be pointed at, and their referring expressions.

The rules of GRIT (Kosmos-2, arXiv 2306.14824, section 2.1; HyCoCLIP, appendix A): abstract nouns go, the rest is expanded along
the tree. Both papers name a few examples only, so the lists are ours. They hold lemmas in lower case.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ABSTRACT: Final = _words(
    """
    ability absence access accident action addition admiration advantage adventure advice affection afternoon age aim amount anger
    answer anxiety approach aspect attempt attention attitude autumn awe balance battle beauty beginning behavior behaviour belief
    bit bliss bravery care case cause century chance change chaos charm choice circumstance clarity comfort comparison compassion
    concept concern condition confidence contrast control courage creation culture curiosity danger darkness date dawn day deal
    death decade decision degree delight democracy depression desire despair detail development difference difficulty direction
    discovery discussion dream dusk duty ease economy education effect effort elegance emotion end energy entertainment
    envy era essence eternity evening event evil evolution example excellence excitement existence experience expression fact
    failure faith fame fashion fate favor favour fear feature feeling fortune freedom friendship fun future generation glory good
    grace gratitude greatness greed grief growth guilt happiness harmony hate hatred health help history holiday honesty honor
    honour hope hour idea imagination importance impression independence influence information innocence inspiration instance
    intelligence interest issue jealousy journey joy joyfulness justice kind kindness knowledge lack language law length level
    liberty life lifestyle logic loss lot love loyalty luck magic majority manner matter meaning means memory mercy
    method midnight mind minute misery mix mixture moment mood month morning motion music mystery nature need night noon
    nostalgia number opinion opportunity option order pain past patience peace perfection period permission perspective
    philosophy place pleasure plenty point policy politics possibility poverty power present pride principle privacy problem process
    progress promise purpose quality quantity question reality reason relation relationship relief religion
    respect responsibility result revenge rhythm right risk romance sadness safety sake science search season second security sense
    serenity shame sight significance silence simplicity situation size skill sleep solitude solution sorrow sort soul sound space
    speed spirit spring standard state status step story strength stress style success summer surprise symbol sympathy technology
    tenderness tension term theme theory thought time today tomorrow tonight topic touch tradition tranquility trouble trust truth
    type unity use value variety version victory view virtue vision warmth way weather week weekend will winter wisdom wish wonder
    work world worry year yesterday youth
    """
)
RELATIONAL: Final = _words(
    """
    angle back background beneath bottom center centre close-up closeup corner direction distance drawing edge end foreground front half
    illustration image inside left middle outside painting part photo photograph photography pic picture portion portrait rear
    rendering right scene screenshot section shot side sketch snapshot surroundings thumbnail top view wallpaper
    """
)
CONCRETE: Final = _words(
    """
    harness witness lioness governess wilderness baroness fortress city university cavity deity celebrity facility community
    charity amenity nativity prism organism mechanism ship airship battleship flagship gunship spaceship starship
    steamship warship township hood neighborhood neighbourhood robinhood apartment armament attachment basement
    battlement casement cement compartment department document easement element embankment equipment escarpment establishment
    filament fragment garment implement instrument ligament monument ornament parchment pavement pigment regiment
    sediment segment settlement supplement tenement vestment kingdom condom stadium
    """
)
"""Words with such a suffix that one can point at."""
SIGNS: Final = frozenset({"sign", "mark", "trace", "hint", "glimpse", "symbol"})
"""Abstract only before "of" (a sign of hope, but a stop sign)."""

NOUNS: Final = frozenset({"NOUN", "PROPN"})
CONJUNCTS: Final = frozenset({"conj", "cc"})
EDGE_MARKS: Final = frozenset({"PUNCT", "SPACE"})
CLOSING: Final = frozenset("\"')]}”’»")

Token = tuple[int, int, int, str, str, str, str]  # schemas.rows.TOKEN: start, end, head, dep, pos, tag, lemma
Chunk = tuple[int, int, int, str | None]  # schemas.rows.CHUNK: start, end, root, removed
RefExp = tuple[int, int, int, bool]  # schemas.rows.REF_EXP: chunk, start, end, is_maximal


@dataclass(frozen=True, kw_only=True)
class PhraseRules:
    """The lists in force; `keep` wins over all of them."""

    abstract: frozenset[str]
    suffixes: tuple[str, ...]
    keep: frozenset[str]

    def removal(self, tokens: Sequence[Token], first: int, root: int) -> str | None:
        """Why the chunk that starts at token `first` and ends with its head `root` is not grounded (PHRASE_REMOVALS), or None."""
        lemma, next_lemma = tokens[root][6].lower(), tokens[root + 1][6].lower() if root + 1 < len(tokens) else ""
        if all(token[4] not in NOUNS for token in tokens[first : root + 1]):
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
    caption: str, tokens: Sequence[Token], chunks: Sequence[Chunk], spans: Sequence[tuple[int, int]]
) -> list[RefExp]:
    """The referring expression of each chunk that was not removed; `spans` are the chunks' tokens, [first, end).

    From the chunk's head we go down the dependency tree, but not into conjuncts (conj, cc): in "a dog with a ball and a cat" the cat is
    not said of the dog. The expression is the chunk and the tokens found that adjoin it without a gap, without punctuation at
    its ends.
    """
    children: list[list[int]] = [[] for _ in tokens]
    for index, token in enumerate(tokens):
        if token[2] != index:
            children[token[2]].append(index)
    found: list[tuple[int, int, int]] = []
    for number, ((_, _, root, removed), (first, end)) in enumerate(zip(chunks, spans, strict=True)):
        if removed is not None:
            continue
        inside, waiting = set(range(first, end)), [root]
        while waiting:
            inner = [child for child in children[waiting.pop()] if tokens[child][3] not in CONJUNCTS]
            inside.update(inner)
            waiting += inner
        low, high = first, end
        while low - 1 in inside:
            low -= 1
        while high in inside:
            high += 1
        while low < first and _is_mark(caption, tokens[low]):
            low += 1
        while high > end and _is_mark(caption, tokens[high - 1]):
            high -= 1
        found.append((number, tokens[low][0], tokens[high - 1][1]))
    return mark_maximal(found)


def mark_maximal(expressions: Sequence[tuple[int, int, int]]) -> list[RefExp]:
    """Expressions (chunk, start, end) with a flag: true unless inside another one; of equal ones the first is maximal."""
    spans = [(start, end) for _, start, end in expressions]

    def is_maximal(i: int) -> bool:
        start, end = spans[i]
        return not any(
            a <= start and end <= b and ((a, b) != (start, end) or j < i) for j, (a, b) in enumerate(spans) if j != i
        )

    return [(chunk, start, end, is_maximal(i)) for i, (chunk, start, end) in enumerate(expressions)]


def _is_mark(caption: str, token: Token) -> bool:
    """True for what does not belong at the edge of a phrase: punctuation other than closing quotes and brackets."""
    return token[4] in EDGE_MARKS and caption[token[0] : token[1]] not in CLOSING
