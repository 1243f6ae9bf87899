"""The label of a thing: its noun in the singular, whatever the letter case, number and hyphens of the caption.

The filter of phrases, exports, the explorer's index, the statistics and the comparison with known boxes use it, also where
spaCy is not installed.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Final

from pipeline.stages.parse.lexicon import CACHED, listed, shares, words
from pipeline.stages.parse.types import Token

NOUNS: Final = frozenset({"NOUN", "PROPN"})
"""Parts of speech of nouns."""
PLURAL_NOUNS: Final = frozenset({"NNS", "NNPS"})
ENDINGS: Final = (
    *(
        ("men", "man"),
        ("children", "child"),
        ("mice", "mouse"),
        ("geese", "goose"),
        ("teeth", "tooth"),
        ("feet", "foot"),
    ),
    *(("ves", "f"), ("ves", "fe"), ("ies", "ie"), ("ies", "y"), ("eaux", "eau"), ("i", "us"), ("s", ""), ("es", "")),
)
"""Ending of a plural -> ending of its singular, if that is a word."""
LEMMAS: Final = {
    "cooky": "cookie", "smoothy": "smoothie", "hippy": "hippie", "pixy": "pixie", "hoagy": "hoagie", "junky": "junkie",
    "aunty": "auntie", "doggy": "doggie", "othman": "ottoman", "vas": "vase", "specie": "species",
}  # fmt: skip
"""Lemmas that spaCy gives plurals, which are spelled otherwise than the singular in captions."""
IRREGULAR: Final = {"men": "man", "people": "person", "oxen": "ox", "fungi": "fungus", "cacti": "cactus", "dice": "die"}
"""Plurals that WordNet has as nouns, or whose ending tells nothing, and their singulars."""
HYPHENS: Final = str.maketrans(dict.fromkeys("\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{FIGURE DASH}\N{EN DASH}", "-"))
BEFORE: Final = re.compile(r"(?:[^\W_]+['’]?-)+$|\b[b-hj-z] $")
"""What stands before a noun and may be part of it: words with hyphens, or a letter alone (T shirt)."""
BEHIND: Final = re.compile(r"(?:-[^\W_]+)*")
MOST: Final = 60
"""Characters on either side of a noun that are looked at."""


def singular(token: Token) -> str:
    """Return the singular of a noun in lower case; models leave names, unknown words and capitals in the plural.

    Args:
        token: token of a caption.

    Returns:
        The singular; the lemma in lower case of a token that is no noun.
    """
    lemma = token.lemma.lower()
    lemma = LEMMAS.get(lemma, lemma) if token.tag in PLURAL_NOUNS else lemma
    return singular_word(lemma, token.tag in PLURAL_NOUNS) if token.pos in NOUNS else lemma


@lru_cache(CACHED)
def singular_word(word: str, is_plural: bool = False) -> str:
    """Return the singular of a word in lower case, if WordNet has it as a noun; that of an unknown plural by its ending.

    Args:
        word: word in lower case.
        is_plural: whether the parser says that it is one.

    Returns:
        The singular, or the word.

    >>> [singular_word(word) for word in ("dogs", "knives", "children", "glass", "lens", "cafés", "adidas")]
    ['dog', 'knife', 'child', 'glass', 'lens', 'café', 'adidas']
    """
    if word in IRREGULAR or _is_noun(word):
        return IRREGULAR.get(word, word)
    for ending, single in ENDINGS:
        if word.endswith(ending) and _is_noun(found := word.removesuffix(ending) + single):
            return found
    if not is_plural or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    base = word[:-3] + "y" if word.endswith("ies") and len(word) > 4 else word[:-1]
    return word[:-2] if word.endswith(("ches", "shes", "xes", "sses")) else base


def _is_noun(word: str) -> bool:
    """True if WordNet, which has no accents, has a noun."""
    return bool(shares("".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c))))


def label_of(caption: str, token: Token) -> str:
    """Return the label of the thing that a noun of a caption names: its singular with what hyphens join to it.

    What has two parts has its plural (jeans, glasses), unless WordNet has it as a compound (beer glasses).

    Args:
        caption: text of the caption.
        token: the noun.

    Returns:
        The label in lower case.

    >>> label_of("two RED T-Shirts", Token(10, 16, 2, "ROOT", "NOUN", "NNS", "shirt"))
    't-shirt'
    """

    def plain(text: str) -> str:
        return unicodedata.normalize("NFC", text.lower()).translate(HYPHENS)

    start, end = token.start, token.end
    text = plain(caption[start:end])
    name = plain(singular(token)) if token.pos in NOUNS else singular_word(text)
    before, behind = (plain(caption[max(0, a) : b]) for a, b in ((start - MOST, start), (end, end + MOST)))
    if f"{name}s" in listed("pairs"):
        name = f"{name}s"
    elif text in listed("plurals") and not _is_noun(f"{''.join(before.split()[-1:])}_{name}"):
        name = text
    if (first := BEFORE.search(before)) and (first[0][-1] == "-" or f"{first[0][0]}-{name}" in words()):
        name = singular_word(first[0].replace(" ", "-") + name)
    rest = BEHIND.match(behind)
    return "-".join([name, *map(singular_word, rest[0].split("-")[1:])]) if rest else name
