"""Prepare a web text for the parser: what is no description is hidden, the rest is divided into segments.

The caption and all offsets stay as they are. The parser sees each segment by itself: the words between separators, the
words in brackets, and the words around them without these. Titles are lower-cased by a lexicon.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from spacy.attrs import IDX, ORTH
from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import compile_infix_regex, compile_prefix_regex, compile_suffix_regex

from pipeline.stages.parse.lexicon import is_known, listed


class Mask(NamedTuple):
    """Text that names nothing in the picture, hidden from the parser for `reason` (schemas.status.PHRASE_REMOVALS)."""

    reason: str
    pattern: re.Pattern[str]
    has_case: bool
    has_digit: bool
    has_name: bool


def read_masks(path: Path) -> Iterator[Mask]:
    """Yield the masks of a file (its head says in which form); consecutive patterns for one reason are one mask."""
    parts, found = dict[str, str](), list[tuple[str, list[str]]]()
    lines = path.read_text(encoding="utf-8").splitlines()
    for line in (line for line in lines if line and not line.startswith("#")):
        name, is_part, pattern = line.partition(" = ")
        if not is_part or not name.isupper():
            name, _, pattern = line.partition(": ")
        pattern = re.sub(r"\{([A-Z_]+)\}", lambda match: parts[match[1]], pattern)
        if name.isupper():
            parts[name] = pattern
        else:
            if not found or found[-1][0] != name:
                found.append((name, []))
            found[-1][1].append(pattern)
    for name, patterns in found:
        reason = name.rstrip("!?#+")
        flags = name[len(reason) :]
        joined = "|".join(patterns)
        compiled = re.compile(rf"\b(?=\w)(?:{joined})" if "+" in flags else joined)
        yield Mask(reason, compiled, bool({"!", "?"} & {*flags}), "#" in flags, "?" in flags)


MASKS: Final = tuple(read_masks(Path(__file__).with_name("masks.txt")))
"""In this order; of several masks of a character, the last one counts."""
EMOJI: Final = re.compile("[\U0001f000-\U0001faff\u2600-\u27bf\u2b00-\u2bff\ufe0f\u200d\U000e0000-\U000e007f]+")
SEPARATORS: Final = r"[|→>…–—]|--+|(?<=[^\W\d]),(?=[^\W\d])|(?<=[^\W_])_(?=[^\W_])"
SEPARATOR: Final = re.compile(
    rf"{SEPARATORS}|[•·»«►▶★;]|::|\.{{3,}}|(?<=\s)[-~/\\+]+(?=\s)|(?<=\s)vs\.?(?=\s)|:(?=\s|$)"
)
"""Marks that end a segment."""
GLUED: Final = rf"(?:{SEPARATORS}|(?<=\w)[;~](?=\w)|[\U0001f000-\U0001faff\u2600-\u27bf])"
"""Separators that spaCy's tokenizer leaves inside a word."""
TAG_SIGN: Final = re.compile(r"(?<!\w)#(?=[^\W\d])")
"""The sign of a hashtag that stands for a word of a sentence."""
ARTICLE_BEFORE: Final = re.compile(r"\b(?:an?|the|my|our|his|her|their|this|that|some|two|three)\s+$", re.IGNORECASE)
"""Before an emoji within a phrase: "my \U0001f408 cat"."""
NO_KEYWORD: Final = re.compile(r"\b(?:an?|the|with|his|her|their)\b")
LEAST_KEYWORDS, WORDS_OF_KEYWORD = 4, 2.2
"""Commas, and words for each of them, of a list of keywords."""
NO_REASON: Final = 255
"""Number of the mask of signs and emoji."""
WORD: Final = re.compile(r"[^\W\d_]+")
DIGIT: Final = re.compile(r"\d")
BRACKET: Final = re.compile(r"[()\[\]{}]")
LETTER: Final = re.compile(r"[^\W\d_]")
OPENING: Final = {"(": ")", "[": "]", "{": "}"}
SMALL_WORDS: Final = listed("small")
"""Words of closed classes, which are no evidence of a title and never names."""
NEGATED: Final = {f"{word}nt": word for word in listed("auxiliaries")} | {"cant": "can", "wont": "will"}
"""Contraction without its apostrophe -> the word that the parser sees."""
REPLACED: Final = {"w/": "with", "&": "and", "+": "and", "im": "i", "theyre": "they", "youre": "you", **NEGATED}
LEAST: Final = 2
"""Words with four letters or more that a title has at least."""
CASED_SHARE: Final = 0.85
"""Share of these words that have a capital letter."""
KNOWN_SHARE: Final = 0.5
"""Share of these words that the lexicon has; fewer are names."""
ACRONYM_LENGTH: Final = 4
"""Longest word in capitals that keeps them in a title."""


class Segment(NamedTuple):
    """A part of a caption to parse.

    `tokens` are the indices of its tokens in the caption, which need not be adjacent, `doc` is what the parser sees. `case`
    is "title" or "capitals" if its words were lower-cased.
    """

    tokens: Sequence[int]
    doc: Doc
    case: str | None


class Hidden(NamedTuple):
    """Tokens [first, end) that the parser does not see, and why."""

    first: int
    end: int
    reason: str


def set_up_tokenizer(nlp: Language) -> None:
    """Let the tokenizer of `nlp` make each separator a token of its own, and divide no word such as "id" or "im"."""
    tokenizer: Any = nlp.tokenizer
    tokenizer.rules = {
        text: rule
        for text, rule in tokenizer.rules.items()
        if len(rule) == 1 or not text.isalpha() or text.lower() == "cannot"
    }
    for name, compile_regex, default in (
        ("prefix_search", compile_prefix_regex, nlp.Defaults.prefixes),
        ("suffix_search", compile_suffix_regex, nlp.Defaults.suffixes),
        ("infix_finditer", compile_infix_regex, nlp.Defaults.infixes),
    ):
        pattern = compile_regex([GLUED, *(default or ())])
        find, nothing = (pattern.finditer, ()) if name == "infix_finditer" else (pattern.search, None)
        setattr(tokenizer, name, partial(_find, find, nothing) if nlp.lang == "en" else find)


def _find(find: Callable[[str], Any], nothing: Any, word: str) -> Any:
    """Return the affixes of a word: `nothing` for one of English letters, which is faster than the patterns."""
    return nothing if word.isascii() and word.isalpha() else find(word)


def normalise(doc: Doc, text: str, is_english: bool = True) -> tuple[list[Segment], list[Hidden]]:
    """Return the segments of a caption in their order, at least one, and what is hidden.

    `text` is that of `doc`, which takes long to put together. Titles in other languages keep their case.
    """
    strings, (orths, starts) = doc.vocab.strings, doc.to_array([ORTH, IDX]).T.tolist()
    words = [strings[orth] for orth in orths]
    masked, ends = _marks(text)
    hidden, done, groups = list[Hidden](), list[list[int]](), [list[int]()]
    if not any(masked) and not any(ends) and not BRACKET.search(text):
        groups = [list(range(len(words)))]
    else:
        outer: list[tuple[str, list[list[int]]]] = []
        for i, (word, start) in enumerate(zip(words, starts, strict=True)):
            end = start + len(word)
            mask = max(masked[start:end])
            if mask:
                reason = MASKS[mask - 1].reason if mask != NO_REASON else None
                if reason and hidden and hidden[-1].end == i and hidden[-1].reason == reason:
                    hidden[-1] = hidden[-1]._replace(end=i + 1)
                elif reason:
                    hidden.append(Hidden(i, i + 1, reason))
            elif word in OPENING:
                outer.append((OPENING[word], groups))
                groups = [[]]
                continue
            elif outer and word == outer[-1][0]:
                done += groups
                groups = outer.pop()[1]
                continue
            if any(ends[start:end]) and (mask or not any(map(str.isalnum, word))):
                groups.append([])
            elif not mask:
                groups[-1].append(i)
        done += [group for _, part in outer for group in part]
    parts = (_without_edge_marks(words, group, is_english) for group in sorted(filter(None, done + groups)))
    found = [part for part in parts if any(LETTER.search(words[i]) for i in part)]
    return [_segment(doc, words, part, is_english) for part in found or [[]]], hidden


def _marks(text: str) -> tuple[bytearray, bytearray]:
    """Return the number of the mask of each character, from 1, and 1 where a segment ends."""
    masked, ends = bytearray(len(text)), bytearray(len(text))
    lower, has_digit = text.replace("İ", "I").lower(), DIGIT.search(text) is not None  # of equal length
    for number, mask in enumerate(MASKS, 1):
        if mask.has_digit and not has_digit:
            continue
        for match in mask.pattern.finditer(text if mask.has_case else lower):
            start, end = match.span()
            is_masked = not mask.has_name or any(
                word not in SMALL_WORDS and not is_known(word) for word in WORD.findall(match[0].lower())
            )
            if start < end and is_masked:
                masked[start:end] = bytes([number]) * (end - start)
                ends[start] = ends[end - 1] = mask.reason != "position"
    if not text.isascii():
        for match in EMOJI.finditer(text):
            masked[match.start() : match.end()] = bytes([NO_REASON]) * len(match[0])
            ends[match.start()] = not ARTICLE_BEFORE.search(text, 0, match.start())
    for match in TAG_SIGN.finditer(text):
        masked[match.start()] = masked[match.start()] or NO_REASON
    for match in SEPARATOR.finditer(text):
        ends[match.start()] = 1
    n = text.count(",")
    if n >= LEAST_KEYWORDS and len(WORD.findall(text)) <= WORDS_OF_KEYWORD * n and not NO_KEYWORD.search(lower):
        ends[:] = (end or text.startswith(", ", i) for i, end in enumerate(ends))
    return masked, ends


def _without_edge_marks(words: Sequence[str], group: list[int], is_english: bool) -> list[int]:
    """Return the tokens of a segment without marks at its ends, apart from what ends a sentence, and quotation marks.

    A conjunction at the start of one that is not the first goes too, in English: "my dog | and my cat".
    """

    def is_mark(i: int) -> bool:
        is_link = is_english and i > 0 and words[i].lower() in ("and", "or")
        return is_link or not (words[i][0].isalnum() or words[i][0] in "\"'$")

    first, last = 0, len(group)
    while first < last and is_mark(group[first]):
        first += 1
    while last > first and words[group[last - 1]] in ",;:-/&+":
        last -= 1
    return group[first:last]


def _segment(doc: Doc, words: Sequence[str], tokens: list[int], is_english: bool) -> Segment:
    """Return the segment of some tokens."""
    written = [words[i] for i in tokens]
    case = _case(written) if is_english else None
    shown = [
        word if word.lower() in NEGATED and before.lower() in ("a", "the") else REPLACED.get(word.lower(), word)
        for before, word in pairwise(["", *(_lower_words(written, case) if case else written)])
    ]
    if len(tokens) == len(doc) and shown == written:
        return Segment(tokens, doc, case)
    spaces = [bool(doc[i].whitespace_) for i in tokens]
    return Segment(tokens, Doc(doc.vocab, words=shown, spaces=spaces), case)


def _case(words: Sequence[str]) -> str | None:
    """Return "title" or "capitals" if nearly all long words are written so, and are words rather than names."""
    long = [word for word in words if len(word) > 3 and word.isalpha() and word.lower() not in SMALL_WORDS]
    if len(long) < LEAST or sum(not word.islower() for word in long) < CASED_SHARE * len(long):
        return None
    if sum(word.isupper() for word in long) >= CASED_SHARE * len(long):
        return "capitals"
    return "title" if sum(is_known(word.lower()) for word in long) >= KNOWN_SHARE * len(long) else None


def _lower_words(words: Sequence[str], case: str) -> list[str]:
    """Return words in lower case, except for acronyms (USB), names, and words with digits or inner capitals (iPhone)."""
    result = []
    for word in words:
        is_acronym = case == "title" and word.isupper() and 1 < len(word) <= ACRONYM_LENGTH
        is_mixed = not (word.istitle() or word.isupper()) or any(map(str.isdigit, word))
        lower = word.lower()
        if is_acronym or (is_mixed and "-" not in word):
            result.append(word)
        elif lower in SMALL_WORDS or "-" in word or is_known(lower):
            result.append(lower)
        else:
            result.append(word.capitalize() if case == "capitals" else word)
    return result
