"""Prepare the text of a caption for the parser: segments between separators, and lower case instead of Title Case.

Both leave the caption and all offsets as they are.
"""

import re
from typing import Any, Final

from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import compile_infix_regex, compile_prefix_regex, compile_suffix_regex

SEPARATORS: Final = frozenset({"|", "||", "–", "—", "--", "---", "——", "•", "·", "»", "«", "::", "►", "▶", "★"})
"""Tokens that end a segment wherever they are."""
FREE_SEPARATORS: Final = frozenset({"-", "/", "~", "\\"})
"""Tokens that end a segment if white space surrounds them: "Paris - Hotel", but not "t-shirt"."""
GLUED: Final = r"\||–|—|--+"
"""Separators that spaCy's tokenizer leaves inside a word."""
MARK: Final = re.compile(r"[|–—•·»«►▶★~\\]|--|::|(?:^|\s)[-/](?:\s|$)|:(?:\s|$)")
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


def mark_segments(doc: Doc) -> None:
    """Start a new sentence after each separator of `doc`; no noun chunk and no expression crosses it."""
    text, after = doc.text, False
    if not MARK.search(text):
        return
    for token in doc:
        if after:
            token.is_sent_start = True
        start, end = token.idx, token.idx + len(token)
        is_free = (start == 0 or text[start - 1].isspace()) and (end == len(text) or text[end].isspace())
        word = token.text
        after = (
            word in SEPARATORS
            or (word in FREE_SEPARATORS and is_free)
            or (word == ":" and (end == len(text) or text[end].isspace()))
        )


def in_sentence_case(doc: Doc) -> Doc:
    """Return `doc` with the words of a caption in Title Case or capitals in lower case, or else `doc` itself.

    Short words in capitals within Title Case (USB, LED) and words with digits or inner capitals stay as they are.
    """
    long = [word for word in doc.text.split() if len(word) > 3 and word.isalpha()]
    if len(long) < MIN_WORDS or sum(word[0].isupper() for word in long) < CASED_SHARE * len(long):
        return doc
    in_capitals = sum(word.isupper() for word in long) >= CASED_SHARE * len(long)
    words = [_lower(token.text, in_capitals) for token in doc]
    return Doc(doc.vocab, words=words, spaces=[bool(token.whitespace_) for token in doc])


def _lower(word: str, in_capitals: bool) -> str:
    if word.isupper() and (in_capitals or len(word) > ACRONYM_LENGTH or len(word) == 1):
        return word.lower()
    return word.lower() if word.istitle() else word
