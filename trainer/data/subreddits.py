"""Names of subreddits as words: MERU's RedCaps captions begin with "i took a picture : " for half the visits."""

import math
from functools import lru_cache

import regex

from trainer.text.tokenizer import END_OF_WORD, Tokenizer

PIECE = regex.compile(r"\p{Lu}?\p{Ll}+|\p{Lu}+(?!\p{Ll})|\p{N}+|\p{L}+")
MAX_WORD = 24
# Of one and two letters the vocabulary has far more pieces than English has words.
SHORT = " a i am an as at be by do go he if in is it me my no of on or so to tv up us we "


class Segmenter:
    """Splits run-together words into the likeliest ones; what is not made of known words alone stays in one piece.

    The tokenizer's whole words are ordered by how often their pieces met, so the word of rank r is taken to have a
    probability in proportion to 1 / r (Zipf's law).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        words = [piece.removesuffix(END_OF_WORD) for piece in tokenizer.pieces if piece.endswith(END_OF_WORD)]
        known = [word for word in words if len(word) > 2 or f" {word} " in SHORT]
        self.costs = {word: math.log((rank + 1) * math.log(len(known) + 1)) for rank, word in enumerate(known)}
        self.segment = lru_cache(maxsize=4096)(self._segment)

    def __reduce__(self) -> tuple[type, tuple[Tokenizer]]:
        """Sent to another process without its cache."""
        return Segmenter, (self.tokenizer,)

    def _segment(self, name: str) -> str:
        """Lower case, with blanks: "EarthPorn", "itookapicture" and "food_porn" to "earth porn", ..."""
        return " ".join(word for piece in PIECE.findall(name) for word in self.split(piece.lower()))

    def split(self, text: str) -> list[str]:
        """The cheapest way to write `text` as known words, found from left to right; `text` itself if there is none."""
        best: list[tuple[float, list[str]]] = [(0.0, [])]
        for end in range(1, len(text) + 1):
            ways = [
                (best[start][0] + self.costs.get(text[start:end], math.inf), [*best[start][1], text[start:end]])
                for start in range(max(0, end - MAX_WORD), end)
            ]
            best.append(min(ways, key=lambda way: way[0]))
        cost, words = best[-1]
        return words if cost < math.inf else [text]
