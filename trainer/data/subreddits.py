"""Split the names of subreddits into words.

MERU puts these words in front of RedCaps captions: "i took a picture : my cat" for the subreddit "itookapicture".

subreddits.txt has the words of RedCaps' 350 subreddits, one name a line, as MERU's code finds them: with
`wordsegment.segment` (version 1.3.1, Apache 2.0). Other names are split by the vocabulary of the tokenizer.
"""

import math
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final

import regex

from trainer.text.base import TextTokenizer

REDCAPS_FILE: Final = Path(__file__).with_name("subreddits.txt")
# A part of a name, separated from the others by case, digits or punctuation: "Earth" and "Porn" in "EarthPorn".
PART: Final = regex.compile(r"\p{Lu}?\p{Ll}+|\p{Lu}+(?!\p{Ll})|\p{N}+|\p{L}+")
MAX_WORD_LENGTH: Final = 24
# Known words of at most two letters. Most tokens of that length in the vocabulary are not English words.
SHORT_WORDS: Final = " a i am an as at be by do go he if in is it me my no of on or so to tv up us we "


@lru_cache(maxsize=1)
def redcaps_words() -> dict[str, str]:
    """Return the words of each of RedCaps' subreddits, separated by spaces, by name."""
    lines = REDCAPS_FILE.read_text(encoding="utf-8").splitlines()
    return {line.replace(" ", ""): line for line in lines}


class Segmenter:
    """Splits a name into words: those of `redcaps_words`, else the most likely sequence of known words.

    Parts that do not consist of known words are not split. Known words are the tokens of the vocabulary that are
    complete words. They are ordered by frequency, so the word of rank r gets a probability proportional to 1 / r (Zipf's
    law).
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        self.segment = lru_cache(maxsize=4096)(self._segment)

    @cached_property
    def costs(self) -> dict[str, float]:
        """The cost of each known word, -log of its probability up to a constant."""
        known = [word for word in self.tokenizer.words() if len(word) > 2 or f" {word} " in SHORT_WORDS]
        return {word: math.log((rank + 1) * math.log(len(known) + 1)) for rank, word in enumerate(known)}

    def __reduce__(self) -> tuple[type, tuple[TextTokenizer]]:
        """Pickle without the cache."""
        return Segmenter, (self.tokenizer,)

    def _segment(self, name: str) -> str:
        """Return the words of a name in lower case, separated by spaces: "earth porn" for "EarthPorn"."""
        known = redcaps_words().get(name.lower())
        return known or " ".join(word for part in PART.findall(name) for word in self.split(part.lower()))

    def split(self, text: str) -> list[str]:
        """Return the words of lowest total cost that concatenate to `text`, or `text` itself if no known words do.

        Uses dynamic programming over the prefixes of `text`.
        """
        costs, starts = [0.0], [0]  # of each prefix of `text`: its lowest cost, and the start of its last word
        for end in range(1, len(text) + 1):
            first = max(0, end - MAX_WORD_LENGTH)
            candidates = [costs[start] + self.costs.get(text[start:end], math.inf) for start in range(first, end)]
            costs.append(min(candidates))
            starts.append(first + candidates.index(costs[end]))
        if math.isinf(costs[-1]):
            return [text]
        words, end = [], len(text)
        while end:
            words.append(text[starts[end] : end])
            end = starts[end]
        return words[::-1]
