"""Check some samples before training: detect their layout, and fail early if none can be used."""

import logging
from collections import Counter
from contextlib import suppress
from itertools import groupby
from typing import Final, Literal, get_args

import numpy as np

from hypergrit_common.errors import UserError
from hypergrit_common.layouts import find_layout, read_sample
from hypergrit_common.samples import MEMBER, BadSample, sample_key
from schemas.training import Layout, Need, training_line
from trainer.data.index import SampleIndex, member_names
from trainer.data.shards import ByteRangeReader

logger = logging.getLogger(__name__)

MAX_PROBES: Final = 64  # samples to check before the data are rejected
FIXES: Final = {
    "no_boxes": "train without boxes (model.use_boxes=false, model.boxes_as_pairs=false), take pairs out of shards that "
    "have both with `hypergrit rewrite ... ground.keep_pairs=false`, or create shards with boxes: `hypergrit run` with a "
    "grounder and formats=[train]",
    "no_parse": "train a model that needs no parse, or create shards with one: `hypergrit run` with a parser and "
    "formats=[train]",
    "no_levels": "train another model, or create shards from a table with `read.levels=COLUMN,...`",
}
"""Reason of a bad sample -> fix."""
OTHER_FIX: Final = (
    "give train/ shards of the pipeline, HyCoCLIP's processed shards, raw GRIT, or tars of pairs: a jpg with a txt, "
    "or with a JSON that holds the caption"
)


def fields_of(data: bytes, layout: Layout) -> set[str]:
    """Return which of "boxes", "levels" and "parse" a sample has."""
    found = set()
    for need in get_args(Need):
        with suppress(BadSample):
            read_sample(data, layout, frozenset({need}))
            found.add(need)
    return found


def check_adjacent(url: str) -> None:
    """Raise UserError if the members of a sample do not follow each other in a shard, as every reader expects."""
    members = map(MEMBER.fullmatch, member_names(url))
    keys = [key for key, _ in groupby(member[1] for member in members if member)]
    if again := next((key for key, n in Counter(keys).items() if n > 1), None):
        raise UserError(
            f"{url}: the members of {again} are not adjacent, so no sample is whole; write the tar in the order of the "
            "names, such as by tar --sort=name"
        )


def probe(index: SampleIndex, expected: Layout | Literal["auto"], needs: frozenset[str]) -> Layout:
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
            read_sample(data, layout, needs - {"pairs"})  # some samples have boxes
            whole = reader.read([index.whole_range(int(sample))])[0]
            reader.close()
            url, text = index.locate(int(sample))[0].url, training_line(fields_of(whole, layout) | needs)
            logger.info("%s: the first usable sample %s", url, text)
            return layout
        except BadSample as bad:
            problems.append((f"{index.locate(int(sample))[0].url}: {sample_key(data)}", bad))
    check_adjacent(index.urls[0])
    (name, first), *others = problems
    count = f"none of the {len(problems)} samples checked is usable"
    if others and all(bad.reason == first.reason for _, bad in others):
        count += ", all for this reason"
    other_fix = OTHER_FIX if expected == "auto" else f"data.layout is {expected}; set data.layout=auto to detect it"
    raise UserError(f"{name}: {first} ({count}); {FIXES.get(first.reason, other_fix)}")
