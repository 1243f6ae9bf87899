"""Parse captions with spaCy, faster than `nlp.pipe` and with the same result for captions that need no preparation.

Components that no column needs are not loaded. A lookup table replaces the attribute ruler and the lemmatizer
(`TokenTable`), and matrix products are numpy's (`BlasOps`).
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import spacy
from spacy.attrs import DEP, HEAD, IDX, LENGTH, ORTH, POS, TAG
from spacy.language import Language
from spacy.matcher import Matcher
from spacy.pipeline import AttributeRuler, Lemmatizer
from spacy.tokens import Doc
from thinc.api import Model, NumpyOps

from hypergrit_common.errors import UserError
from hypergrit_common.files import check_folder_files
from hypergrit_common.text import one_line
from pipeline.stages.parse.chunks import NounPhrase, Scene, plain_phrase
from pipeline.stages.parse.config import ParseConfig, Rules, check_parser, parser_path, spacy_package
from pipeline.stages.parse.normalise import EMOJI, Hidden, Segment, normalise, set_up_tokenizer
from pipeline.stages.parse.phrases import PhraseRules
from pipeline.stages.parse.types import CaptionParse, Token

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
    """Annotations by (text, tag, dependency label), in place of spaCy's COMPONENTS, which take a third of the parsing time.

    Apart from a few patterns over several tokens, their result depends on a single token only.
    """

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


# Matrix products of spaCy's models by numpy's BLAS, which takes a third to two thirds of the time of spaCy's own.


class BlasOps(NumpyOps):
    """CPU operations with `numpy.matmul` as matrix product."""

    name = "numpy"

    def gemm(self, x: Any, y: Any, out: Any = None, trans1: bool = False, trans2: bool = False) -> Any:
        """Return the matrix product of `x` and `y`, each transposed on request."""
        return np.matmul(x.T if trans1 else x, y.T if trans2 else y, out=out)


def use_blas(nlp: Language) -> None:
    """Replace the operations of all models of the pipeline that run on the CPU."""
    ops = BlasOps()
    for _, component in nlp.pipeline:
        model = getattr(component, "model", None)
        for node in model.walk() if isinstance(model, Model) else ():
            if type(node.ops) is NumpyOps:
                node.ops = ops


# Recognise the language of a caption, by py3langid's model of byte n-grams.


class LanguageFilter:
    """Find captions that are probably in none of the given languages (ISO 639-1 codes).

    Raises UserError if py3langid is not installed or does not know one of the languages.

    >>> from pipeline.stages.parse.parser import LanguageFilter
    >>> LanguageFilter(["en"], 0.5).wrong_language("ein Hund und eine Katze sitzen auf einem alten Sofa")[:2]
    'de'
    """

    def __init__(self, languages: Collection[str], min_probability: float) -> None:
        try:
            from py3langid.langid import MODEL_FILE, LanguageIdentifier
        except ImportError as error:
            raise UserError("parse.languages needs py3langid; pip install py3langid") from error
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


FEW_BYTES: Final = 20
"""Bytes of UTF-8 below which the language of a caption is not judged."""


def share_of_others(captions: Iterable[str], language: str) -> tuple[float, int]:
    """Return the share of captions that `parse.languages` with this language alone drops.

    Args:
        captions: cleaned captions; those of fewer than FEW_BYTES bytes are not judged.
        language: ISO 639-1 code.

    Returns:
        The share in [0, 1], and the number of captions that were judged; (0, 0) without py3langid.
    """
    judged = [text for text in captions if len(text.encode()) >= FEW_BYTES]
    if not judged:
        return 0.0, 0
    try:
        found = LanguageFilter([language], ParseConfig.min_language_probability)
    except UserError:
        return 0.0, 0
    return sum(found.wrong_language(text) is not None for text in judged) / len(judged), len(judged)


# Load the spaCy pipeline that `parse.model` names.

UNUSED: Final = ["ner", "senter", "entity_linker", "entity_ruler", "textcat", "textcat_multilabel"]
"""Components that no column of the PARSED schema needs."""


def load_spacy(name: str) -> Language:
    """Load a spaCy pipeline, by package name or folder, without its UNUSED components.

    Raises UserError if it is not installed, cannot be loaded, or has no dependency parser.
    """
    check_parser(name)
    package = spacy_package(name)
    try:
        check_folder_files(package)
        _use_gpu_for_transformer(package)
        nlp = spacy.load(package, exclude=UNUSED)
    except Exception as error:  # its type depends on the file that is damaged
        raise UserError(f"parse.model={name!r} cannot be loaded by spaCy: {one_line(error)}") from error
    if "parser" not in nlp.pipe_names:
        raise UserError(
            f"parse.model={name!r} has no dependency parser; choose a model with one (its components: {nlp.pipe_names})"
        )
    if nlp.vocab.get_noun_chunks is None:
        raise UserError(f"parse.model={name!r}: spaCy has no noun chunks for the language {nlp.lang!r}; choose another")
    return nlp


def _use_gpu_for_transformer(package: str) -> None:
    """Run a pipeline with a transformer on the GPU, if there is one and CuPy is installed; others stay on the CPU."""
    path = Path(parser_path(package), "config.cfg")
    if path.is_file() and any("transformer" in name for name in spacy.util.load_config(path)["nlp"]["pipeline"]):
        spacy.prefer_gpu()


def unparsed(token: Any) -> Token:
    """Return a token that the parser did not see: its own head, without labels of spaCy's."""
    return Token(token.idx, token.idx + len(token), token.i, "dep", "X", "XX", token.lower_)


class Prepared(NamedTuple):
    """A caption, the segments that the parser sees, and what it does not see."""

    text: str
    doc: Doc
    segments: Sequence[Segment]
    hidden: Sequence[Hidden]


class Analysis(NamedTuple):
    """The parse of a caption, the scene that the rules saw, and the tokens of each of its noun chunks."""

    parse: CaptionParse
    scene: Scene
    phrases: Sequence[NounPhrase]


class CaptionParser:
    """A spaCy pipeline and the rules that turn its noun chunks into phrases.

    Args:
        config: settings.
        rules: rules in place of those of `config.style`, such as one of them alone.

    Raises:
        UserError: the spaCy model is not installed or cannot be used (`load_spacy`).
    """

    def __init__(self, config: ParseConfig, rules: Rules | None = None) -> None:
        """Load the pipeline."""
        self.config, self.style = config, rules or config.rules
        self.nlp = load_spacy(config.model)
        self.token_table = TokenTable(self.nlp) if TokenTable.fits(self.nlp) else None
        if self.token_table:
            for name in COMPONENTS:
                self.nlp.disable_pipe(name)
        use_blas(self.nlp)
        if self.style.normalise:
            set_up_tokenizer(self.nlp)
        self.is_english = self.nlp.lang == "en"
        self.rules = PhraseRules.from_config(config, self.style, self.is_english)

    def parse(self, captions: Sequence[str]) -> Iterator[CaptionParse]:
        """Parse captions.

        Args:
            captions: cleaned captions, not empty.

        Yields:
            The parse of each caption, in order: tokens, noun chunks with the reason of those that are removed, and the
                referring expressions of the others.
        """
        return (analysis.parse for analysis in self.analyse(captions))

    def analyse(self, captions: Sequence[str]) -> Iterator[Analysis]:
        """Parse captions like `parse`.

        Args:
            captions: cleaned captions, not empty.

        Yields:
            The parse of each caption, in order, with what its rules saw.
        """
        # spaCy keeps every new word in its vocabulary. The memory zone discards the words of these captions at its
        # end; otherwise memory would grow over millions of captions.
        with self.nlp.memory_zone():
            prepared: deque[Prepared] = deque()
            docs = self.nlp.pipe(self._prepare(captions, prepared), batch_size=self.config.batch_size)
            for doc in docs:
                caption = prepared.popleft()
                yield self._convert(caption, [doc, *islice(docs, len(caption.segments) - 1)])

    def _prepare(self, captions: Sequence[str], prepared: deque[Prepared]) -> Iterator[Doc]:
        """Yield what the parser sees of each caption; append the caption, its segments and what is hidden to `prepared`."""
        for caption in captions:
            doc = self.nlp.make_doc(caption)
            is_divided = self.style.normalise
            segments, hidden = (
                normalise(doc, caption, self.is_english) if is_divided else ([Segment(range(len(doc)), doc, None)], [])
            )
            prepared.append(Prepared(caption, doc, segments, hidden))
            yield from (segment.doc for segment in segments)

    def _convert(self, prepared: Prepared, docs: Sequence[Doc]) -> Analysis:
        """Return the parse of a caption from those of its segments."""
        text, doc, segments, hidden = prepared
        strings = self.nlp.vocab.strings
        noun_chunks: Any = self.nlp.vocab.get_noun_chunks
        positions = doc.to_array([IDX, LENGTH]).astype(np.int64).tolist()

        def is_gap(left: int, right: int) -> bool:
            """True if more than an emoji lies between two tokens."""
            return right > left + 1 and not EMOJI.fullmatch(doc[left + 1 : right].text)

        found, segment_of, phrases = dict[int, Token](), [-1] * len(doc), list[NounPhrase]()
        for number, (segment, part) in enumerate(zip(segments, docs, strict=True)):
            places = segment.tokens
            annotations = self.token_table.annotate(part) if self.token_table else read_annotations(part)
            heads = (part.to_array([HEAD]).astype(np.int64).ravel() + np.arange(len(part))).tolist()
            for place, head, a in zip(places, heads, annotations, strict=True):
                start, length = positions[place]
                labels = (strings[a.dep], strings[a.pos], strings[a.tag], a.lemma)
                found[place] = Token(start, start + length, places[head], *labels)
                segment_of[place] = number
            phrases += (plain_phrase(first, end, heads, places, is_gap) for first, end, _ in noun_chunks(part))
        tokens = [found.get(i) or unparsed(doc[i]) for i in range(len(doc))]
        words = [text[token.start : token.end].lower() for token in tokens]
        scene = Scene(text, words, tokens, segment_of, segments)
        chunks, phrases = self.rules.chunks(scene, sorted(phrases), hidden)
        ref_exps = self.rules.expressions(scene, chunks, phrases)
        return Analysis(CaptionParse(tokens=tokens, chunks=chunks, ref_exps=ref_exps), scene, phrases)
