"""Apply other thresholds to the rows of a finished shard."""

import dataclasses
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from common.errors import UserError
from pipeline.score.stage import Place, Rows, score_table
from pipeline.score.thresholds import Thresholds
from schemas.rows import GROUNDED, HEAVY
from schemas.status import INTERNAL_ERROR, KEPT
from schemas.table import conform, set_column


def refilter_table(table: pa.Table, thresholds: Thresholds, keep_all: bool) -> pa.Table:
    """Return the SCORED table that the job would have made with these thresholds, from the SCORED table of a shard.

    Rows that a stage before `score` dropped are returned as they are. Raises UserError for a box or a row whose cosine
    was never computed.
    """
    was_scored = pc.or_(
        pc.is_in(table["stage"], pa.array([None, "write"], pa.string())),
        pc.and_(
            pc.equal(pc.fill_null(table["stage"], ""), "score"),
            pc.not_equal(pc.fill_null(table["reason"], ""), INTERNAL_ERROR),
        ),
    )
    before = table
    for name, value in (("status", KEPT), ("stage", None), ("reason", None), ("detail", None)):
        table = set_column(table, name, pc.if_else(was_scored, pa.scalar(value, pa.string()), table[name]))
    cosines = StoredCosines(before)
    scored = score_table(conform(table.select(GROUNDED.names), GROUNDED), thresholds, cosines, keep_all)
    return with_failures_of_write(scored, before)


def with_failures_of_write(table: pa.Table, before: pa.Table) -> pa.Table:
    """Return the table with the rows dropped again that could not be written, unless a filter drops them now."""
    failed = pc.and_(pc.equal(pc.fill_null(before["stage"], ""), "write"), pc.equal(table["status"], KEPT))
    if not pc.any(failed).as_py():
        return table
    for name in ("status", "stage", "reason", "detail"):
        table = set_column(table, name, pc.if_else(failed, before[name], table[name]))
    for name in HEAVY:
        table = set_column(table, name, pc.if_else(failed, pa.scalar(None, table[name].type), table[name]))
    return table


class StoredCosines:
    """The cosines of a SCORED table."""

    def __init__(self, table: pa.Table) -> None:
        self._keys, self._scores, self._similarity = (
            table[name].to_pylist() for name in ("key", "box_scores", "clip_similarity")
        )

    def of_boxes(self, rows: Rows, places: Sequence[Place]) -> list[float]:
        """Return the cosine of crop and phrase for each box. Raises UserError for one that was not computed."""
        found = [self._scores[i][b]["clip_cosine"] for i, b in places]
        if None in found:
            self._fail(places[found.index(None)].row, "a box")
        return found

    def of_rows(self, rows: Rows, indices: Sequence[int]) -> list[float]:
        """Return the cosine of image and caption for each row. Raises UserError for one that was not computed."""
        found = [self._similarity[i] for i in indices]
        if None in found:
            self._fail(indices[found.index(None)], "the caption")
        return found

    def _fail(self, row: int, what: str) -> None:
        raise UserError(
            f"row {self._keys[row]}: {what} has no CLIPScore, since a filter of the source removed it; lower thresholds "
            "need a source job with score.keep_all=true"
        )


def check_thresholds(old: Thresholds, new: Thresholds, kept_all: bool) -> None:
    """Raise UserError if a threshold is lowered whose removed boxes have no scores in the source."""
    if kept_all:
        return
    lowered = [
        f"score.{field.name} from {getattr(old, field.name)} to {getattr(new, field.name)}"
        for field in dataclasses.fields(Thresholds)
        if field.name != "size_rule" and getattr(new, field.name) < getattr(old, field.name)
    ]
    # A side of n px means an area of at least n x n; the rule of the release rounds, so it may be looser or stricter.
    if new.size_rule != old.size_rule and (old.size_rule, new.size_rule) != ("area", "side"):
        lowered.append(f"score.size_rule from {old.size_rule} to {new.size_rule}")
    if lowered:
        raise UserError(
            f"{'; '.join(lowered)}: the boxes that the source removed have no CLIPScore, and the images of dropped rows "
            "are gone; only a source job with score.keep_all=true allows lower thresholds"
        )
