"""Check some samples before training: detect their layout, and fail early if none can be used."""

from typing import Final, Literal

import numpy as np

from common.errors import UserError
from trainer.data.config import Layout
from trainer.data.index import Index
from trainer.data.layouts import find_layout, read_sample
from trainer.data.samples import BadSample, sample_key
from trainer.data.shards import ByteRangeReader

MAX_PROBES: Final = 64  # samples to check before the data are rejected
FIXES: Final = {
    "no_boxes": "train without boxes (model.use_boxes=false, model.boxes_as_pairs=false), or create shards with boxes: "
    "`python pipeline/grit.py` with formats=[train]",
    "no_parse": "train a model that needs no parse, or create shards with one: `python pipeline/grit.py` with "
    "formats=[train]",
}
"""Reason of a bad sample -> fix."""
OTHER_FIX: Final = (
    "give train/ shards of the pipeline, HyCoCLIP's processed shards, raw GRIT, or tars of pairs: a jpg with a txt, "
    "or with a JSON that holds the caption"
)


def probe(index: Index, expected: Layout | Literal["auto"], needs: frozenset[str]) -> Layout:
    """Return the layout of the shards: `expected`, or the detected one if it is "auto".

    Checks samples spread over all shards until one can be read with all fields in `needs`. Raises UserError if none of
    them is usable.
    """
    reader = ByteRangeReader()
    problems: list[tuple[str, BadSample]] = []
    for sample in np.unique(np.linspace(0, index.n_samples - 1, MAX_PROBES).astype(np.int64)):
        data = reader.read([index.byte_range(int(sample))])[0]
        try:
            layout = find_layout(data) if expected == "auto" else expected
            read_sample(data, layout, needs)
            reader.close()
            return layout
        except BadSample as bad:
            problems.append((f"{index.locate(int(sample))[0].url}: {sample_key(data)}", bad))
    (name, first), *others = problems
    count = f"none of the {len(problems)} samples checked is usable"
    if others and all(bad.reason == first.reason for _, bad in others):
        count += ", all for this reason"
    other_fix = OTHER_FIX if expected == "auto" else f"data.layout is {expected}; set data.layout=auto to detect it"
    raise UserError(f"{name}: {first} ({count}); {FIXES.get(first.reason, other_fix)}")
