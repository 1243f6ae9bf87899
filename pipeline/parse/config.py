"""Settings of the parse stage."""

from dataclasses import dataclass
from typing import Final

from common.config import check_range, runtime

SUFFIXES: Final = ("ness", "ity", "ism", "ship", "hood", "ment", "dom", "tude")
"""Endings of nouns that usually name something abstract."""


@dataclass(frozen=True, kw_only=True)
class ParseConfig:
    """The spaCy model that parses captions, and the words that do not become phrases."""

    # spaCy pipeline with a parser: an installed package or a folder
    model: str = "en_core_web_sm"
    # number of captions that spaCy parses together
    batch_size: int = runtime(256)
    # further abstract nouns (lemmas), in addition to pipeline/parse/word_lists.py; their phrases are removed
    extra_abstract: tuple[str, ...] = ()
    # endings of abstract nouns (lemmas), whose phrases are removed; []: none
    abstract_suffixes: tuple[str, ...] = SUFFIXES
    # nouns (lemmas) whose phrases are kept although a list or ending matches
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_range(self, "batch_size", least=1)
