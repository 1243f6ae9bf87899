"""Check some samples before training, and fail early if those of a folder cannot be used."""

import logging
from collections import Counter
from contextlib import suppress
from itertools import groupby, pairwise
from typing import Final, Literal, NamedTuple, get_args

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


class Probed(NamedTuple):
    """What the samples of a folder that were checked tell. `url` and `layout` are those of the last one."""

    url: str
    layout: Layout | None
    is_usable: bool
    problems: list[tuple[str, BadSample]]

    def __str__(self) -> str:
        return f"{self.url.rpartition('/')[0]} has {f'the layout {self.layout}' if self.layout else 'no known layout'}"


def probe(index: SampleIndex, expected: Layout | Literal["auto"], needs: frozenset[str]) -> None:
    """Check that each folder with shards has samples of the layout `expected` with all fields in `needs`.

    Of many folders, some are checked, each until a sample can be read. Raises UserError for a folder in which none of
    the samples checked, spread over its shards, is usable.
    """
    reader, folders = ByteRangeReader(), [url.rpartition("/")[0] for url in index.urls]
    last = [n for n in range(len(folders)) if folders[n : n + 1] != folders[n + 1 : n + 2]]
    spans = [(start, end) for start, end in pairwise([0, *index.ends[last].tolist()]) if start < end]
    found = [probe_part(index, reader, *span, expected, needs) for span in spans[:: -(-len(spans) // MAX_PROBES)]]
    reader.close()
    bad = next((part for part in found if not part.is_usable), None)
    if bad is None:
        return
    check_adjacent(bad.url)
    (name, first), *others = bad.problems
    count = f"none of the {len(bad.problems)} samples checked is usable"
    if others and all(problem.reason == first.reason for _, problem in others):
        count += ", all for this reason"
    if other := next((part for part in found if part.is_usable), None):
        count += f"; {bad}, and {other}"
    other_fix = OTHER_FIX if expected == "auto" else f"data.layout is {expected}; set data.layout=auto to detect it"
    raise UserError(f"{name}: {first} ({count}); {FIXES.get(first.reason, other_fix)}")


def probe_part(
    index: SampleIndex,
    reader: ByteRangeReader,
    start: int,
    end: int,
    expected: Layout | Literal["auto"],
    needs: frozenset[str],
) -> Probed:
    """Check some of the samples from `start` to `end`, until one is usable."""
    problems: list[tuple[str, BadSample]] = []
    url, layout = "", None
    for sample in np.unique(np.linspace(start, end - 1, MAX_PROBES).astype(np.int64)):
        data = reader.read([index.byte_range(int(sample))])[0]
        url = index.url(int(sample))
        try:
            layout = find_layout(SampleFiles(data))
            read_sample(data, expected, needs - {"pairs"})  # some samples have boxes
            whole = reader.read([index.whole_range(int(sample))])[0]
            able = training_line(fields_of(whole, layout if expected == "auto" else expected) | needs)
            logger.info("%s: the first usable sample %s", url, able)
            return Probed(url, layout, True, problems)
        except BadSample as bad:
            problems.append((f"{url}: {sample_key(data)}", bad))
    return Probed(url, layout, False, problems)
