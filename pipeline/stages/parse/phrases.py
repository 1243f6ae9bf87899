"""Decide which noun phrases are grounded, and expand them to referring expressions.

Follows GRIT (Kosmos-2, arXiv 2306.14824, section 2.1) and HyCoCLIP (appendix A): abstract nouns are removed, and each
remaining noun phrase is expanded along the dependency tree. docs/phrases.md explains where the rules differ.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Final, NamedTuple

from pipeline.stages.captions import GivenBox, Span, move_span
from pipeline.stages.parse.chunks import (
    ABSTRACT,
    AGENCIES,
    ALPHANUMERIC,
    ANIMATE,
    ATTACHED,
    BODY,
    CALENDAR,
    COMPOUND_OBJECTS,
    CONCRETE,
    CREDITS,
    GARMENTS,
    NOUNS,
    OBJECTS_BEFORE_OF,
    PARTS,
    PICTURES,
    PLACES,
    POSITIONS,
    RELATIONAL,
    SIGNS,
    STANDING,
    SUFFIXES,
    SURFACES,
    NounPhrase,
    singular,
)
from pipeline.stages.parse.config import ParseConfig, Rules
from pipeline.stages.parse.types import Chunk, RefExp, Token

CONJUNCTS: Final = frozenset({"conj", "cc"})
"""Dependency labels that an expression does not extend across."""
SUBJECTS: Final = frozenset({"nsubj", "nsubjpass", "nsubj:pass", "expl"})
"""Labels of a subject. A conjunct with a subject of its own begins another clause."""
EDGE_MARKS: Final = frozenset({"PUNCT", "SPACE", "CCONJ"})
"""Parts of speech that are removed from the ends of an expression, except for CLOSING marks."""
BEFORE_PICTURES: Final = frozenset({"with", "of", "on", "at", "by", "beside", "near", "to"})
"""Prepositions before a picture that is an object: "next to a picture"."""
CLOSING: Final = frozenset("\"')]}”’»")


@dataclass(frozen=True, kw_only=True)
class PhraseRules:
    """Rules that decide which noun phrases are removed.

    `keep` overrides all other word lists; a phrase without a noun is removed in any case. `uses_context`
    enables the rules that look at other words than the head noun. Without `is_english`, the English lists do not apply,
    only those of the fields.
    """

    abstract: frozenset[str]
    keep: frozenset[str]
    uses_context: bool = True
    is_english: bool = True

    @classmethod
    def from_config(cls, config: ParseConfig, rules: Rules, is_english: bool = True) -> "PhraseRules":
        """Combine the word lists of this project, which are English, with the additions and exceptions of `config`."""
        return cls(
            abstract=(ABSTRACT if is_english else frozenset()) | {word.lower() for word in config.extra_abstract},
            keep=frozenset(word.lower() for word in config.keep),
            uses_context=rules.filter_by_context,
            is_english=is_english,
        )

    def removal(self, words: Sequence[str], tokens: Sequence[Token], phrase: NounPhrase) -> str | None:
        """Return why a noun phrase is removed (schemas.status.PHRASE_REMOVALS), or None if it is grounded.

        `words` are the lower-case texts of `tokens`.
        """
        first, end, root, _ = phrase
        if all(token.pos not in NOUNS for token in tokens[first:end]) and tokens[root].pos != "ADJ":
            return "pronoun"
        if not self.is_english:
            lemma = tokens[root].lemma.lower()
            return "abstract" if lemma in self.abstract and lemma not in self.keep else None
        names = {tokens[root].lemma.lower(), singular(tokens[root])}
        following = tokens[end].lemma.lower() if end < len(tokens) else ""
        if names & self.keep:
            return None
        if self.uses_context and _is_credit(words, tokens, phrase):
            return "credit"
        if names & RELATIONAL and not (self.uses_context and _is_object(words, tokens, phrase, names)):
            return "relational"
        is_name = tokens[root].pos == "PROPN"
        if names & CALENDAR or (is_name and names & {"march", "may"}) or (names & SIGNS and following == "of"):
            return "abstract"
        if names & self.abstract and not (self.uses_context and _is_compound_object(tokens, phrase, names, following)):
            return "abstract"
        if not (is_name and self.uses_context) and not names & CONCRETE:
            return "abstract" if any(name.endswith(SUFFIXES) for name in names) else None
        return None


def _is_object(words: Sequence[str], tokens: Sequence[Token], phrase: NounPhrase, names: set[str]) -> bool:
    """True if a relational noun names an object or a part of one, rather than a position or the picture itself."""
    first, end, root, top = phrase
    if top != root:  # "a stack of pictures"
        return first > 0
    modifiers = range(first, root)
    following = words[end] if end < len(words) else ""
    if names & BODY and any(tokens[i].tag == "PRP$" for i in modifiers):
        return True
    if names & PARTS and first < root and following == "of":
        return True
    if names & GARMENTS:
        return following != "of" and any(
            tokens[i].pos in ("ADJ", "NOUN", "PROPN") and words[i] not in POSITIONS for i in modifiers
        )
    if names & PICTURES and _has_place(words, tokens, phrase):
        return True
    if names & PICTURES and first > 0:
        before = words[tokens[root].head] if tokens[root].dep == "pobj" else ""
        return tokens[root].dep in ("dobj", "conj") or before in BEFORE_PICTURES
    return False


def _has_place(words: Sequence[str], tokens: Sequence[Token], phrase: NounPhrase) -> bool:
    """True if a picture hangs, is attached or stands somewhere: "a painting hangs", "a photo on the wall".

    The picture itself, "a photo of a horse", has no place: what follows "of" may stand somewhere.
    """
    _, end, root, _ = phrase
    if end == len(tokens):
        return False
    following, head = words[end], tokens[root].head
    if tokens[end].head == root and tokens[end].lemma.lower() in ATTACHED:
        return True
    if tokens[root].dep in SUBJECTS:
        verb = tokens[head].lemma.lower()
        is_located = any(words[i] in PLACES for i in range(head + 1, len(tokens)) if tokens[i].head == head)
        return verb in ATTACHED or (following != "of" and verb in STANDING and is_located)
    return following in PLACES and any(
        tokens[i].head == end and tokens[i].dep == "pobj" and singular(tokens[i]) in SURFACES
        for i in range(end + 1, len(tokens))
    )


def _is_compound_object(tokens: Sequence[Token], phrase: NounPhrase, names: set[str], following: str) -> bool:
    """True if an abstract noun names an object with the noun before or after it: "a parking lot", "a game of chess"."""
    if following == "of":
        return bool(names & OBJECTS_BEFORE_OF)
    if "number" in names and tokens[phrase.root].tag == "NNS":
        return True  # "a bib with numbers"
    return bool(names & COMPOUND_OBJECTS and phrase.root > phrase.first and tokens[phrase.root - 1].pos in NOUNS)


def _is_credit(words: Sequence[str], tokens: Sequence[Token], phrase: NounPhrase) -> bool:
    """True if a phrase names the author, owner or agency of the picture."""
    first, end, root, _ = phrase
    if words[root] in AGENCIES or any(words[i] in AGENCIES for i in range(first, end) if tokens[i].pos == "PROPN"):
        return True
    if tokens[root].pos != "PROPN" or first < 2:
        return "©" in words[max(0, first - 2) : end]
    before = words[first - 1]
    if before in ("by", ":", "of", "via"):
        return words[first - 2] in (CREDITS if before != "of" else ("courtesy",)) or "©" in words[first - 2 : first]
    return "©" in words[first - 2 : end]


class Sentence(NamedTuple):
    """A parsed caption: lower-case words, tokens, the children of each token, and the lemmas of people and animals."""

    words: Sequence[str]
    tokens: Sequence[Token]
    children: Sequence[Sequence[int]]
    animate: frozenset[str]


def referring_expressions(
    words: Sequence[str],
    tokens: Sequence[Token],
    chunks: Sequence[Chunk],
    phrases: Sequence[NounPhrase],
    inner_conjuncts: bool = True,
    animate: frozenset[str] = ANIMATE,
) -> list[RefExp]:
    """Return the referring expression of each noun phrase that is not removed.

    The expression is the phrase together with the adjacent tokens after it that descend from its top in the dependency
    tree, without punctuation at its end. Conjuncts (`conj`, `cc`) of the head are not followed, as in GRIT; those of
    its descendants are followed if `inner_conjuncts` is set and they describe the head (`_describes`). `words` are the
    lower-case texts of `tokens`; `animate` are lemmas of people and animals, none for another language.
    """
    children: list[list[int]] = [[] for _ in tokens]
    for index, token in enumerate(tokens):
        if token.head != index:
            children[token.head].append(index)
    sentence = Sentence(words, tokens, children, animate)
    found: list[tuple[int, int, int]] = []
    for number, (chunk, phrase) in enumerate(zip(chunks, phrases, strict=True)):
        if chunk.removed is None:
            end = _expand(sentence, phrase, inner_conjuncts)
            found.append((number, chunk.start, chunk.end if end == phrase.end else tokens[end - 1].end))
    return mark_maximal(found)


def _expand(sentence: Sentence, phrase: NounPhrase, inner_conjuncts: bool) -> int:
    """Return the end of the tokens of a phrase and the adjacent descendants of its top."""
    words, tokens, children, _ = sentence
    first, end, root, top = phrase
    inside, pending = {*range(first, end), top}, [top]
    while pending:
        node = pending.pop()
        followed = [child for child in children[node] if tokens[child].dep not in CONJUNCTS]
        if inner_conjuncts:
            describes = _describes_head if node in (root, top) else _describes
            conjuncts = [c for c in children[node] if tokens[c].dep == "conj" and describes(sentence, c)]
            # A conjunction is a child of the word before it, or of the conjunct (Universal Dependencies).
            last = max(conjuncts, default=node if tokens[node].dep == "conj" else -1)
            followed += conjuncts
            followed += [child for child in children[node] if tokens[child].dep == "cc" and child < last]
        inside.update(followed)
        pending += followed
    high = end
    while high in inside:
        high += 1
    while high > end and _is_edge_mark(words, tokens, high - 1):
        high -= 1
    return high


def _describes(sentence: Sentence, conjunct: int) -> bool:
    """True if a conjunct inside an expression describes its head noun.

    Someone after "and" rarely describes it after a thing: "a dog with a ball and a cat". A conjunct with a subject of
    its own begins another clause.
    """
    _, tokens, children, animate = sentence
    token = tokens[conjunct]
    if any(tokens[child].dep in SUBJECTS for child in children[conjunct]):
        return False
    is_someone = token.pos in NOUNS and token.lemma.lower() in animate
    return not is_someone or tokens[token.head].lemma.lower() in animate


def _describes_head(sentence: Sentence, conjunct: int) -> bool:
    """True if the parser took a thing on someone for a conjunct of that person: "a woman with glasses and a scarf".

    Such a thing follows a preposition that names what someone wears or has.
    """
    words, tokens, children, animate = sentence
    head = tokens[conjunct].head
    has = any(words[i] in ("with", "in", "wearing", "holding") for i in children[head] if head < i < conjunct)
    is_thing = tokens[conjunct].pos == "NOUN" and tokens[conjunct].lemma.lower() not in animate
    return has and is_thing and tokens[head].lemma.lower() in animate


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


def _is_edge_mark(words: Sequence[str], tokens: Sequence[Token], index: int) -> bool:
    """True for white space, marks and conjunctions to remove from the ends of an expression."""
    return words[index] not in CLOSING and (tokens[index].pos in EDGE_MARKS or not ALPHANUMERIC.search(words[index]))


# Phrases of GRIT rows, whose noun chunks, referring expressions and boxes are given in the input.
#
# The given spans count characters of the original caption. Cleaning may change the caption, so the spans are moved to
# the cleaned one.

Box = tuple[float, float, float, float, float]
"""x_min, y_min, x_max, y_max and score."""


@dataclass(frozen=True, kw_only=True)
class GivenPhrases:
    """The phrases of a GRIT row, in the cleaned caption."""

    chunks: list[Chunk]
    ref_exps: list[RefExp]
    given_chunks: list[int]
    """Index in `chunks` of each given box, -1 if its phrase was not found."""


def given_phrases(
    original: str,
    caption: str,
    given_chunks: Sequence[GivenBox],
    given_ref_exps: Sequence[GivenBox],
    tokens: Sequence[Token],
) -> GivenPhrases:
    """Return the noun chunks and referring expressions of a GRIT row, and the noun chunk of each given box.

    GRIT lists noun chunks and expressions separately. An expression belongs to a chunk if it has the same box and
    score and contains the chunk; a chunk without one is its own expression. Chunks that are not found in the cleaned
    caption are skipped.
    """
    moved = cache(partial(move_span, original, caption))
    ref_exps: dict[Box, list[Span]] = {}  # by box and score, in their order
    for given in given_ref_exps:
        if (found := moved(given["start"], given["end"])) is not None:
            ref_exps.setdefault(_box(given), []).append(found)
    expressions: dict[Span, Span] = {}
    chunk_spans: list[Span | None] = []
    for given in given_chunks:
        span = moved(given["start"], given["end"])
        chunk_spans.append(span)
        if span is not None and span not in expressions:
            candidates = dict.fromkeys(ref_exps.get(_box(given), ()))
            expressions[span] = next((e for e in candidates if e[0] <= span[0] and span[1] <= e[1]), span)
    spans = sorted(expressions)
    index = {span: number for number, span in enumerate(spans)}
    return GivenPhrases(
        chunks=[Chunk(start, end, _root(tokens, start, end), None) for start, end in spans],
        ref_exps=mark_maximal([(number, *expressions[span]) for number, span in enumerate(spans)]),
        given_chunks=[-1 if span is None else index[span] for span in chunk_spans],
    )


def _box(given: GivenBox) -> Box:
    x_min, y_min, x_max, y_max, score = (given[name] for name in ("x_min", "y_min", "x_max", "y_max", "score"))
    return x_min, y_min, x_max, y_max, score


def _root(tokens: Sequence[Token], start: int, end: int) -> int:
    """Return the last token of the span whose head lies outside it, or -1 if no token overlaps the span."""
    first = bisect_right(tokens, start, key=lambda token: token.end)
    last = bisect_left(tokens, end, key=lambda token: token.start)
    outside = (i for i in reversed(range(first, last)) if tokens[i].head == i or not first <= tokens[i].head < last)
    return next(outside, -1)
