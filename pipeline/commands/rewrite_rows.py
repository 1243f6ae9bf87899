"""The rows of a finished shard as `rewrite` passes them on: thresholds, keys, drops and images, one after the other."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

import pyarrow as pa
import pyarrow.compute as pc

from hypergrit_common.arrow_sizes import read_arrow_file
from hypergrit_common.errors import UserError
from pipeline.commands.evaluation_set import LATER, EvaluationSet, drop_found
from pipeline.output.source import concat, read_tables, unchanged_manifest, with_images
from pipeline.output.store import Store
from pipeline.read.types import ShardPlan
from pipeline.stages.ground.grounder import PhraseDrop
from pipeline.stages.ground.stage import why_dropped
from pipeline.stages.parse.stage import lacking_phrase
from pipeline.stages.score.filters import ScoreConfig
from pipeline.stages.score.stage import Place, Rows, score_table
from schemas.files import DROPS_FILE
from schemas.manifest import NO_MODEL, Provenance, SourceShard
from schemas.rows import GROUNDED, HEAVY, SCORED
from schemas.scores import ROW_COLUMNS, SCORES, THRESHOLDS, ScoreEntry
from schemas.status import INTERNAL_ERROR, KEPT, KEY_REASONS
from schemas.table import Drop, conform, drop_rows, keep_rows, set_column

# The rows of a shard of a source, with all that the command does to them.


@dataclass(frozen=True, kw_only=True)
class SourcePart:
    """A finished shard of a source, and what becomes of its rows.

    `number` counts the shards of all sources. `plan` and `provenance` are those of its rows in the new output, and
    `n_kept` is the number of its kept rows. `offset` is added to keys, None: they stay as they are; `order` is the place
    of its source among several. `thresholds` are applied anew, None: the rows stay as they are; `keep_all` is the setting
    score.keep_all, `keeps_pairs` that of `ground`. `takes_out_pairs` are those that its job keeps without a grounder.
    """

    source: SourceShard
    number: int
    plan: ShardPlan
    provenance: Provenance
    n_kept: int
    offset: int | None = None
    order: int = 0
    thresholds: ScoreConfig | None = None
    keep_all: bool = False
    keeps_pairs: bool = False
    takes_out_pairs: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that its rows depend on, as they are read back from JSON."""
        thresholds = self.thresholds and {name: getattr(self.thresholds, name) for name in THRESHOLDS}
        kept = {"keep_all": self.keep_all, "keeps_pairs": self.keeps_pairs}
        return {"source": self.source, "offset": self.offset, "thresholds": thresholds, **kept}


@dataclass(frozen=True)
class PartReader:
    """Reads parts for the output `output`, with all steps applied.

    `drops` is the token of the files of rows to drop that `output` holds, None without any. The images of the rows are compared
    with `found`.
    """

    output: str
    drops: str | None = None
    found: EvaluationSet | None = None

    def batches(self, part: SourcePart, columns: Sequence[str] = SCORED.names) -> Iterator[pa.Table]:
        """Yield the rows in their order, images only where arrow/ has them. Raises UserError.

        `columns` are all that is read, unless the steps need more.
        """
        store, drops = Store(part.source["output"]), self._drops(part)
        names = SCORED.names if drops or part.thresholds is not None else columns
        for table in read_tables(store, unchanged_manifest(store, part.source), names):
            if part.thresholds is not None:
                table = filter_table(table, part)
            if part.offset is not None:
                table = shift_keys(table, part.offset, part.source["output"], part.order)
            yield drop_by_key(table, drops).select(columns)

    def table(self, part: SourcePart) -> pa.Table:
        """Return all rows with the images of the kept ones. Raises UserError."""
        table = with_source_images(concat(self.batches(part)), part)
        return table if self.found is None else drop_found(table, self.found)

    def pick(self, part: SourcePart, kept: Sequence[int], dropped: Sequence[int]) -> pa.Table:
        """Return first the n-th kept rows for each n of `kept`, then likewise `dropped`, with their images.

        Raises UserError if the shard has changed since the command was started, lacks a row or an image, or is damaged.
        """
        wanted = {True: sorted(kept), False: sorted(dropped)}
        table = concat(chosen_rows(self.batches(part), wanted))
        if table.num_rows != len(kept) + len(dropped):
            name = f"shard {part.source['shard']} of {part.source['output']}"
            raise UserError(f"{name} lacks rows that its manifest counts; see hypergrit verify")
        is_kept = pc.equal(table["status"], KEPT).to_pylist()
        places = {kind: iter(numbers) for kind, numbers in wanted.items()}
        row_of = {(kind, next(places[kind])): row for row, kind in enumerate(is_kept)}
        rows = [row_of[kind, n] for kind, numbers in ((True, kept), (False, dropped)) for n in numbers]
        return with_source_images(table.take(pa.array(rows, pa.int64())), part)

    def _drops(self, part: SourcePart) -> dict[str, Drop]:
        """Return the rows to drop by key. Raises UserError without a decision on them."""
        if self.drops is None:
            return {}
        decided = read_drops(self.output, self.drops, part)
        if decided is None:
            store = Store(self.output)
            raise UserError(f"{store.url(DROPS_FILE.path(part.number))} has gone; run the same command again")
        return {row["key"]: Drop(row["reason"], row["detail"] or "") for row in decided.to_pylist()}


def chosen_rows(tables: Iterable[pa.Table], wanted: dict[bool, list[int]]) -> Iterator[pa.Table]:
    """Yield the n-th kept and the n-th dropped rows in the order of the rows; `wanted` has the n of both, kept = True."""
    seen, left = {True: 0, False: 0}, {kind: set(numbers) for kind, numbers in wanted.items()}
    for table in tables:
        rows = list[int]()
        for row, is_kept in enumerate(pc.equal(table["status"], KEPT).to_pylist()):
            if seen[is_kept] in left[is_kept]:
                rows.append(row)
            seen[is_kept] += 1
        if rows:
            yield table.take(rows)


def with_source_images(table: pa.Table, part: SourcePart) -> pa.Table:
    """Return rows of a part with the images of the kept ones, which its source has under their old keys.

    With `keep_all`, rows that new thresholds drop keep their images too.
    """
    store, status = Store(part.source["output"]), table["status"]
    keys = pa.array([format_key(int(key) - part.offset) for key in table["key"].to_pylist()]) if part.offset else None
    if part.thresholds is not None and part.keep_all:
        is_filtered = pc.and_(pc.equal(table["stage"], "score"), pc.not_equal(table["reason"], INTERNAL_ERROR))
        status = pc.if_else(pc.fill_null(is_filtered, False), KEPT, status)
    wanted = set_column(set_column(table, "status", status), "key", table["key"] if keys is None else keys)
    return set_column(table, "image", with_images(wanted, store, unchanged_manifest(store, part.source))["image"])


# Keys, which are numbers of rows.


def shift_keys(table: pa.Table, offset: int, source: str, order: int) -> pa.Table:
    """Return a table with all keys shifted: those of the rows, and those that name the row of which one is a duplicate.

    The names of input files begin with the `order` of the source then, but not URLs, which name one file anyway.
    Raises UserError for a key that is no row number of `source`.
    """

    def shift(key: str) -> str:
        return format_key(key_number(key, source) + offset)

    keys, reasons, details = (table[name].to_pylist() for name in ("key", "reason", "detail"))
    pairs = zip(reasons, details, strict=True)
    details = [shift(detail) if detail and reason in KEY_REASONS else detail for reason, detail in pairs]
    if "source" in table.schema.names:
        files = [file if "://" in file else f"{order}/{file}" for file in table["source"].to_pylist()]
        table = set_column(table, "source", pa.array(files, pa.string()))
    table = set_column(table, "key", pa.array([shift(key) for key in keys], pa.string()))
    return set_column(table, "detail", pa.array(details, pa.string()))


def key_number(key: str, source: str) -> int:
    """Return the number of a row of `source`, an output. Raises UserError unless the key is one that `read` gives."""
    if not (key.isascii() and key.isdigit() and format_key(int(key)) == key):
        raise UserError(f"row {key!r} of {source}: its key is no row number of at least 12 digits; only shards of the "
                        "job and of its commands have a place in the order of the rows")  # fmt: skip
    return int(key)


def format_key(number: int) -> str:
    """Return the key of the row with this number."""
    return f"{number:012d}"


# Rows to drop, which were found before any shard is written: a file of the new output for each part.

DROPS: Final = pa.schema([("key", pa.string()), ("reason", pa.string()), ("detail", pa.string())])
"""A row to drop, by its key in the new output (schemas.status)."""
MADE_FOR: Final = b"made_for"
"""Metadata of the file: the token of the pass that has written it; the files of another one are not used."""


def drop_by_key(table: pa.Table, drops: dict[str, Drop]) -> pa.Table:
    """Drop these rows of a SCORED table; what earlier commands dropped stays so."""
    found = {i: drops[key] for i, key in enumerate(table["key"].to_pylist()) if key in drops} if drops else {}
    seen = {i: drop for i, drop in found.items() if drop.reason == "in_evaluation_set"}
    repeated = {i: drop for i, drop in found.items() if i not in seen}
    return drop_rows(drop_rows(table, "write", repeated), "download", seen, (*HEAVY, *LATER))


def write_drops(output: str, token: str, part: SourcePart, drops: pa.Table) -> None:
    """Write the rows of a part that the pass with this token drops."""
    sink = pa.BufferOutputStream()
    schema = DROPS.with_metadata({MADE_FOR: token})
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(drops.cast(schema))
    store = Store(output)
    store.write_bytes(DROPS_FILE.path(part.number), sink.getvalue().to_pybytes())


def read_drops(output: str, token: str, part: SourcePart) -> pa.Table | None:
    """Return what `write_drops` wrote; None without it, if it has another token, or if it is damaged."""
    store = Store(output)
    content = store.read(DROPS_FILE.path(part.number))
    try:
        table = read_arrow_file(content or b"", DROPS)
    except (pa.ArrowException, ValueError):
        return None
    return table if (table.schema.metadata or {}).get(MADE_FOR) == token.encode() else None


# Other thresholds.


def filter_table(table: pa.Table, part: SourcePart) -> pa.Table:
    """Return the SCORED table that the job would have made with the thresholds of a part, from that of its shard.

    Rows that a stage before `score` dropped are returned as they are. Raises UserError for a box or a row whose cosine
    was never computed, and for a row that comes back without a stage of the user's own having seen it.
    """
    late = late_stages(part.provenance)
    was_scored = pc.or_(
        pc.is_in(table["stage"], pa.array([None, *late], pa.string())),
        pc.and_(
            pc.equal(pc.fill_null(table["stage"], ""), "score"),
            pc.not_equal(pc.fill_null(table["reason"], ""), INTERNAL_ERROR),
        ),
    )
    before, table = table, keep_rows(table, was_scored)
    if not part.keeps_pairs:
        table = drop_pairs(table)
    has_scorer, has_grounder = (part.provenance["models"][m]["name"] != NO_MODEL for m in ("scorer", "grounder"))
    scores = StoredScores(before, has_scorer)
    assert part.thresholds is not None
    grounded = conform(table.select(GROUNDED.names), GROUNDED)
    scored = score_table(grounded, part.thresholds, scores, part.keep_all, part.keeps_pairs, has_grounder)
    unseen = pc.and_(pc.equal(pc.fill_null(before["stage"], ""), "score"), pc.equal(scored["status"], KEPT))
    if len(late) > 1 and pc.any(unseen).as_py():
        raise UserError(
            f"row {before['key'].filter(unseen)[0]}: the stages {', '.join(late[1:])} after score have not seen it, and no "
            "code of theirs is loaded here; run the job with the lower thresholds"
        )
    return with_later_drops(scored, before, late, part.keep_all)


def late_stages(provenance: Provenance) -> list[str]:
    """Return the names of the stages after `score`: `write`, and those of the user's own."""
    late = ["write"]
    for plugin in provenance.get("plugins", ()):
        if plugin.get("after") in ("score", *late[1:]):
            late.append(plugin["stage"])
    return late


def with_later_drops(table: pa.Table, before: pa.Table, late: Sequence[str], keep_all: bool) -> pa.Table:
    """Return the table with the rows dropped again that a stage after `score` dropped, unless a filter drops them now.

    With `keep_all` they stay as they were in any case: rows that a filter drops keep their images, and theirs are gone.
    """
    failed = pc.is_in(before["stage"], pa.array(late))
    if not keep_all:
        failed = pc.and_(failed, pc.equal(table["status"], KEPT))
    if not pc.any(failed).as_py():
        return table
    for name in ("status", "stage", "reason", "detail"):
        table = set_column(table, name, pc.if_else(failed, before[name], table[name]))
    for name in HEAVY:
        table = set_column(table, name, pc.if_else(failed, pa.scalar(None, table[name].type), table[name]))
    return table


def drop_pairs(table: pa.Table) -> pa.Table:
    """Drop the rows without a box as `parse` and `ground` drop them in a job that keeps no pairs."""
    columns = {name: table[name].to_pylist() for name in ("status", "noun_chunks", "ref_exps", "boxes")}
    rows = enumerate(zip(*columns.values(), strict=True))
    pairs = {
        i: (chunks, expressions) for i, (status, chunks, expressions, boxes) in rows if status == KEPT and not boxes
    }
    unparsed = {i: lacking_phrase(chunks) for i, (chunks, expressions) in pairs.items() if not expressions}
    table = drop_rows(table, "parse", unparsed, (*HEAVY, "boxes"))
    ungrounded = {
        i: why_dropped(
            chunks, {n: chunk["removed"] for n, chunk in enumerate(chunks) if chunk["removed"] in get_args(PhraseDrop)}
        )
        for i, (chunks, expressions) in pairs.items()
        if expressions
    }
    return drop_rows(table, "ground", ungrounded)


class StoredScores:
    """The scores of a SCORED table; `has_scorer`: the job compared images with texts."""

    def __init__(self, table: pa.Table, has_scorer: bool) -> None:
        self._rows = table.select(["key", "box_scores", *ROW_COLUMNS]).to_pylist()
        self._has_scorer = has_scorer

    def __call__(self, score: ScoreEntry, rows: Rows, places: Sequence[Place]) -> Sequence[float | None]:
        """Return the score of each row, or of the crop of each box. Raises UserError for a cosine that was not computed."""
        stored = self._rows
        found = [(stored[i] if b is None else stored[i]["box_scores"][b])[score.column] for i, b in places]
        if score.unit == "number" or not self._has_scorer or None not in found:
            return found
        row, box = places[found.index(None)]
        raise UserError(
            f"row {stored[row]['key']}: {'the caption' if box is None else 'a box'} has no CLIPScore, since a filter of "
            "the source removed it; lower thresholds need a source job with score.keep_all=true"
        )


def check_thresholds(old: ScoreConfig, new: ScoreConfig, kept_all: bool) -> None:
    """Raise UserError if a threshold is lowered whose removed boxes have no scores in the source."""
    if kept_all:
        return
    # A threshold that is not set any more is the lowest one.
    after = {score.setting: score.range[0] if score.range else -math.inf for score in SCORES} | new.recorded
    lowered = [
        f"score.{name} from {value} to {after[name]}"
        for name, value in old.recorded.items()
        if name != "size_rule" and after[name] < value
    ]
    # A side of n px means an area of at least n x n; the rule of the release rounds, so it may be looser or stricter.
    if new.size_rule != old.size_rule and (old.size_rule, new.size_rule) != ("area", "side"):
        lowered.append(f"score.size_rule from {old.size_rule} to {new.size_rule}")
    if lowered:
        raise UserError(
            f"{'; '.join(lowered)}: the boxes that the source removed have no CLIPScore, and the images of dropped rows "
            "are gone; only a source job with score.keep_all=true allows lower thresholds"
        )
