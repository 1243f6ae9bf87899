"""The tokenizer of a saved model: OpenAI's, or a file beside its weights."""

from pathlib import Path
from typing import Final

from hypergrit_common.errors import UserError
from hypergrit_common.model_files import TOKENIZER
from trainer.encoders.config import CACHED, TRANSFORMERS, TextConfig
from trainer.text.base import TextTokenizer
from trainer.text.fast_tokenizer import FastTokenizer, load_fast_tokenizer, read_fast_tokenizer, write_fast_tokenizer
from trainer.text.tokenizer import OPENAI_MERGES, Tokenizer, openai_tokenizer, read_tokenizer, write_merges

OPENAI: Final = "openai"
MERGES_FILE: Final = "merges.txt"


def is_openai(tokenizer: TextTokenizer) -> bool:
    """True for the tokenizer of OpenAI's CLIP, which needs no file."""
    return isinstance(tokenizer, Tokenizer) and len(tokenizer.merges) == OPENAI_MERGES


def write_tokenizer(tokenizer: TextTokenizer, folder: Path) -> str:
    """Write the file of a tokenizer, unless it is OpenAI's. Return its name in the model's config.json."""
    if is_openai(tokenizer):
        return OPENAI
    if isinstance(tokenizer, FastTokenizer):
        write_fast_tokenizer(tokenizer, folder / TOKENIZER)
        return TOKENIZER
    assert isinstance(tokenizer, Tokenizer)
    write_merges(tokenizer, folder / MERGES_FILE)
    return MERGES_FILE


def named_tokenizer(name: str, text: TextConfig) -> TextTokenizer:
    """The tokenizer that a run names. Raises UserError, with the setting, if it cannot be read."""
    forms = "give openai or the path of a merges.txt"
    try:
        if text.name == TRANSFORMERS or (text.name == CACHED and Path(name).is_dir()):
            forms = "give a folder with the tokenizer of the text tower"
            tokenizer = read_fast_tokenizer(Path(name), text.context_length)
            if text.name == CACHED:  # the padding of a frozen model is in its config.json
                tokenizer.pad_id = text.pad_id
            return tokenizer
        return (
            openai_tokenizer(text.context_length) if name == OPENAI else read_tokenizer(Path(name), text.context_length)
        )
    except (OSError, ValueError) as error:
        raise UserError(f"tokenizer={name} cannot be read: {error}; {forms}") from None


def load_tokenizer(name: str, folder: Path, text: TextConfig) -> TextTokenizer:
    """Load the tokenizer of a model folder by its name in config.json.

    Raises OSError if its file cannot be read, and ValueError if it does not fit the text tower.
    """
    tokenizer: TextTokenizer
    file = TOKENIZER if name == TOKENIZER else MERGES_FILE
    if name == TOKENIZER:
        tokenizer = load_fast_tokenizer(folder / file, text.pad_id, text.context_length)
    elif name == OPENAI:
        tokenizer = openai_tokenizer(text.context_length)
    else:
        tokenizer = read_tokenizer(folder / file, text.context_length)
    if not fits(tokenizer, text):
        raise ValueError(
            f"{folder}: {file} gives {tokenizer.vocab_size} tokens, the model has {text.vocab_size}; copy the folder again, "
            "or save the model again"
        )
    return tokenizer


def fits(tokenizer: TextTokenizer, text: TextConfig) -> bool:
    """True if the text tower embeds the tokens. Those of transformers often have embeddings of further ids."""
    if isinstance(tokenizer, FastTokenizer):
        return tokenizer.vocab_size <= text.vocab_size and tokenizer.pad_id == text.pad_id
    return tokenizer.vocab_size == text.vocab_size
