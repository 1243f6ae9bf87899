"""Parse captions with spaCy, faster than `nlp.pipe` and with the same result for captions that need no preparation.

Components that no column needs are not loaded. The attribute ruler and the lemmatizer are replaced by a lookup table
(token_table.py), matrix products are numpy's (blas.py).
"""

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from spacy.attrs import HEAD, IDX, LENGTH
from spacy.tokens import Doc

from pipeline.parse.blas import use_blas
from pipeline.parse.chunks import NounPhrase, merge_collectives, plain_phrases, repair, trim
from pipeline.parse.config import ParseConfig
from pipeline.parse.phrases import PhraseRules, referring_expressions
from pipeline.parse.segments import in_sentence_case, mark_segments, split_glued_separators
from pipeline.parse.spacy_model import load_spacy
from pipeline.parse.token_table import COMPONENTS, TokenTable, read_annotations
from pipeline.parse.types import CaptionParse, Chunk, Token


class CaptionParser:
    """A spaCy pipeline and the rules that turn its noun chunks into phrases.

    Raises UserError if the spaCy model is not installed or has no dependency parser.
    """

    def __init__(self, config: ParseConfig) -> None:
        self.config = config
        self.nlp = load_spacy(config.model)
        self.token_table = TokenTable(self.nlp) if TokenTable.fits(self.nlp) else None
        if self.token_table:
            for name in COMPONENTS:
                self.nlp.disable_pipe(name)
        use_blas(self.nlp)
        if config.split_at_separators:
            split_glued_separators(self.nlp)
        self.is_english = self.nlp.lang == "en"
        self.rules = PhraseRules.from_config(config)

    def parse(self, captions: Sequence[str]) -> Iterator[CaptionParse]:
        """Yield the parse of each caption, in order."""
        # spaCy keeps every new word in its vocabulary. The memory zone discards the words of these captions at its
        # end; otherwise memory would grow over millions of captions.
        with self.nlp.memory_zone():
            originals: deque[Doc] = deque()
            for doc in self.nlp.pipe(self._prepare(captions, originals), batch_size=self.config.batch_size):
                yield self._convert(originals.popleft(), doc)

    def _prepare(self, captions: Sequence[str], originals: deque[Doc]) -> Iterator[Doc]:
        """Yield the document to parse of each caption; append the one with its own text to `originals`."""
        for caption in captions:
            original = self.nlp.make_doc(caption)
            doc = in_sentence_case(original) if self.config.lower_titles and self.is_english else original
            if self.config.split_at_separators:
                mark_segments(doc)
            originals.append(original)
            yield doc

    def _convert(self, original: Doc, doc: Doc) -> CaptionParse:
        annotations = self.token_table.annotate(doc) if self.token_table else read_annotations(doc)
        strings, text = self.nlp.vocab.strings, original.text
        positions = original.to_array([IDX, LENGTH]).astype(np.int64)
        starts, ends = positions[:, 0], positions[:, 0] + positions[:, 1]
        heads = doc.to_array([HEAD]).astype(np.int64).ravel() + np.arange(len(doc))
        tokens = [
            Token(start, end, head, strings[a.dep], strings[a.pos], strings[a.tag], a.lemma)
            for start, end, head, a in zip(starts.tolist(), ends.tolist(), heads.tolist(), annotations, strict=True)
        ]
        words = [text[token.start : token.end].lower() for token in tokens]
        phrases = self._phrases(words, tokens, [(chunk.start, chunk.end) for chunk in doc.noun_chunks])
        chunks = [
            Chunk(*trim(text, tokens, phrase), phrase.root, self.rules.removal(words, tokens, phrase))
            for phrase in phrases
        ]
        ref_exps = referring_expressions(words, tokens, chunks, phrases, self.config.inner_conjuncts)
        return CaptionParse(tokens=tokens, chunks=chunks, ref_exps=ref_exps)

    def _phrases(self, words: list[str], tokens: list[Token], spans: list[tuple[int, int]]) -> list[NounPhrase]:
        phrases = plain_phrases(spans)
        if self.is_english and self.config.repair_heads:
            phrases = repair(words, tokens, phrases)
        if self.is_english and self.config.merge_collectives:
            phrases = merge_collectives(words, tokens, phrases)
        return phrases
