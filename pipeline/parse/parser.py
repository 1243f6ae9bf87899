"""Parse captions with spaCy, faster than `nlp.pipe` and with the same result for captions that need no preparation.

Components that no column needs are not loaded. The attribute ruler and the lemmatizer are replaced by a lookup table
(token_table.py), matrix products are numpy's (blas.py).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from spacy.attrs import HEAD, IDX, LENGTH
from spacy.tokens import Doc

from pipeline.parse.blas import use_blas
from pipeline.parse.chunks import LETTER, NounPhrase, merge_collectives, plain_phrases, repair, trim, without_last_marks
from pipeline.parse.config import ParseConfig
from pipeline.parse.phrases import PhraseRules, referring_expressions
from pipeline.parse.segments import segments, split_glued_separators
from pipeline.parse.spacy_model import load_spacy
from pipeline.parse.token_table import COMPONENTS, TokenTable, read_annotations
from pipeline.parse.types import CaptionParse, Chunk, Token
from pipeline.parse.word_lists import ANIMATE


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
        self.rules = PhraseRules.from_config(config, self.is_english)

    def parse(self, captions: Sequence[str]) -> Iterator[CaptionParse]:
        """Yield the parse of each caption, in order."""
        # spaCy keeps every new word in its vocabulary. The memory zone discards the words of these captions at its
        # end; otherwise memory would grow over millions of captions.
        with self.nlp.memory_zone():
            originals: deque[tuple[Doc, int]] = deque()
            docs = self.nlp.pipe(self._prepare(captions, originals), batch_size=self.config.batch_size)
            for doc in docs:
                original, n_segments = originals.popleft()
                yield self._convert(original, [doc, *islice(docs, n_segments - 1)])

    def _prepare(self, captions: Sequence[str], originals: deque[tuple[Doc, int]]) -> Iterator[Doc]:
        """Yield the segments of each caption; append the caption and the number of its segments to `originals`."""
        for caption in captions:
            original = self.nlp.make_doc(caption)
            parts = segments(original, self.config.split_at_separators, self.config.lower_titles and self.is_english)
            originals.append((original, len(parts)))
            yield from parts

    def _convert(self, original: Doc, parts: Sequence[Doc]) -> CaptionParse:
        strings, text = self.nlp.vocab.strings, original.text
        positions = original.to_array([IDX, LENGTH]).astype(np.int64)
        starts, lengths = positions[:, 0].tolist(), positions[:, 1].tolist()
        tokens: list[Token] = []
        phrases: list[NounPhrase] = []
        for doc in parts:
            annotations = self.token_table.annotate(doc) if self.token_table else read_annotations(doc)
            offset = len(tokens)
            heads = (doc.to_array([HEAD]).astype(np.int64).ravel() + np.arange(offset, offset + len(doc))).tolist()
            for head, a in zip(heads, annotations, strict=True):
                start = starts[len(tokens)]
                end = start + lengths[len(tokens)]
                tokens.append(Token(start, end, head, strings[a.dep], strings[a.pos], strings[a.tag], a.lemma))
            phrases += plain_phrases(doc.noun_chunks, offset)
        words = [text[token.start : token.end].lower() for token in tokens]
        phrases = self._repaired(words, tokens, phrases)
        chunks: list[Chunk] = []
        for phrase in phrases:
            start, end = self._span(text, tokens, phrase)
            has_letter = LETTER.search(text, start, end)
            removed = self.rules.removal(words, tokens, phrase) if has_letter else "no_letter"
            chunks.append(Chunk(start, end, phrase.root, removed))
        animate = ANIMATE if self.is_english else frozenset()
        ref_exps = referring_expressions(words, tokens, chunks, phrases, self.config.inner_conjuncts, animate)
        return CaptionParse(tokens=tokens, chunks=chunks, ref_exps=ref_exps)

    def _span(self, text: str, tokens: list[Token], phrase: NounPhrase) -> tuple[int, int]:
        if self.config.split_at_separators:
            return trim(text, tokens, phrase)
        return tokens[phrase.first].start, tokens[phrase.end - 1].end

    def _repaired(self, words: list[str], tokens: list[Token], phrases: list[NounPhrase]) -> list[NounPhrase]:
        """Apply the rules that are switched on; those for English only to a model for English."""
        if self.config.split_at_separators:
            phrases = [without_last_marks(words, phrase) for phrase in phrases]
        if self.is_english and self.config.repair_heads:
            phrases = repair(words, tokens, phrases)
        if self.is_english and self.config.merge_collectives:
            phrases = merge_collectives(words, tokens, phrases)
        return phrases
