"""Names of subreddits as words: MERU's RedCaps captions begin with "i took a picture : " for half the visits."""

import math
from functools import lru_cache

import regex

from trainer.tokenizer import END_OF_WORD, Tokenizer

PIECE = regex.compile(r"\p{Lu}?\p{Ll}+|\p{Lu}+(?!\p{Ll})|\p{N}+|\p{L}+")
MAX_WORD = 24


class Segmenter:
    """Splits run-together words into the likeliest ones.

    The tokenizer's whole words are ordered by how often their pieces met, so the word of rank r is taken to have a
    probability in proportion to 1 / r (Zipf's law).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        words = [piece.removesuffix(END_OF_WORD) for piece in tokenizer.pieces if piece.endswith(END_OF_WORD)]
        whole = [word for word in words if len(word) > 1 or word in ("a", "i")]
        self.costs = {word: math.log((rank + 1) * math.log(len(whole) + 1)) for rank, word in enumerate(whole)}
        self.unknown = 2 * math.log(len(whole) + 2)  # of a word that is not there, and again for each letter
        self.segment = lru_cache(maxsize=4096)(self._segment)

    def _segment(self, name: str) -> str:
        """Lower case, with blanks: "EarthPorn", "itookapicture" and "food_porn" to "earth porn", ..."""
        return " ".join(word for piece in PIECE.findall(name) for word in self.split(piece.lower()))

    def split(self, text: str) -> list[str]:
        """The cheapest way to write `text` as words. One that is not known costs more than any two that are."""
        best: list[tuple[float, list[str]]] = [(0.0, [])]
        for end in range(1, len(text) + 1):
            best.append(min(self.ways(text, end, best), key=lambda way: way[0]))
        return best[-1][1]

    def ways(self, text: str, end: int, best: list[tuple[float, list[str]]]) -> list[tuple[float, list[str]]]:
        starts = range(max(0, end - MAX_WORD), end)
        words = [(start, text[start:end]) for start in starts]
        return [
            (best[start][0] + self.costs.get(word, self.unknown * (1 + len(word))), [*best[start][1], word])
            for start, word in words
        ]
