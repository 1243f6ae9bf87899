"""The result of parsing a caption. Character offsets are half open, [start, end)."""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np
from spacy.attrs import DEP, ORTH, POS, TAG
from spacy.language import Language
from spacy.matcher import Matcher
from spacy.pipeline import AttributeRuler, Lemmatizer
from spacy.tokens import Doc

# A lookup table for the results of spaCy's attribute ruler and rule lemmatizer.
#
# Together these two components take a third of the parsing time. Apart from a few patterns over several tokens, their
# result depends on a single token only: its text, tag and dependency label. A token that was seen before therefore costs
# one dictionary lookup, and the result is still the one that spaCy computed.

MAX_ENTRIES: Final = 100_000
"""Entries after which the table is cleared; about 30 MB."""
COMPONENTS: Final = ["attribute_ruler", "lemmatizer"]
"""Components that the table replaces."""
LOCAL_KEYS: Final = {"TAG", "LOWER", "DEP", "IS_SPACE"}
"""Keys of ruler patterns that depend only on the text, tag and dependency label of a token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """Final labels of a token. Includes `tag` and `dep`, since the ruler may change them."""

    pos: int
    tag: int
    dep: int
    lemma: str


class TokenTable:
    """Annotations by (text, tag, dependency label), for a pipeline that ends with COMPONENTS."""

    def __init__(self, nlp: Language) -> None:
        self.nlp = nlp
        self.ruler: Any = nlp.get_pipe("attribute_ruler")
        self.lemmatizer: Any = nlp.get_pipe("lemmatizer")
        self.contextual = Matcher(nlp.vocab)
        for index, pattern in enumerate(_patterns(self.ruler)):
            if len(pattern) > 1:
                self.contextual.add(str(index), [pattern])
        self.entries: dict[tuple[int, ...], list[Annotation]] = {}

    @staticmethod
    def fits(nlp: Language) -> bool:
        """True if the last two components of the pipeline can be replaced by a table."""
        if nlp.component_names[-2:] != COMPONENTS:
            return False
        ruler, lemmatizer = (nlp.get_pipe(name) for name in COMPONENTS)
        if not isinstance(ruler, AttributeRuler) or not isinstance(lemmatizer, Lemmatizer):
            return False
        if lemmatizer.mode != "rule" or lemmatizer.overwrite:
            return False
        return all(set(token) <= LOCAL_KEYS for pattern in _patterns(ruler) for token in pattern)

    def annotate(self, doc: Doc) -> list[Annotation]:
        """Return the annotation of each token, and set the labels of `doc`, which its noun chunks depend on."""
        if len(self.entries) > MAX_ENTRIES:
            self.entries.clear()
            self.lemmatizer.cache.clear()
        keys = list(map(tuple, doc.to_array([ORTH, TAG, DEP]).tolist()))
        found: list[Annotation] = []
        for start, end in _runs(self.contextual(doc), len(doc)):
            key = keys[start] if end == start + 1 else sum(keys[start:end], ())
            entry = self.entries.get(key)
            if entry is None:
                entry = self.entries[key] = self._compute(doc, start, end)
            found += entry
        labels: Any = np.array([(entry.pos, entry.tag, entry.dep) for entry in found], np.uint64)
        doc.from_array([POS, TAG, DEP], labels)
        return found

    def _compute(self, doc: Doc, start: int, end: int) -> list[Annotation]:
        """Run the two spaCy components on the tokens [start, end); no match of a pattern crosses this range's ends."""
        tokens = doc[start:end]
        part = Doc(
            doc.vocab,
            words=[token.text for token in tokens],
            tags=[token.tag_ for token in tokens],
            deps=[token.dep_ for token in tokens],
            heads=[0] * len(tokens),
        )
        self.lemmatizer(self.ruler(part))
        return read_annotations(part)


def _patterns(ruler: Any) -> list[list[dict[str, Any]]]:
    return [pattern for rule in ruler.patterns for pattern in rule["patterns"]]


def _runs(matches: list[tuple[int, int, int]], length: int) -> Iterator[tuple[int, int]]:
    """Divide [0, length) into the spans of `matches`, overlapping ones merged, and single tokens between them."""
    merged: list[tuple[int, int]] = []
    for _, start, end in sorted(matches, key=itemgetter(1)):
        if merged and start < merged[-1][1]:
            start, end = merged[-1][0], max(end, merged.pop()[1])
        merged.append((start, end))
    position = 0
    for start, end in merged:
        yield from ((i, i + 1) for i in range(position, start))
        yield start, end
        position = end
    yield from ((i, i + 1) for i in range(position, length))


def read_annotations(doc: Doc) -> list[Annotation]:
    """Return the annotations of a fully processed doc. A token without a lemma gets its lower-cased text as lemma."""
    return [Annotation(pos=t.pos, tag=t.tag, dep=t.dep, lemma=t.lemma_ or t.lower_) for t in doc]
