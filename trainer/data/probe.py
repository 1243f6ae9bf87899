"""Check some samples before training, and fail early if those of a folder cannot be used."""

import logging
from collections import Counter
from contextlib import suppress
from itertools import groupby, pairwise
from typing import Final, Literal, get_args

import numpy as np

from hypergrit_common.errors import UserError
from hypergrit_common.layouts import find_layout, read_sample
from hypergrit_common.samples import MEMBER, BadSample, SampleFiles, sample_key
from schemas.training import Layout, Need, training_line
from trainer.data.index import SampleIndex, member_names
from trainer.data.shards import ByteRangeReader

logger = logging.getLogger(__name__)

MAX_PROBES: Final = 64  # samples to check before a folder is rejected, and folders to check
FIXES: Final = {
    "no_boxes": "train without boxes (model.use_boxes=false, model.boxes_as_pairs=false), take pairs out of shards that "
    "have both with `hypergrit rewrite ... ground.keep_pairs=false`, or create shards with boxes: `hypergrit run` with a "
    "grounder and formats=[train]",
    "no_parse": "train a model that needs no parse, or create shards with one: `hypergrit run` with a parser and "
    "formats=[train]",
    "not_utf8": "write the texts in UTF-8, such as with `iconv -f latin1 -t utf-8`",
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


def probe(index: SampleIndex, expected: Layout | Literal["auto"], needs: frozenset[str]) -> None:
    """Check that each folder with shards has samples of the layout `expected` with all fields in `needs`.

    Of many folders, some are checked, each until a sample can be read. Raises UserError for a folder in which none of
    the samples checked, spread over its shards, is usable.
    """
    reader, folders = ByteRangeReader(), [url.rpartition("/")[0] for url in index.urls]
    last = [n for n in range(len(folders)) if folders[n : n + 1] != folders[n + 1 : n + 2]]
    spans = [(start, end) for start, end in pairwise([0, *index.ends[last].tolist()]) if start < end]
    layouts, bad = dict[str, str](), list[tuple[str, BadSample]]()
    for start, end in spans[:: -(-len(spans) // MAX_PROBES)]:
        problems: list[tuple[str, BadSample]] = []
        for sample in np.unique(np.linspace(start, end - 1, MAX_PROBES).astype(np.int64)):
            data, url = reader.read([index.byte_range(int(sample))])[0], index.url(int(sample))
            try:
                layout = find_layout(SampleFiles(data)) if expected == "auto" else expected
                layouts[url.rpartition("/")[0]] = layout
                read_sample(data, layout, needs - {"pairs"})  # some samples have boxes
                whole = reader.read([index.whole_range(int(sample))])[0]
                logger.info("%s: the first usable sample %s", url, training_line(fields_of(whole, layout) | needs))
                break
            except BadSample as problem:
                problems.append((f"{url}: {sample_key(data)}", problem))
        else:
            bad = bad or problems
    reader.close()
    if not bad:
        return
    check_adjacent(index.urls[0])
    (name, first), *others = bad
    count = f"none of the {len(bad)} samples checked is usable"
    if others and all(problem.reason == first.reason for _, problem in others):
        count += ", all for this reason"
    if len(set(layouts.values())) > 1:
        count += f"; {', and '.join(f'{folder} has the layout {layout}' for folder, layout in layouts.items())}"
    other_fix = OTHER_FIX if expected == "auto" else f"data.layout is {expected}; set data.layout=auto to detect it"
    raise UserError(f"{name}: {first} ({count}); {FIXES.get(first.reason, other_fix)}")
