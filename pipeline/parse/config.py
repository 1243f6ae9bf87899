"""Settings of the parse stage."""

from dataclasses import dataclass
from typing import Final

from common.config import check_range, runtime

SUFFIXES: Final = ("ness", "ity", "ism", "ship", "hood", "ment", "tude")
"""Endings of nouns that usually name something abstract."""


@dataclass(frozen=True, kw_only=True)
class ParseConfig:
    """The spaCy model that parses captions, the rules for phrases (docs/phrases.md), and the filters."""

    # spaCy pipeline with a parser: an installed package or a folder
    model: str = "en_core_web_sm"
    # number of captions that spaCy parses together
    batch_size: int = runtime(256)
    # "a group of people" is one phrase; false: two, as in GRIT
    merge_collectives: bool = True
    # an expression includes conjuncts that describe its head ("a man in a hat and a coat"); false: it ends before
    # every "and", as in GRIT
    inner_conjuncts: bool = True
    # no phrase crosses a free-standing "-", "|", "–", ":" or "/"; false: as the parser finds them, as in GRIT
    split_at_separators: bool = True
    # parse captions in Title Case or capitals as if they were in lower case; false: as they are, as in GRIT
    lower_titles: bool = True
    # repair the heads of phrases: "a wire hanger", "a disk" (smiles), "skyline" (photo); false: as in GRIT
    repair_heads: bool = True
    # remove phrases by their context too: "the top" but not "a white top", "Photo by Jane Roe"; false: by the head only
    filter_by_context: bool = True
    # further abstract nouns (lemmas), in addition to pipeline/parse/word_lists.py; their phrases are removed
    extra_abstract: tuple[str, ...] = ()
    # endings of abstract nouns (lemmas), whose phrases are removed; []: none
    abstract_suffixes: tuple[str, ...] = SUFFIXES
    # nouns (lemmas) whose phrases are kept although a list or ending matches
    keep: tuple[str, ...] = ()
    # drop captions in other languages than these (ISO 639-1 codes, for example [en]); []: keep all. Needs
    # pip install hypergrit[language]
    languages: tuple[str, ...] = ()
    # probability of another language from which a caption is dropped
    min_language_probability: float = 0.5

    def __post_init__(self) -> None:
        check_range(self, "batch_size", least=1)
        check_range(self, "min_language_probability", least=0, most=1)
