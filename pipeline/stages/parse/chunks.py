"""Noun phrases from the noun chunks of spaCy, with repairs of what its English models often get wrong.

The rules and what each of them gains are explained in docs/phrases.md.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import regex
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.util import compile_infix_regex, compile_prefix_regex, compile_suffix_regex

from pipeline.stages.parse.types import Token

# Prepare the text of a caption for the parser: segments between separators, and lower case instead of Title Case.
#
# Both leave the caption and all offsets as they are.

SEPARATORS: Final = frozenset({"|", "||", "–", "—", "--", "---", "——", "•", "·", "»", "«", "::", "►", "▶", "★"})
"""Tokens that end a segment wherever they are."""
FREE_SEPARATORS: Final = frozenset({"-", "/", "~", "\\", "+", "vs", "vs."})
"""Tokens that end a segment if white space surrounds them: "Paris - Hotel", but not "t-shirt"."""
GLUED: Final = r"(?:\||–|—|--+)"
"""Separators that spaCy's tokenizer leaves inside a word."""
MARK: Final = re.compile(r"[|–—•·»«►▶★~\\]|--|::|(?:^|\s)(?:[-/+]|vs\.?)(?:\s|$)|:(?:\s|$)")
"""Text of a caption that may have a separator."""
MIN_WORDS: Final = 3
"""Words with four letters or more that a caption in Title Case or capitals has at least."""
CASED_SHARE: Final = 0.8
"""Share of these words that start with a capital letter."""
ACRONYM_LENGTH: Final = 4
"""Maximum length of a word in capitals that keeps them in Title Case."""


def split_glued_separators(nlp: Language) -> None:
    """Let the tokenizer of `nlp` make each separator a token of its own."""
    tokenizer: Any = nlp.tokenizer
    for name, compile_regex, default in (
        ("prefix_search", compile_prefix_regex, nlp.Defaults.prefixes),
        ("suffix_search", compile_suffix_regex, nlp.Defaults.suffixes),
        ("infix_finditer", compile_infix_regex, nlp.Defaults.infixes),
    ):
        pattern = compile_regex([GLUED, *(default or ())])
        setattr(tokenizer, name, pattern.finditer if name == "infix_finditer" else pattern.search)


def segments(doc: Doc, split: bool, lower_titles: bool) -> list[Doc]:
    """Return the documents to parse in place of `doc`; together they have its number of tokens.

    A segment ends after each separator, for which the parser sees a full stop. Words of captions in Title Case or
    capitals are in lower case. A caption that needs neither is its only segment.
    """
    ends = list(_segment_ends(doc)) if split and MARK.search(doc.text) else []
    case = _title_case(doc.text) if lower_titles else None
    if not ends and case is None:
        return [doc]
    words = [token.text if case is None else _lower(token.text, case == "capitals") for token in doc]
    spaces = [bool(token.whitespace_) for token in doc]
    for end in ends:
        words[end - 1] = "."
    bounds = [0, *ends] if ends and ends[-1] == len(doc) else [0, *ends, len(doc)]
    return [Doc(doc.vocab, words=words[a:b], spaces=spaces[a:b]) for a, b in pairwise(bounds)]


def _segment_ends(doc: Doc) -> Iterator[int]:
    """Yield the index after each separator."""
    text = doc.text
    for token in doc:
        word, start, end = token.text, token.idx, token.idx + len(token)
        before_space = end == len(text) or text[end].isspace()
        after_space = start == 0 or text[start - 1].isspace()
        is_free = word in FREE_SEPARATORS and before_space and after_space
        if word in SEPARATORS or is_free or (word == ":" and before_space):
            yield token.i + 1


def _title_case(text: str) -> str | None:
    """Return "title" or "capitals" if nearly all long words are written so, else None."""
    long = [word for word in text.split() if len(word) > 3 and word.isalpha()]
    if len(long) < MIN_WORDS or text[0].islower() or sum(word[0].isupper() for word in long) < CASED_SHARE * len(long):
        return None
    return "capitals" if sum(word.isupper() for word in long) >= CASED_SHARE * len(long) else "title"


def _lower(word: str, in_capitals: bool) -> str:
    """Return a word in lower case, except for acronyms (USB) and words with digits or inner capitals."""
    if word.isupper() and (in_capitals or len(word) > ACRONYM_LENGTH or len(word) == 1):
        return word.lower()
    return word.lower() if word.istitle() else word


# Word lists that decide which noun chunks are grounded, as lemmas in lower case.
#
# GRIT (Kosmos-2, arXiv 2306.14824, section 2.1) and HyCoCLIP (appendix A) remove abstract nouns, but publish only a few
# examples. These lists are our own.


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ABSTRACT: Final = _words(
    """
    ability absence access accident action addition admiration advantage adventure advice affection afternoon age
    aim amount anger answer anxiety approach aspect attempt attention attitude autumn award awe balance battle
    beauty beginning behavior behaviour belief bit bliss boredom bravery care cause century ceremony championship
    chance change chaos choice circumstance clarity comfort comparison compassion concept concern condition
    confidence contrast copyright courage courtesy creation credit culture curiosity danger darkness date dawn day
    deal death decade decision degree delight democracy depression desire despair detail development difference
    difficulty direction discovery discussion dream dusk duty ease economy education effect effort elegance emotion
    end energy entertainment envy era essence eternity evening event evil evolution example excellence excitement
    existence experience expression fact failure faith fame fashion fate favor favour fear feature feeling fortune
    freedom friendship fun future game generation glory grace gratitude greatness greed grief growth guilt happiness
    harmony hate hatred health help history holiday honesty honor honour hope hour idea imagination importance
    impression independence influence information innocence inspiration instance intelligence interest issue
    jealousy journey joy joyfulness justice kind kindness knowledge lack language law length level liberty life
    lifestyle logic loss lot love loyalty luck magic majority manner match matter meaning means memory mercy method
    midnight mind minute misery mix mixture moment month mood morning motion music mystery nature need night noon
    nostalgia number opinion opportunity option order pain past patience peace perfection performance period
    permission perspective philosophy place pleasure plenty point policy politics possibility poverty power pride
    principle privacy problem process progress promise purpose quality quantity question reality reason recipe
    relation relationship relief religion respect responsibility result revenge rhythm right risk robbery romance
    sadness safety sake sale science search season second security sense serenity shame shipping sight significance
    silence simplicity situation size skill sleep solitude solution sorrow sort soul sound space speed spirit spring
    standard stardom state status story strength stress style success summer surprise symbol sympathy technology
    tenderness tension term theme theory thought time today tomorrow tonight topic touch tradition tranquility
    trouble trust truth type unity use value variety version victory view virtue vision warmth way weather week
    weekend will winter wisdom wish wonder work world worry year yesterday
    """
)
"""Nouns that name nothing visible."""
RELATIONAL: Final = _words(
    """
    angle back background beneath bottom center centre close-up closeup corner direction distance drawing edge end
    foreground front half illustration image inside left middle outside painting part photo photograph photography
    pic picture portion portrait rear rendering right scene screenshot section shot side sketch snapshot
    surroundings thumbnail top view wallpaper
    """
)
"""Nouns that name a position in the picture or the picture itself."""
SUFFIXES: Final = ("ness", "ity", "ism", "ship", "hood", "ment", "tude")
"""Endings of nouns that usually name something abstract. Ours."""
CONCRETE: Final = _words(
    """
    advertisement airship amenity apartment armament arrangement attachment baroness basement battlement battleship
    casement cavity celebrity cement charity city community compartment condom dealership deity department document
    easement element embankment equipment escarpment establishment facility filament flagship fortress fragment
    garment governess gunship harness hood implement instrument kingdom ligament lioness mechanism monument nativity
    neighborhood neighbourhood organism ornament parchment pavement pigment prism regiment robinhood sediment
    segment settlement ship spaceship stadium starship steamship supplement tenement township university vestment
    warship wilderness witness
    """
)
"""Nouns that name something visible although they end in one of SUFFIXES."""
SIGNS: Final = frozenset({"sign", "mark", "trace", "hint", "glimpse", "symbol"})
"""Nouns that are abstract only before "of": "a sign of hope" is abstract, "a stop sign" is not."""

CALENDAR: Final = _words(
    """
    april august december february friday january july june monday november october saturday september sunday
    thursday tuesday wednesday
    """
)
"""Names of months and days; March and May only where they are proper nouns."""
AGENCIES: Final = _words(
    """
    afp alamy ap bloomberg dreamstime epa etsy flickr freepik getty instagram istock istockphoto nasa pinterest
    pixabay reuters shutterstock unsplash wikimedia wikipedia youtube
    """
)
"""Agencies and sites that captions credit."""
CREDITS: Final = _words(
    """
    artwork copyright courtesy credit credits design graphic illustration image photo photograph photographer
    photography photos picture render rendering source styling video
    """
)
"""Nouns before the name of an author or owner ("Photo by Jane Roe", "Source: Jane Roe")."""
PARTS: Final = _words("back bottom center centre corner edge end front middle part section side top")
"""Relational nouns that name a part of an object in "the side of a boat"."""
BODY: Final = _words("back side")
"""Relational nouns that name a part of the body after a possessive."""
GARMENTS: Final = _words("top bottom")
"""Relational nouns that name clothes after an adjective or noun: "a white top", "a tank top"."""
POSITIONS: Final = _words("left right upper lower top bottom very far middle center centre")
"""Modifiers after which they name positions: "the upper left corner"."""
DEPICTIONS: Final = _words(
    """
    clipart illustration image photo photograph photography pic picture screenshot snapshot wallpaper
    """
)
"""Nouns that name the picture itself after the noun that it shows: "skyline photo"."""
PICTURES: Final = DEPICTIONS | _words("drawing painting portrait sketch rendering")
"""Relational nouns that can also be objects within the picture: "a painting on the wall"."""
ATTACHED: Final = _words("adorn attach decorate frame glue hang mount pin stick tape")
"""Verbs of pictures that are objects: "a painting hangs above a fireplace"."""
STANDING: Final = _words("be lean lie rest sit stand")
"""Verbs of pictures that are objects if a place follows: "a framed picture is on the wall"."""
PLACES: Final = frozenset({"on", "above", "over", "against", "behind", "beside", "near", "under", "next"})
SURFACES: Final = _words(
    """
    bed board cabinet ceiling counter desk door dresser easel fireplace fridge mantel mantelpiece nightstand piano
    refrigerator shelf sofa stand table wall windowsill
    """
)
"""Nouns on which a picture is an object: "a photo on the wall", but not "a photo on a beach"."""
DEPICTION_MODIFIERS: Final = _words(
    """
    aerial background clip cover credit desktop drone family file group hd nature news press product profile
    reference royalty stock travel vector vintage wedding
    """
)
"""Modifiers of DEPICTIONS that they do not show."""
COLLECTIVES: Final = _words(
    """
    array assortment bag ball band basket batch bed bit block body bottle bouquet bowl box bucket bunch bundle can
    carton chunk class cloud cluster collection column couple crate crew crowd cup deck display dozen family fleet
    flight flock gaggle gang glass glob group half handful heap herd hundred jar jug kind layer line litter load
    loaf lot mass mound mug multitude number pack package pair pan patch piece pile pitcher plate platter pot pride
    puddle queue range roll row school selection series set sheet shot slice sort spoonful spread stack stick strand
    string strip swarm tank team thousand ton trail tray trio troop tub tube type variety wad wall wedge
    """
)
"""Nouns of quantity, arrangement and container, which form one phrase with "of" and the noun after it."""
PARTITIVES: Final = _words(
    """
    all any both dozens each eight few five four half hundreds lots many most nine none one plenty seven several six
    some ten thousands three tons two
    """
)
"""Words that form one phrase with "of" and the phrase after it: "two of the dogs"."""
QUANTITIES: Final = _words(
    "bunch children couple dozen few hundred lot many men million news pair people series thousand women"
)
"""Words that allow a plural after them although "a" or "an" is in front: "a few dogs"."""
PLURAL_WORDS: Final = QUANTITIES | _words(
    """
    binoculars boxers bus chess christmas clothes cross dress glass glasses goggles grass headphones jeans leggings
    pajamas pants pliers scissors shorts species sunglasses swiss tennis tights trousers tweezers
    """
)
"""Words after "a" or "an" and a noun that are no verbs: plurals of one thing, and singulars in "s"."""
PLURAL_MODIFIERS: Final = _words(
    """
    accessories arts cards communications crafts games goods greens operations parts sales savings services sports
    stairs supplies systems treats
    """
)
"""Plurals that modify the noun after them: "a video games console"."""
NAME_VERBS: Final = _words(
    """
    addresses attends beats celebrates congratulates defeats embraces greets hugs joins kisses meets performs scores
    speaks thanks visits wears welcomes
    """
)
"""Verbs that small models take for nouns after a name: "Modi hugs Trump". After other nouns they may be nouns."""
ING_NOUNS: Final = _words(
    """
    awning bedding being blessing bowling boxing building camping carving ceiling clearing clothing coating cooking
    covering crossing curling cycling dining drawing dressing duckling dumpling earring engraving evening fencing
    filling fishing flooring frosting frying gathering hiking icing king knitting landing lettering lighting
    lightning lining listing living marking meeting morning netting offering opening outing packaging painting
    parking paving piercing pudding racing railing riding ring roofing sapling seating setting shavings shelving
    shopping sibling siding sing skateboarding skating skiing sling snowboarding spring sting stocking string
    stuffing surfing swelling swimming swing thing topping training upholstery viking wedding wing wiring wrapping
    writing
    """
)
"""Nouns that end in "ing"; after another noun, all other words with this ending are verbs ("a zebra standing")."""
ANIMATE: Final = _words(Path(__file__).with_name("animate.txt").read_text(encoding="utf-8"))
"""People and animals, which describe nothing as second conjunct of a thing: "a dog with a ball and a cat".

Words that often name a thing in captions are left out, such as mouse, bat and crane.
"""
ALWAYS_NOUNS: Final = _words("hydrant hydrants skateboard snowboard surfboard frisbee toothbrush")
"""Nouns that small models often take for something else; after a noun chunk they are its head."""
COMPOUND_OBJECTS: Final = _words("game lot number place space work")
"""Abstract nouns that name an object after another noun: "parking lot"."""
OBJECTS_BEFORE_OF: Final = frozenset({"game"})
"""Abstract nouns that name something visible before "of": "a game of frisbee"."""


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
    places = ((offset + chunk.start, offset + chunk.end, offset + chunk.root.i) for chunk in chunks)
    return [NounPhrase(start, end, root, root) for start, end, root in places]


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
