"""What spaCy's attribute ruler and rule lemmatizer say about a token, looked up instead of computed again.

Both are pure functions of a single token (its text, tag and dependency label), apart from a few patterns over several
tokens; together they take a third of the parse. A token seen before costs one dictionary access here, with spaCy's own answer.
"""

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

MAX_ENTRIES: Final = 1_000_000  # about 300 MB; then the table starts again
COMPONENTS: Final = ["attribute_ruler", "lemmatizer"]
LOCAL_KEYS: Final = {"TAG", "LOWER", "DEP", "IS_SPACE"}  # of patterns that the text, tag and label of a token decide


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """Final labels of a token: `tag` and `dep` too, since rules may correct them."""

    pos: int
    tag: int
    dep: int
    lemma: str


class TokenTable:
    """Annotations by (text, tag, label) for a pipeline that ends in an attribute ruler and a rule lemmatizer."""

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
        """True if the pipeline's last two components are ones that a table can stand for."""
        if nlp.component_names[-2:] != COMPONENTS:
            return False
        ruler, lemmatizer = (nlp.get_pipe(name) for name in COMPONENTS)
        if not isinstance(ruler, AttributeRuler) or not isinstance(lemmatizer, Lemmatizer):
            return False
        if lemmatizer.mode != "rule" or lemmatizer.overwrite:
            return False
        return all(set(token) <= LOCAL_KEYS for pattern in _patterns(ruler) for token in pattern)

    def annotate(self, doc: Doc) -> list[Annotation]:
        """The annotation of each token; the doc's own labels are set too, since noun chunks need them."""
        if len(self.entries) > MAX_ENTRIES:
            self.entries.clear()
            self.lemmatizer.cache.clear()
        keys = list(map(tuple, doc.to_array([ORTH, TAG, DEP]).tolist()))
        found: list[Annotation] = []
        for start, end in _runs(self.contextual(doc), len(doc)):
            key = keys[start] if end == start + 1 else sum(keys[start:end], ())
            entry = self.entries.get(key)
            if entry is None:
                entry = self.entries[key] = self._ask(doc, start, end)
            found += entry
        labels: Any = np.array([(entry.pos, entry.tag, entry.dep) for entry in found], np.uint64)
        doc.from_array([POS, TAG, DEP], labels)
        return found

    def _ask(self, doc: Doc, start: int, end: int) -> list[Annotation]:
        """spaCy's own answer for the tokens [start, end), which no pattern looks beyond."""
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
    """[0, length) cut into single tokens and the spans of matches, those that overlap joined."""
    joined: list[tuple[int, int]] = []
    for _, start, end in sorted(matches, key=itemgetter(1)):
        if joined and start < joined[-1][1]:
            start, end = joined[-1][0], max(end, joined.pop()[1])
        joined.append((start, end))
    position = 0
    for start, end in joined:
        yield from ((i, i + 1) for i in range(position, start))
        yield start, end
        position = end
    yield from ((i, i + 1) for i in range(position, length))


def read_annotations(doc: Doc) -> list[Annotation]:
    """The annotations of a doc that went through its whole pipeline; lower-cased text where there are no lemmas."""
    return [Annotation(pos=t.pos, tag=t.tag, dep=t.dep, lemma=t.lemma_ or t.lower_) for t in doc]
