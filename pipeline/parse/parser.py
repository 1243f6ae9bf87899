"""Parse captions with spaCy, faster than `nlp.pipe` and with the same result.

Components that no column needs are not loaded. The attribute ruler and the lemmatizer are replaced by a lookup table
(token_table.py).
"""

from collections.abc import Iterator, Sequence

import numpy as np
from spacy.attrs import HEAD, IDX, LENGTH
from spacy.tokens import Doc

from pipeline.parse.config import ParseConfig
from pipeline.parse.phrases import PhraseRules, referring_expressions
from pipeline.parse.spacy_model import load_spacy
from pipeline.parse.token_table import COMPONENTS, TokenTable, read_annotations
from pipeline.parse.types import CaptionParse, Chunk, Token


class CaptionParser:
    """A spaCy pipeline and the rules that turn its noun chunks into phrases.

    Raises UserError if the spaCy model is not installed or has no dependency parser.
    """

    def __init__(self, config: ParseConfig) -> None:
        self.batch_size = config.batch_size
        self.nlp = load_spacy(config.model)
        self.token_table = TokenTable(self.nlp) if TokenTable.fits(self.nlp) else None
        if self.token_table:
            for name in COMPONENTS:
                self.nlp.disable_pipe(name)
        self.rules = PhraseRules.from_config(config)

    def parse(self, captions: Sequence[str]) -> Iterator[CaptionParse]:
        """Yield the parse of each caption, in order."""
        # spaCy keeps every new word in its vocabulary. The memory zone discards the words of these captions at its
        # end; otherwise memory would grow over millions of captions.
        with self.nlp.memory_zone():
            for doc in self.nlp.pipe(captions, batch_size=self.batch_size):
                yield self._convert(doc)

    def _convert(self, doc: Doc) -> CaptionParse:
        annotations = self.token_table.annotate(doc) if self.token_table else read_annotations(doc)
        strings = self.nlp.vocab.strings
        offsets = doc.to_array([IDX, LENGTH, HEAD]).astype(np.int64)
        starts, heads = offsets[:, 0], offsets[:, 2] + np.arange(len(doc))
        ends = starts + offsets[:, 1]
        tokens = [
            Token(start, end, head, strings[a.dep], strings[a.pos], strings[a.tag], a.lemma)
            for start, end, head, a in zip(starts.tolist(), ends.tolist(), heads.tolist(), annotations, strict=True)
        ]
        token_spans = [(chunk.start, chunk.end) for chunk in doc.noun_chunks]
        chunks = [
            Chunk(tokens[first].start, tokens[end - 1].end, end - 1, self.rules.removal(tokens, first, end - 1))
            for first, end in token_spans
        ]
        ref_exps = referring_expressions(doc.text, tokens, chunks, token_spans)
        return CaptionParse(tokens=tokens, chunks=chunks, ref_exps=ref_exps)
