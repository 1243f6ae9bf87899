"""Build a vocabulary of word pieces from texts, for a GLIP that is trained from scratch."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import BertWordPieceTokenizer

from common.disk import atomic_write


def write_vocabulary(path: Path, texts: Iterable[str], size: int) -> None:
    """Write at most `size` word pieces, one per line.

    They include all printable ASCII characters, so that no word of ASCII characters is unknown.
    """
    characters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    characters += [f"##{character}" for character in characters if character.isalnum()]
    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(texts, size - len(characters), min_frequency=1, show_progress=False)
    ids = tokenizer.get_vocab()
    pieces = dict.fromkeys([*sorted(ids, key=lambda piece: ids[piece]), *characters])
    with atomic_write(path) as draft:
        draft.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
