"""Prepare the text of a caption for the parser: segments between separators, and lower case instead of Title Case.

Both leave the caption and all offsets as they are.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import compile_infix_regex, compile_prefix_regex, compile_suffix_regex

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
