"""CLIP's byte-pair encoding (Radford et al. 2021, section 2.4), with OpenAI's merges or others in the same format.

A merges file with m merges gives this vocabulary, in the order of the ids: 256 bytes, the same 256 at the end of a
word, the m merged pieces, start of text, end of text. OpenAI's vocabulary has 49,408 entries.
"""

import gzip
import hashlib
import html
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import accumulate, pairwise
from pathlib import Path

import ftfy
import regex

from hypergrit_common.files import check_file
from trainer.text.base import Span, TextTokenizer, source_spans

END_OF_WORD = "</w>"
OPENAI_SHA256 = "924691ac288e54409236115652ad4aa250f48203de50a9e4722a6ecd48d6804a"
OPENAI_MERGES = 49_152 - 256 - 2  # merges that CLIP uses; the file has more
MAX_MERGES_BYTES = 16 * 1024 * 1024

# Contractions, runs of letters, single digits, runs of other characters.
WORD = regex.compile(r"""'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+""", regex.IGNORECASE)


def clean(text: str) -> str:
    """Repair mojibake, unescape HTML entities (twice: "&amp;amp;" is common), collapse white space; keep the case."""
    return " ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split())


@lru_cache(maxsize=1)
def byte_symbols() -> tuple[str, ...]:
    """Return the printable character that represents each byte in merges files: its own, or one from U+0100 on."""
    symbols, spare = [], 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            symbols.append(chr(byte))
        else:
            symbols.append(chr(spare))
            spare += 1
    return tuple(symbols)


class Tokenizer(TextTokenizer):
    """Converts texts to token ids and back. `merges` are pairs of pieces, the most frequent first.

    Batches are padded with 0, which is also the id of a token. After end of text it has no effect in a tower with a
    causal mask; open_clip's towers without such a mask are trained with this padding.
    """

    pad_id = 0
    n_end = 1

    def __init__(self, merges: Sequence[tuple[str, str]], context_length: int = 77) -> None:
        letters = sorted(byte_symbols(), key=ord)  # in the order of their ids: printable bytes first
        pieces = letters + [letter + END_OF_WORD for letter in letters] + [first + second for first, second in merges]
        self.merges = tuple(merges)
        self.context_length = context_length
        self.pieces = pieces
        self.ids = {piece: index for index, piece in enumerate(pieces)}
        self.start_id, self.end_id = len(pieces), len(pieces) + 1
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.word_ids = lru_cache(maxsize=65_536)(self._word_ids)

    def __reduce__(self) -> tuple[type, tuple[tuple[tuple[str, str], ...], int]]:
        """Pickle without the cache."""
        return Tokenizer, (self.merges, self.context_length)

    @property
    def vocab_size(self) -> int:
        return len(self.pieces) + 2

    @property
    def definition(self) -> str:
        return repr(self.merges)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text of any length, including start and end of text."""
        ids = [self.start_id]
        for word in WORD.findall(clean(text).lower()):
            ids += self.word_ids(word)
        return [*ids, self.end_id]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the ids of `encode`, and for each id the span [start, end) of characters of `text` that it encodes.

        Offsets count in `text` before cleaning and lower-casing. A token that encodes only some bytes of a character
        has the span of that character. Start and end of text have the empty spans (0, 0) and (n, n).
        """
        cleaned, sources = source_spans(text, clean)
        if len(cleaned.lower()) != len(cleaned):  # a dotted capital I becomes two characters
            sources = [source for source, char in zip(sources, cleaned, strict=True) for _ in char.lower()]
        ids, spans = [self.start_id], [(0, 0)]
        for match in WORD.finditer(cleaned.lower()):
            word, start_of_word = match.group(), match.start()
            word_ids = self.word_ids(word)
            # The index, in the lower-case text, of the character that each byte of the word belongs to.
            chars: Sequence[int] = range(start_of_word, match.end())
            if not word.isascii():
                chars = [start_of_word + i for i, char in enumerate(word) for _ in char.encode()]
            ends = list(accumulate(len(self.pieces[index]) for index in word_ids))
            ends[-1] = len(chars)  # without the end-of-word mark of the last piece
            spans += [(sources[chars[start]][0], sources[chars[end - 1]][1]) for start, end in pairwise([0, *ends])]
            ids += word_ids
        return [*ids, self.end_id], [*spans, (len(text), len(text))]

    def words(self) -> list[str]:
        return [piece.removesuffix(END_OF_WORD) for piece in self.pieces if piece.endswith(END_OF_WORD)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids up to end of text: cleaned, in lower case, with a space between any two words.

        The encoding does not preserve the white space of the original text.
        """
        text = ""
        for index in ids:
            if index == self.end_id:
                break
            if index != self.start_id:
                text += self.pieces[index]
        to_byte = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
        words = (bytes(to_byte[symbol] for symbol in word) for word in text.split(END_OF_WORD) if word)
        return " ".join(word.decode("utf-8", errors="replace") for word in words)

    def _word_ids(self, word: str) -> tuple[int, ...]:
        """Return the ids of a word.

        Merges the adjacent pair with the lowest rank, everywhere in the word, until no pair has a rank.
        """
        symbols = byte_symbols()
        pieces = [symbols[byte] for byte in word.encode("utf-8")]
        pieces[-1] += END_OF_WORD
        while len(pieces) > 1:
            pairs = set(pairwise(pieces))
            pair = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if pair not in self.ranks:
                break
            merged: list[str] = []
            for piece in pieces:
                # A piece just merged is never merged again here: it is longer than either half of `pair`.
                if merged and (merged[-1], piece) == pair:
                    merged[-1] += piece
                else:
                    merged.append(piece)
            pieces = merged
        return tuple(self.ids[piece] for piece in pieces)


def openai_tokenizer(context_length: int = 77) -> Tokenizer:
    """Return the tokenizer of OpenAI's CLIP, with the merges in the open_clip package (MIT licence).

    Raises ValueError if the package contains another merges file.
    """
    data = (files("open_clip") / "bpe_simple_vocab_16e6.txt.gz").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != OPENAI_SHA256:
        raise ValueError(
            f"open_clip's bpe_simple_vocab_16e6.txt.gz has sha256 {digest}, not {OPENAI_SHA256}; "
            f"reinstall open_clip_torch"
        )
    return Tokenizer(parse_merges(gzip.decompress(data).decode("utf-8"))[:OPENAI_MERGES], context_length)


def read_tokenizer(path: Path, context_length: int = 77) -> Tokenizer:
    """Read the tokenizer of a merges file, `.txt` or `.txt.gz`.

    Raises ValueError if it is not a merges file, OSError if it cannot be read.
    """
    check_file(path)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        data = file.read(MAX_MERGES_BYTES + 1)
    if len(data) > MAX_MERGES_BYTES:
        raise ValueError(f"{path} is larger than {MAX_MERGES_BYTES} bytes, so it is not a merges file")
    try:
        return Tokenizer(parse_merges(data.decode("utf-8")), context_length)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def parse_merges(text: str) -> list[tuple[str, str]]:
    """Parse a merges file: a comment line, then one pair per line, separated by a space.

    Raises ValueError, naming the line.
    """
    merges = []
    for number, line in enumerate(text.strip().split("\n")[1:], start=2):
        pair = line.split(" ")
        if len(pair) != 2:
            raise ValueError(f"line {number} is {line[:40]!r}; expected two pieces separated by a space")
        merges.append((pair[0], pair[1]))
    return merges


def write_merges(tokenizer: Tokenizer, path: Path) -> None:
    """Write a tokenizer as a merges file that `read_tokenizer` reads."""
    path.write_text("#merges\n" + "".join(f"{a} {b}\n" for a, b in tokenizer.merges), encoding="utf-8")
