"""Noun phrases from the noun chunks of spaCy; docs/phrases.md explains the rules and what each of them gains."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import regex

from pipeline.stages.parse import lexicon
from pipeline.stages.parse.labels import NOUNS, PLURAL_NOUNS, singular
from pipeline.stages.parse.normalise import SMALL_WORDS, Segment
from pipeline.stages.parse.types import Token

MODIFIERS: Final = frozenset({"det", "amod", "poss", "compound", "nummod", "nmod"})
"""Labels of words that belong to the phrase of the noun after them."""
DEPICTIONS: Final = lexicon.listed("depictions")
"""Nouns that name the picture itself: before "of" or after the noun that it shows."""
PICTURES: Final = DEPICTIONS | lexicon.listed("pictures")
"""These, and nouns that do so only before what they show: "a doodle of a sheep", but not "a doodle on a wall"."""
SHOWING: Final = frozenset({"of", "about", "shows", "showing", "depicts", "depicting"})
"""Words between a word for the picture and what it shows."""
POSITIONS: Final = lexicon.listed("positions")
"""Nouns that name a place in the picture, or a part of a thing."""
IDEAS: Final = lexicon.listed("ideas")
"""Nouns that name nothing visible, whatever WordNet has: "recipe"."""
THINGS: Final = lexicon.listed("things")
"""Nouns that name something visible, whatever WordNet has."""
UNITS: Final = lexicon.listed("units")
NUMBERED: Final = lexicon.listed("numbered")
"""Words behind and in front of a number, which may stand in front of a thing."""
LEAST_VISIBLE: Final = 0.2
MOSTLY_VISIBLE: Final = 0.55
"""Shares of visible senses of a noun that is an idea, and of one that is a thing."""
COLLECTIVES: Final = lexicon.listed("collectives")
"""Nouns of quantity, arrangement and container, which form one phrase with "of" and the noun after it."""
PARTITIVES: Final = lexicon.listed("partitives")
"""Words that form one phrase with "of" and the phrase after it: "two of the dogs"."""
SINGULAR_DETERMINERS: Final = frozenset({"a", "an", "one", "another", "this", "that", "each", "every"})
DETERMINERS: Final = SINGULAR_DETERMINERS | {"the", "his", "her", "its", "their"}
EDGE: Final = re.compile(r"[^\W_]|[$€£#@&%°]")
"""Character that a phrase can start with."""
LAST: Final = re.compile(r"[^\W_]|[.'’%°+]|(?<=\d)[\"”″]")
"""Character that a phrase can end with."""
INCH: Final = re.compile(r'[\d½¼¾]"')
"""The mark of inches, which has no partner."""
LETTER: Final = regex.compile(r"\p{L}")
LATIN: Final = regex.compile(r"\p{Latin}")
GRAPHEME: Final = regex.compile(r"\X")
PAIRS: Final = (("(", ")"), ("[", "]"), ("{", "}"), ("“", "”"), ("«", "»"))


class NounPhrase(NamedTuple):
    """A noun chunk as the tokens [first, end).

    `root` is its head noun: of "a group of people", the people. The referring expression is built from the descendants of
    `top`, which differs from `root` in collectives.
    """

    first: int
    end: int
    root: int
    top: int


class Scene(NamedTuple):
    """A parsed caption: its text, the lower-case words and tokens, and the number of the segment of each, -1 for none."""

    text: str
    words: Sequence[str]
    tokens: Sequence[Token]
    segment_of: Sequence[int]
    segments: Sequence[Segment]


def plain_phrase(
    start: int, end: int, heads: Sequence[int], places: Sequence[int], is_gap: Callable[[int, int], bool]
) -> NounPhrase:
    """Return the noun chunk [start, end) of a segment whose tokens are at `places` of the caption.

    That is the part without a gap around its root, the first token whose head is itself or outside.
    """
    root = first = last = next(i for i in range(start, end) if heads[i] == i or not start <= heads[i] < end)
    while first > start and not is_gap(places[first - 1], places[first]):
        first -= 1
    while last < end - 1 and not is_gap(places[last], places[last + 1]):
        last += 1
    return NounPhrase(places[first], places[last] + 1, places[root], places[root])


def repair(scene: Scene, phrases: Sequence[NounPhrase]) -> list[NounPhrase]:
    """Repair phrases: join the chunks of a flat title, take out verbs, and end before a word for the picture itself."""
    found = list[NounPhrase]()
    covered = {i for phrase in phrases for i in range(phrase.first, phrase.end)}
    phrases = [_with_thing(scene, _with_head(scene, phrase, covered)) for phrase in phrases]
    for phrase in sorted([*phrases, *_before_verbs(scene.tokens, covered), *_alone(scene, covered)]):
        before = found[-1] if found else None
        if before and phrase.root < before.end:
            continue  # the thing behind a measure is in the phrase of that
        if (
            before
            and scene.segment_of[before.root] == scene.segment_of[phrase.root]
            and _is_flat(scene, before, phrase)
        ):
            found[-1] = NounPhrase(before.first, phrase.end, phrase.root, phrase.top)
        else:
            found.append(phrase)
    divided = (part for phrase in found for part in _without_verb(scene, phrase))
    return [_without_depiction(scene.words, scene.tokens, phrase) for phrase in divided]


def _with_head(scene: Scene, phrase: NounPhrase, covered: set[int]) -> NounPhrase:
    """Return a phrase with its head, from which the parser made a verb or a clause: "a tree" + "frog", "a trash" + "can"."""
    words, tokens, (first, end, root, _) = scene.words, scene.tokens, phrase
    if root != end - 1 or end in covered or end == len(words) or scene.segment_of[end] != scene.segment_of[root]:
        return phrase
    is_noun = tokens[root].head == end and tokens[end].tag in ("NN", "NNS", "NNP")
    is_verb = tokens[end].tag in ("VB", "VBN", "VBD", "VBP", "MD")
    if is_noun or (is_verb and (lexicon.visible(f"{words[root]}_{words[end]}") or 0) > MOSTLY_VISIBLE):
        return NounPhrase(first, end + 1, end, end)
    return phrase


def _with_thing(scene: Scene, phrase: NounPhrase) -> NounPhrase:
    """Return the phrase of a measure, a number or thanks with the thing behind it: "750 ml" + "flask", "season 3" + "cast"."""
    words, (first, end, *_) = scene.words, phrase
    first -= first > 0 and words[first - 1 : end] == ["thank", "you"]
    is_numbered = words[end - 1] in NUMBERED and "".join(words[end : end + 1]).isdigit()
    is_measure = end > 1 and words[end - 1] in UNITS and words[end - 2][:1].isdigit()
    if not is_numbered and first == phrase.first and not is_measure:
        return phrase
    end += is_numbered
    while end < len(words) and words[end].isalpha() and words[end] not in SMALL_WORDS:
        end += 1
    is_whole = scene.segment_of[end - 1] == scene.segment_of[phrase.root] and end > phrase.end + is_numbered
    is_thing = is_whole and can_be_noun(words[end - 1], scene.tokens[end - 1])
    return NounPhrase(first, end, end - 1, end - 1) if is_thing else phrase


def _before_verbs(tokens: Sequence[Token], covered: set[int]) -> Iterator[NounPhrase]:
    """Yield the phrases whose noun the parser made a modifier of the verb after it: "a blue dress" + "smiles"."""
    for root, token in enumerate(tokens[:-1]):
        is_modifier = token.pos in NOUNS and token.head == root + 1 and token.dep in MODIFIERS
        if is_modifier and root not in covered and tokens[root + 1].tag in ("VBZ", "VBP", "VBG"):
            first = root
            while first > 0 and first - 1 not in covered and tokens[first - 1].head in (root, root + 1):
                first -= 1
            yield NounPhrase(first, root + 1, root, root)


def _alone(scene: Scene, covered: set[int]) -> Iterator[NounPhrase]:
    """Yield the segments of one or two words from whose noun the parser made a verb: "barn", "old fork"."""
    for segment in scene.segments:
        if not 1 <= len(segment.tokens) <= 2 or covered.intersection(segment.tokens):
            continue
        first, last = segment.tokens[0], segment.tokens[-1]
        is_noun = scene.tokens[last].tag == "VB" and (lexicon.visible(scene.words[last]) or 0) > MOSTLY_VISIBLE
        if is_noun and last - first < 2 and scene.words[first] not in SMALL_WORDS:
            yield NounPhrase(first, last + 1, last, last)


def _without_verb(scene: Scene, phrase: NounPhrase) -> list[NounPhrase]:
    """Divide "girl holding balloon", and end before the verb of "a monkey clings" and before "left of"."""
    words, tokens = scene.words, scene.tokens
    is_emphatic = words[phrase.first] == "not" and phrase.first + 1 < phrase.root
    if is_emphatic and words[phrase.first + 1] in ("only", "just", "merely", "simply"):
        phrase = phrase._replace(first=phrase.first + 2)
    first, end, root, top = phrase
    if top != root or end - first < 2:
        return [phrase]
    if (
        words[end - 1] in ("left", "right")
        and words[end : end + 1] == ["of"]
        and tokens[end - 2].tag[:2] in ("NN", "JJ")
    ):
        return [NounPhrase(first, end - 1, end - 2, end - 2)]
    for i in range(first + 1, end):
        if tokens[i - 1].pos in NOUNS and _is_participle(scene, phrase, i):
            after = [NounPhrase(i + 1, end, root, root)] if i < root else []
            return [NounPhrase(first, i, i - 1, i - 1), *after]
    if tokens[end - 2].pos in NOUNS and _is_finite(scene, phrase):
        return [NounPhrase(first, end - 1, end - 2, end - 2)]
    return [phrase]


def _is_participle(scene: Scene, phrase: NounPhrase, i: int) -> bool:
    """True if word `i` says what the noun before it does: "girl" + "holding" + "balloon", but not "a baby changing table"."""
    words, tokens = scene.words, scene.tokens
    word, noun = words[i], singular(tokens[i - 1])
    if not lexicon.is_present_participle(word):
        return False
    if f"{noun}_{word}" in lexicon.words() or "_".join(words[i : i + 2]) in lexicon.words():
        return False
    is_plural = tokens[phrase.root].tag in PLURAL_NOUNS
    if words[phrase.first] in SINGULAR_DETERMINERS:
        return is_plural or i == phrase.end - 1
    return lexicon.is_person(noun) or (lexicon.is_animate(noun) and words[phrase.first] in DETERMINERS)


def _is_finite(scene: Scene, phrase: NounPhrase) -> bool:
    """True if the last word of a phrase is a verb of the noun before it: "a monkey" + "clings", "Merkel" + "greets"."""
    words, tokens = scene.words, scene.tokens
    first, end = phrase.first, phrase.end
    word, before = words[end - 1], tokens[end - 2]
    is_verb_form = lexicon.is_third_person(word) and before.tag in ("NN", "NNP")
    following = tokens[end].pos if end < len(tokens) else ""
    if words[first] in SINGULAR_DETERMINERS and not any(t.pos == "NUM" for t in tokens[first:end]):
        return is_verb_form and following in ("ADP", "DET", "PRON", "PROPN", "ADV")
    is_name = before.pos == "PROPN" and not lexicon.is_known(words[end - 2])
    return is_verb_form and is_name and following in ("DET", "PRON", "PROPN")


def _is_flat(scene: Scene, before: NounPhrase, phrase: NounPhrase) -> bool:
    """True if a participle of something invisible lies between two chunks: "noise" + "cancelling" + "headphones"."""
    is_one = phrase.first == before.end + 1 and scene.words[phrase.first] not in SMALL_WORDS
    share = lexicon.visible(singular(scene.tokens[before.root])) if is_one else None
    return share is not None and share < MOSTLY_VISIBLE and scene.tokens[before.end].tag == "VBG"


def _without_depiction(words: Sequence[str], tokens: Sequence[Token], phrase: NounPhrase) -> NounPhrase:
    """Return the visible part of a compound, without words for the picture: "skyline photo", "chicken pasta recipe".

    Before "of", all of the compound is the picture: "a class photo of children".
    """
    root = phrase.root
    if singular(tokens[root]) in DEPICTIONS and SHOWING.intersection(words[phrase.end : phrase.end + 1]):
        return phrase
    while root > phrase.first and (singular(tokens[root]) in DEPICTIONS or _is_idea(words, tokens, phrase, root)):
        root -= 1
    if root == phrase.root or phrase.top != phrase.root or not can_be_noun(words[root], tokens[root]):
        return phrase
    is_count = words[phrase.first].isdigit() and tokens[phrase.root].tag in PLURAL_NOUNS  # "15 lunch box ideas"
    return NounPhrase(phrase.first + (is_count and root > phrase.first), root + 1, root, root)


def _is_idea(words: Sequence[str], tokens: Sequence[Token], phrase: NounPhrase, i: int) -> bool:
    """True if word `i` names nothing visible, and a thing is in front of it: "recipe" after "chicken pasta"."""
    noun, before = singular(tokens[i]), singular(tokens[i - 1])
    if noun not in IDEAS:
        is_thing = any(lexicon.VISIBLE.get(name, 0) >= MOSTLY_VISIBLE for name in lexicon.shares(noun))
        if is_thing or noun in THINGS or (lexicon.visible(noun) or not lexicon.shares(noun)) > LEAST_VISIBLE:
            return False
    if not can_be_noun(words[i - 1], tokens[i - 1]) or f"{words[i - 1]}_{noun}" in lexicon.words():
        return False
    is_shown = (lexicon.visible(before) or 0) >= MOSTLY_VISIBLE
    return is_shown or (i - 1 > phrase.first and _is_idea(words, tokens, phrase, i - 1))


def can_be_noun(word: str, token: Token) -> bool:
    """Return True for a noun, and for what the parser took for another part of speech if most senses as a noun are visible."""
    return token.pos in NOUNS or (lexicon.visible(word) or 0) > 0.5


def merge_collectives(words: Sequence[str], tokens: Sequence[Token], phrases: Sequence[NounPhrase]) -> list[NounPhrase]:
    """Join "a group" + "of" + "people" to one phrase, and "two" + "of" + "the dogs"."""
    found: list[NounPhrase] = []
    for number in reversed(range(len(phrases))):
        phrase = phrases[number]
        before = phrases[number - 1].end if number else 0
        is_partitive = words[phrase.root] in PARTITIVES
        is_quantity = is_partitive or singular(tokens[phrase.root]) in COLLECTIVES
        if is_quantity and singular(tokens[phrase.root]) in DEPICTIONS and phrase.first < phrase.root:
            # "a shot of rum", but not "drone shot of reefs"
            is_quantity = tokens[phrase.root - 1].pos in ("DET", "NUM")
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
    """Return the character span of a phrase without marks at its ends, and without a mark whose partner is outside.

    It is extended to whole grapheme clusters.
    """
    start, end = tokens[phrase.first].start, tokens[phrase.end - 1].end
    root = tokens[phrase.root]
    for opening, closing in PAIRS:
        if (opened := text.count(opening, start, end)) != (closed := text.count(closing, start, end)):
            place = text.rfind(opening, start, end) if opened > closed else text.find(closing, start, end)
            start, end = _part_with(root, start, place, end)
    if text.count('"', start, end) % 2 and not INCH.search(text, start, end):
        start, end = _part_with(root, start, text.find('"', start, end), end)
    while start < root.end - 1 and not EDGE.match(text, start):
        start += 1
    while end > max(root.start, start) + 1 and not LAST.match(text, end - 1) and not _closes(text, start, end):
        end -= 1
    if text.count('"', start, end) % 2 and text[start - 1 : start] == '"':
        start -= 1  # of a quotation within the phrase: '"Home" sign'
    return whole_graphemes(text, start, end)


def _part_with(root: Token, start: int, place: int, end: int) -> tuple[int, int]:
    """Return the part of a span before or behind the mark at `place` that has the root; all if the mark is inside that."""
    if place < root.start:
        return place + 1, end
    return (start, place) if place >= root.end else (start, end)


def _closes(text: str, start: int, end: int) -> bool:
    """True if the last character of a span closes a pair that the span opens."""
    return any(
        text[end - 1] == closing and opening in text[start : end - 1] for opening, closing in (*PAIRS, ('"', '"'))
    )


def whole_graphemes(text: str, start: int, end: int) -> tuple[int, int]:
    """Extend the span [start, end) to whole grapheme clusters, such as a letter with its accents or an emoji."""
    if text[start].isascii() and text[end : end + 1].isascii():
        return start, end
    for cluster in GRAPHEME.finditer(text):
        if cluster.start() < start < cluster.end():
            start = cluster.start()
        if cluster.start() < end < cluster.end():
            end = cluster.end()
        if cluster.end() >= end:
            break
    return start, end
