"""Recognise the language of a caption, by py3langid's model of byte n-grams."""

from collections.abc import Collection
from typing import Any

from common.errors import UserError


class LanguageFilter:
    """Find captions that are probably in none of the given languages (ISO 639-1 codes).

    Raises UserError if py3langid is not installed or does not know one of the languages.

    >>> from pipeline.parse.language import LanguageFilter
    >>> LanguageFilter(["en"], 0.5).wrong_language("ein Hund und eine Katze sitzen auf einem alten Sofa")[:2]
    'de'
    """

    def __init__(self, languages: Collection[str], min_probability: float) -> None:
        try:
            from py3langid.langid import MODEL_FILE, LanguageIdentifier
        except ImportError as error:
            raise UserError("parse.languages needs py3langid; pip install 'hypergrit[language]'") from error
        self.identifier: Any = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        unknown = sorted(set(languages) - set(self.identifier.labels))
        if unknown:
            raise UserError(f"parse.languages: py3langid does not know {unknown}; use ISO 639-1 codes such as en")
        self.languages = frozenset(languages)
        self.min_probability = min_probability

    def wrong_language(self, caption: str) -> str | None:
        """Return language and probability ("de 0.97") of a caption in another language, else None."""
        language, probability = self.identifier.classify(caption)
        if language in self.languages or probability < self.min_probability:
            return None
        return f"{language} {probability:.2f}"
