"""A look at some samples before all of them: what they hold, and whether they can be used."""

from typing import Final, Literal

import numpy as np

from common.errors import UserError
from trainer.data.config import Layout
from trainer.data.index import Index
from trainer.data.samples import BadSample, find_layout, key_of, read_sample
from trainer.data.shards import SpanReader

PROBES: Final = 64  # samples looked at, if none before them can be used
MEND: Final = (
    "Give train/ shards of the pipeline, HyCoCLIP's processed ones, raw GRIT, or tars of a jpg with a txt or with a "
    "JSON's caption"
)
MENDS: Final = {
    "no_boxes": "Train without boxes (model.use_boxes=false, model.boxes_as_pairs=false), or make shards with boxes: "
    "`python pipeline/grit.py` with formats=[train]",
    "no_parse": "Train a model that needs no parse, or make shards that hold one: `python pipeline/grit.py` with "
    "formats=[train]",
}


def probe(index: Index, expected: Layout | Literal["auto"], needs: frozenset[str]) -> Layout:
    """The layout, once a sample is found that can be used: the first of them, or one of several spread over all.

    Raises UserError if there is none.
    """
    reader = SpanReader()
    problems: list[tuple[str, BadSample]] = []
    for sample in np.unique(np.linspace(0, index.n_samples - 1, PROBES).astype(np.int64)):
        span = reader.read([index.span(int(sample))])[0]
        try:
            layout = find_layout(span) if expected == "auto" else expected
            read_sample(span, layout, needs)
            reader.close()
            return layout
        except BadSample as bad:
            problems.append((f"{index.locate(int(sample))[0].url}: {key_of(span)}", bad))
    (where, first), *others = problems
    alike = "nor has any other" if all(bad.reason == first.reason for _, bad in others) else "nor can any other be used"
    other = MEND if expected == "auto" else f"The layout asked for is {expected}; auto looks for itself"
    raise UserError(f"{where}: {first}; {alike} of {len(problems)} looked at. {MENDS.get(first.reason, other)}")
