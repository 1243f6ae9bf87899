"""A vocabulary of word pieces made from texts, for a GLIP that is trained from scratch."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import BertWordPieceTokenizer


def write_vocabulary(path: Path, texts: Iterable[str], size: int) -> None:
    """At most `size` word pieces, one a line; every ASCII character is among them, so that no word is all unknown."""
    characters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    characters += [f"##{character}" for character in characters if character.isalnum()]
    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(texts, size - len(characters), min_frequency=1, show_progress=False)
    ids = tokenizer.get_vocab()
    pieces = dict.fromkeys([*sorted(ids, key=lambda piece: ids[piece]), *characters])
    path.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
