"""Noun phrases from the noun chunks of spaCy, with repairs of what its English models often get wrong.

The rules and what each of them gains are explained in docs/phrases.md.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import regex
from spacy.tokens import Span

from pipeline.parse.types import Token
from pipeline.parse.word_lists import (
    ALWAYS_NOUNS,
    ANIMATE,
    COLLECTIVES,
    DEPICTION_MODIFIERS,
    DEPICTIONS,
    ING_NOUNS,
    NAME_VERBS,
    PARTITIVES,
    PLURAL_MODIFIERS,
    PLURAL_WORDS,
    QUANTITIES,
)

NOUNS: Final = frozenset({"NOUN", "PROPN"})
"""Parts of speech of nouns."""
SINGULAR_NOUNS: Final = frozenset({"NN", "NNP"})
PLURAL_NOUNS: Final = frozenset({"NNS", "NNPS"})
SINGULAR_DETERMINERS: Final = frozenset({"a", "an", "one", "another", "this", "that", "each", "every"})
DETERMINERS: Final = SINGULAR_DETERMINERS | {"the", "his", "her", "its", "their"}
MODIFIERS: Final = frozenset({"det", "amod", "poss", "compound", "nummod", "nmod"})
"""Labels of words that belong to the phrase of the noun after them."""
JOINED: Final = frozenset({"amod", "compound", "nmod", "npadvmod", "dep"})
"""Labels of a noun right after its head that in truth is the head: "a wire" + "hanger"."""
UNCHUNKED: Final = frozenset(
    {"npadvmod", "conj", "appos", "dep", "nmod", "compound", "acl", "advcl", "ccomp", "advmod"}
)
"""Labels of nouns that spaCy leaves out of its noun chunks if it took them, or the word before "and", for adverbs."""
DOERS: Final = ANIMATE - {"adult", "baby", "female", "infant", "male", "teen"}
"""People and animals whose names are no adjectives."""
ARTICLES: Final = frozenset({"a", "an", "the", "some", "two", "three", "four", "five", "six", "his", "her", "their"})
MEASURES: Final = frozenset({"bit", "foot", "inch", "meter", "metre", "mile", "lot", "way", "side", "year", "time"})
"""Nouns whose phrases are adverbs indeed: "a bit higher", "two feet tall"."""
POSITION_WORDS: Final = frozenset({"far", "upper", "lower", "top", "bottom", "very", "extreme", "immediate"})
"""Adjectives of "left" and "right" as nouns: "the far left of the picture"."""
EDGE: Final = re.compile(r"[^\W_]|[$€£#@&%°]")
"""Character that a phrase can start with."""
LAST: Final = re.compile(r"[^\W_]|[.'’%°+)\]]")
"""Character that a phrase can end with."""
ALPHANUMERIC: Final = re.compile(r"[^\W_]")
LETTER: Final = regex.compile(r"\p{L}")
SEPARATOR: Final = re.compile(r"\||--|\s-\s|–|—|:\s")
"""Text that no phrase contains."""
SEPARATOR_OR_QUOTE: Final = re.compile(SEPARATOR.pattern + r'|(?<![\d½¼¾])"')
"""The same, and quotation marks that are not inches."""
GRAPHEME: Final = regex.compile(r"\X")


class NounPhrase(NamedTuple):
    """A noun chunk as the tokens [first, end).

    `root` is its head noun: of "a group of people", the people. The referring expression is built from the
    descendants of `top`, which differs from `root` in collectives and where the parser mistook a verb for the head.
    """

    first: int
    end: int
    root: int
    top: int


def plain_phrases(chunks: Iterable[Span], offset: int) -> list[NounPhrase]:
    """Return noun chunks of spaCy as they are, with `offset` added to the indices of tokens."""
    found = []
    for chunk in chunks:
        root = offset + chunk.root.i
        found.append(NounPhrase(offset + chunk.start, offset + chunk.end, root, root))
    return found


def without_last_marks(words: Sequence[str], phrase: NounPhrase) -> NounPhrase:
    """Remove marks at the end that the parser took for the head noun."""
    last = phrase.end - 1
    while last > phrase.first and not ALPHANUMERIC.search(words[last]):
        last -= 1
    if phrase.root <= last:
        return phrase._replace(end=last + 1)
    return NounPhrase(phrase.first, last + 1, last, last)


def repair(words: Sequence[str], tokens: Sequence[Token], phrases: Sequence[NounPhrase]) -> list[NounPhrase]:
    """Repair the ends of noun phrases. `words` are the lower-case texts of `tokens`.

    A noun right after the chunk joins it ("a wire hanger"); verbs ("a disk smiles"), "left" and "right" before "of",
    and words for the picture itself ("skyline photo") leave it; two phrases in one chunk are separated, and a noun in
    front of a verb that the parser took for its modifier becomes a phrase.
    """
    starts = {phrase.first for phrase in phrases}
    found: list[NounPhrase] = []
    position = 0
    for phrase in phrases:
        if phrase.first < position:
            continue
        found += _between(words, tokens, position, phrase.first)
        for part in _divide(words, tokens, _join_noun(words, tokens, phrase, starts)):
            while True:
                shorter = _without_verb(words, tokens, part, starts)
                if shorter == part:
                    break
                part = shorter
            found.append(_without_depiction(tokens, part))
            position = part.end
    return found + _between(words, tokens, position, len(tokens))


def _between(words: Sequence[str], tokens: Sequence[Token], start: int, end: int) -> list[NounPhrase]:
    """Return the phrases in [start, end), which no noun chunk covers: nouns before verbs, and nouns with an article."""
    if end - start < 2:
        return []
    verbal = _before_verbs(tokens, start, end)
    covered = {i for phrase in verbal for i in range(phrase.first, phrase.end)}
    return sorted(verbal + _with_articles(words, tokens, start, end, covered))


def _with_articles(
    words: Sequence[str], tokens: Sequence[Token], start: int, end: int, covered: set[int]
) -> list[NounPhrase]:
    """Return the phrases of nouns that the parser took for adverbs: "a cup" + "higher up than"."""
    found = []
    for root in range(start, end):
        token = tokens[root]
        if token.pos not in NOUNS or token.dep not in UNCHUNKED or root in covered:
            continue
        first = root
        while first > start and tokens[first - 1].head == root and tokens[first - 1].dep in MODIFIERS:
            first -= 1
        if first < root and words[first] in ARTICLES and singular(token) not in MEASURES:
            found.append(NounPhrase(first, root + 1, root, root))
    return found


def _before_verbs(tokens: Sequence[Token], start: int, end: int) -> list[NounPhrase]:
    """Return the phrases in [start, end) whose noun modifies the verb after it: "an elderly couple" + "walking"."""
    found = []
    for root in range(start, end):
        token = tokens[root]
        verb = token.head
        is_noun = token.pos == "NOUN" or (token.dep in ("amod", "compound") and token.pos == "ADJ")
        if verb != root + 1 or not is_noun or tokens[verb].tag not in ("VBG", "VBZ"):
            continue
        first = root
        while first > start and tokens[first - 1].head in (root, verb) and tokens[first - 1].dep in MODIFIERS:
            first -= 1
        if first < root and (tokens[first].tag in ("DT", "PRP$", "CD") or token.pos == "NOUN"):
            found.append(NounPhrase(first, root + 1, root, verb if tokens[verb].tag == "VBG" else root))
    return found


def _join_noun(words: Sequence[str], tokens: Sequence[Token], phrase: NounPhrase, starts: set[int]) -> NounPhrase:
    end = phrase.end
    while end < len(tokens) and end not in starts:
        is_head = tokens[end].tag in ("NN", "NNS") and tokens[end].head == phrase.root and tokens[end].dep in JOINED
        if not is_head and words[end] not in ALWAYS_NOUNS:
            break
        end += 1
    return phrase._replace(end=end, root=end - 1) if end > phrase.end else phrase


def _divide(words: Sequence[str], tokens: Sequence[Token], phrase: NounPhrase) -> list[NounPhrase]:
    """Divide "a scarf and black boots"; "an apron grilling hamburgers" and "a coat slices onions" without the verb."""
    first, end, root, top = phrase
    if end < len(tokens) and words[root] in NAME_VERBS and tokens[root].head == end and tokens[end].pos in NOUNS:
        end, root, top = end + 1, end, end  # "Obama greets" + "Merkel", which the parser takes for its subject
    for i in range(first + 1, root):
        if not _is_noun(words, tokens, i - 1):
            continue
        if words[i] == "and" and tokens[i + 1].pos in ("ADJ", "DET") and words[first] in DETERMINERS:
            return [NounPhrase(first, i, i - 1, i - 1), NounPhrase(i + 1, end, root, top)]
        if _is_inner_verb(words, tokens, first, i, root):
            return [NounPhrase(first, i, i - 1, i - 1), NounPhrase(i + 1, end, root, root)]
    return [phrase]


def _is_inner_verb(words: Sequence[str], tokens: Sequence[Token], first: int, i: int, root: int) -> bool:
    """True if word `i` between two nouns of a phrase is their verb: "a coat" + "slices" + "onions"."""
    word, is_singular = words[i], words[first] in SINGULAR_DETERMINERS
    if word.endswith("ing"):
        is_doer = words[i - 1] in DOERS or words[i - 1] in ALWAYS_NOUNS
        return word not in ING_NOUNS and ((is_singular and tokens[root].tag in PLURAL_NOUNS) or is_doer)
    if tokens[i - 1].pos == "PROPN" and word in NAME_VERBS:
        return True
    is_plural = tokens[i].tag == "NNS" and tokens[i - 1].tag == "NN" and word not in PLURAL_WORDS | PLURAL_MODIFIERS
    return is_singular and is_plural and not any(words[k] in QUANTITIES for k in range(first + 1, i))


def _is_noun(words: Sequence[str], tokens: Sequence[Token], i: int) -> bool:
    """True for a noun, and for one that small models take for an adjective: "a young skateboarder" + "tricks"."""
    return tokens[i].pos in NOUNS or words[i] in ALWAYS_NOUNS or (tokens[i].tag == "JJ" and words[i] in DOERS)


def _without_verb(words: Sequence[str], tokens: Sequence[Token], phrase: NounPhrase, starts: set[int]) -> NounPhrase:
    """Remove a last word that is a verb or a direction; the noun before it becomes the head."""
    first, end, root, _ = phrase
    if root == first:
        return phrase
    word, tag, following = words[root], tokens[root].tag, words[end] if end < len(words) else ""
    shorter = phrase._replace(end=root, root=root - 1)
    # The small parser takes some nouns for adjectives here: "a key left of a dog".
    is_direction = word in ("left", "right") and following == "of" and words[root - 1] not in POSITION_WORDS
    if is_direction and (tokens[root - 1].pos in NOUNS or (root - 1 > first and tokens[root - 1].pos == "ADJ")):
        return shorter
    if not _is_noun(words, tokens, root - 1):
        return phrase
    if word.endswith("ing") and tag in ("NN", "VBG", "NNP") and word not in ING_NOUNS and following != "of":
        return shorter
    if word in NAME_VERBS and tokens[root - 1].pos == "PROPN":
        return shorter._replace(top=root - 1)
    is_singular = tokens[root - 1].tag in SINGULAR_NOUNS or tokens[root - 1].tag == "JJ"
    if tag in PLURAL_NOUNS and is_singular and word not in PLURAL_WORDS:
        is_singular = words[first] in SINGULAR_DETERMINERS and not any(
            tokens[i].pos == "NUM" or words[i] in QUANTITIES for i in range(first + 1, root)
        )
        if is_singular or (end in starts and tokens[end].pos in ("DET", "PROPN", "PRON")):
            return shorter._replace(top=root - 1)
    return phrase


def _without_depiction(tokens: Sequence[Token], phrase: NounPhrase) -> NounPhrase:
    """Remove words for the picture at the end, if they follow the noun that it shows: "skyline" of "skyline photo"."""
    root = phrase.root
    if singular(tokens[root]) not in DEPICTIONS:
        return phrase
    while root > phrase.first and (
        singular(tokens[root]) in DEPICTIONS or tokens[root].lemma.lower() in DEPICTION_MODIFIERS
    ):
        root -= 1
    is_noun = tokens[root].pos in NOUNS and singular(tokens[root]) not in DEPICTIONS | DEPICTION_MODIFIERS
    return NounPhrase(phrase.first, root + 1, root, root) if is_noun else phrase


def merge_collectives(words: Sequence[str], tokens: Sequence[Token], phrases: Sequence[NounPhrase]) -> list[NounPhrase]:
    """Join "a group" + "of" + "people" to one phrase, and "two" + "of" + "the dogs"."""
    found: list[NounPhrase] = []
    for number in reversed(range(len(phrases))):
        phrase = phrases[number]
        before = phrases[number - 1].end if number else 0
        is_partitive = words[phrase.root] in PARTITIVES
        is_quantity = is_partitive or singular(tokens[phrase.root]) in COLLECTIVES
        has_member = found and found[-1].first == phrase.end + 1 and words[phrase.end] == "of"
        if is_quantity and has_member and (is_partitive or not _is_part(words, phrase, found[-1])):
            phrase = _with_conjunct(words, tokens, phrase, found)
        quantity = phrase.first - 2  # one that is no noun chunk
        is_quantity = quantity >= before and (
            words[quantity] in PARTITIVES or (words[quantity] in COLLECTIVES and quantity == before)
        )
        if is_quantity and words[quantity + 1] == "of":
            has_article = quantity > before and words[quantity - 1] in ("a", "an", "the")
            phrase = phrase._replace(first=quantity - has_article, top=quantity)
        found.append(phrase)
    return found[::-1]


def _is_part(words: Sequence[str], phrase: NounPhrase, member: NounPhrase) -> bool:
    """True if a noun of quantity names a part of one thing here: "the bed of a truck", but not "a bed of flowers"."""
    is_definite = words[phrase.first] in DETERMINERS - SINGULAR_DETERMINERS
    return words[member.first] in SINGULAR_DETERMINERS or (is_definite and words[member.first] in DETERMINERS)


def _with_conjunct(
    words: Sequence[str], tokens: Sequence[Token], collective: NounPhrase, later: list[NounPhrase]
) -> NounPhrase:
    """Join a collective with the phrase after it, and with its conjunct: "a group of men and women"."""
    member = later.pop()
    end = member.end
    if later and later[-1].first == end + 1 and words[end] in ("and", "or"):
        conjunct = later[-1]
        is_bare = tokens[conjunct.first].pos in ("NOUN", "ADJ") and tokens[member.first].pos in ("NOUN", "ADJ")
        if is_bare and tokens[conjunct.root].head == member.root:
            end = later.pop().end
    return NounPhrase(collective.first, end, member.root, collective.top)


def trim(text: str, tokens: Sequence[Token], phrase: NounPhrase) -> tuple[int, int]:
    """Return the character span of a phrase between separators and without marks at its ends.

    It is extended to whole grapheme clusters.
    """
    start, end = tokens[phrase.first].start, tokens[phrase.end - 1].end
    root = tokens[phrase.root]
    has_lone_quote = text.count('"', start, end) % 2 == 1
    pattern = SEPARATOR_OR_QUOTE if has_lone_quote else SEPARATOR
    for mark in pattern.finditer(text, start, end):  # inside a word, such as an emoticon
        if mark[0] == '"' and mark.start() < root.end and root.start < mark.end():
            continue  # it is a part of the head, which stays
        if mark.end() <= root.start or mark.start() == start:
            start = mark.end()
        else:
            end = mark.start()
            break
    while start < root.end - 1 and not EDGE.match(text, start):
        start += 1
    while end > max(root.start, start) + 1 and not LAST.match(text, end - 1):
        end -= 1
    return whole_graphemes(text, start, end)


def whole_graphemes(text: str, start: int, end: int) -> tuple[int, int]:
    """Extend the span [start, end) to whole grapheme clusters, such as a letter with its accents or an emoji."""
    if text.isascii():
        return start, end
    for cluster in GRAPHEME.finditer(text):
        if cluster.start() < start < cluster.end():
            start = cluster.start()
        if cluster.start() < end < cluster.end():
            end = cluster.end()
        if cluster.end() >= end:
            break
    return start, end


def singular(token: Token) -> str:
    """Return the lemma of a noun in lower case; small models leave that of capitalised plurals (Pictures) as it is."""
    lemma = token.lemma.lower()
    if token.tag not in PLURAL_NOUNS and token.pos != "PROPN":
        return lemma
    if lemma.endswith("ies") and len(lemma) > 4:
        return lemma[:-3] + "y"
    if lemma.endswith(("ches", "shes", "xes", "sses")):
        return lemma[:-2]
    return lemma[:-1] if lemma.endswith("s") and not lemma.endswith(("ss", "us", "is")) else lemma
