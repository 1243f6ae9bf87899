"""The survey of `rewrite` before it writes: duplicates among all rows, and the number of kept rows of each shard."""

import dataclasses
import logging
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from hypergrit_common.errors import UserError
from hypergrit_common.image_codec import ImageRejected
from hypergrit_common.images import STORED_IMAGE_LIMITS, decode
from hypergrit_common.near_duplicates import N_BITS, make_masks, perceptual_hash
from hypergrit_common.remote import map_concurrently
from hypergrit_common.text import counted, one_line
from pipeline.commands.rewrite_rows import DROPS, PartReader, SourcePart, format_key, key_number, write_drops
from pipeline.config import PipelineConfig
from pipeline.output.lock import Lease
from pipeline.output.source import concat
from pipeline.output.store import Store, remove_abandoned_folders, temporary_folder_prefix
from pipeline.read.types import Task
from pipeline.run.loop import Run
from pipeline.run.steps import Recipe
from schemas.files import DROPS_FILE
from schemas.manifest import FailedShard
from schemas.status import KEPT

logger = logging.getLogger("hypergrit")

Criterion = Literal["url", "bytes", "picture"]
CRITERIA: Final[tuple[Criterion, ...]] = get_args(Criterion)
"""What makes two rows duplicates, in the order in which the criteria are applied."""
COLUMNS: Final = {"url": "url", "bytes": "sha256"}
COMPARED: Final = ("key", "url", "sha256", "status", "reason", "detail")
"""Columns of what is compared without pictures."""
DECIDED: Final = (*(f"same_{name}" for name in CRITERIA), "in_evaluation_set")
"""Reasons of the rows that the command drops."""


@dataclass(frozen=True)
class Count:
    """The number of rows of a part that all steps of the command keep; `part` is the number of the part."""

    part: int
    kept: int


class Reading(Run):
    """Ends with the first shard of the sources that cannot be read."""

    def fail(self, failed: FailedShard) -> None:
        """Raise UserError."""
        raise UserError(f"shard {failed['shard']} of the sources cannot be read: {failed['error']}")


@dataclass(frozen=True, kw_only=True)
class Survey:
    """A search of the rows of `parts`: duplicates by `criteria`, and the number of kept rows if `counts`.

    `radius` is that of pictures, in bits. The rows to drop are in files of the output until `clean`.
    """

    parts: Sequence[SourcePart]
    reader: PartReader
    config: PipelineConfig
    criteria: Sequence[Criterion]
    radius: int
    memory_gb: float
    counts: bool

    def run(self, lease: Lease) -> list[int]:
        """Write the rows to drop of each part to the output; return the number of kept rows of each, if it `counts`.

        Raises UserError for a part that cannot be read.
        """
        if self.criteria:
            self._find_duplicates(lease)
        if not self.counts:
            return []
        reader = self.reader if self.criteria else dataclasses.replace(self.reader, drops=None)
        work = partial(count_rows, reader, self._token)
        kept = {count.part: count.kept for count in self.each(work, "counted", lease)}
        return [kept[part.number] for part in self.parts]

    def clean(self, store: Store) -> None:
        """Remove the files of the survey."""
        store.remove_many(DROPS_FILE.path(part.number) for part in self.parts)

    @property
    def _token(self) -> str:
        assert self.reader.drops is not None
        return self.reader.drops

    def _find_duplicates(self, lease: Lease) -> None:
        remove_abandoned_folders(tempfile.gettempdir())
        work = partial(make_facts, self.config.output, "picture" in self.criteria)
        with database(self.memory_gb, self.config.ray.cpu_workers) as duplicates:
            for facts in self.each(work, "read to compare", lease):
                duplicates.add(facts)
            logger.info("comparing the rows of %s", counted(len(self.parts), "shard"))
            duplicates.check_keys(self.parts[0].source["output"])
            duplicates.find(self.criteria, self.radius)
            lease.check()
            n_rows = sum(map_concurrently(self._write, self._drops(duplicates.drops())))
        logger.info("%s found", counted(n_rows, "duplicate"))

    def each(self, work: Callable[[SourcePart], Any], text: str, lease: Lease) -> Iterator[Any]:
        """Call a function for each part in the workers; yield the results in any order.

        Raises UserError for the first part that fails.
        """
        tasks = [Task(part.number, part.plan.n_rows, part) for part in self.parts]
        return Reading(self.config, lease).results(Recipe.calling(work, text), tasks)

    def _drops(self, found: Iterator[tuple[int, pa.Table]]) -> Iterator[tuple[SourcePart, pa.Table]]:
        """Yield every part with the rows to drop of `found`, where it may be left out."""
        number, drops = next(found, (-1, None))
        for part in self.parts:
            if part.number == number:
                yield part, drops
                number, drops = next(found, (-1, None))
            else:
                yield part, DROPS.empty_table()

    def _write(self, item: tuple[SourcePart, pa.Table]) -> int:
        part, drops = item
        write_drops(self.config.output, self._token, part, drops)
        return len(drops)


def count_rows(reader: PartReader, token: str, part: SourcePart) -> Count:
    """Apply all steps to a part; write the rows that the command drops, and return the number of kept ones."""
    table = concat(reader.batches(part)) if reader.found is None else reader.table(part)
    drops = table.filter(pc.is_in(table["reason"], pa.array(DECIDED))).select(DROPS.names)
    write_drops(reader.output, token, part, drops.cast(DROPS))
    return Count(part.number, pc.sum(pc.equal(table["status"], KEPT)).as_py() or 0)


# What dedupe compares: URL, SHA-256 and perceptual hash of the kept rows of each part.

FACTS: Final = pa.schema(
    [("key", pa.int64()), ("url", pa.string()), ("sha256", pa.string()), ("phash", pa.int64()), ("part", pa.int32())]
)
"""A kept row: the number that its key is, and what is compared; `phash` is null if pictures are not compared."""


def make_facts(output: str, pictures: bool, part: SourcePart) -> pa.Table:
    """Return the facts of the kept rows of a part. Raises UserError if it cannot be read."""
    reader = PartReader(output)
    table = reader.table(part) if pictures else concat(reader.batches(part, COMPARED))
    table = table.filter(pc.equal(table["status"], KEPT))
    keys = table["key"].to_pylist()
    hashes: list[int | None] = [None] * len(table)
    if pictures:
        hashes = [signed_hash(*pair) for pair in zip(table["image"].to_pylist(), keys, strict=True)]
    return pa.table(
        {
            "key": [key_number(key, part.source["output"]) for key in keys],
            "url": table["url"],
            "sha256": table["sha256"],
            "phash": hashes,
            "part": [part.number] * len(table),
        },
        schema=FACTS,
    )


def signed_hash(image: bytes, key: str) -> int:
    """Return the perceptual hash of a stored image as the signed integer with the same bits.

    Raises UserError, naming the row, if it cannot be decoded.
    """
    try:
        value = perceptual_hash(decode(image, STORED_IMAGE_LIMITS))
    except ImageRejected as error:
        raise UserError(f"row {key}: its stored image cannot be decoded ({error}); see hypergrit verify") from error
    return value - (1 << N_BITS) if value >> (N_BITS - 1) else value


# Find duplicates among the rows of all parts with DuckDB, out of core.


@contextmanager
def database(memory_gb: float, threads: int | None) -> Iterator["Duplicates"]:
    """Open an empty database in a temporary folder, which is removed at the end.

    Raises UserError without DuckDB, and in the `with` block if memory or disk do not suffice.
    """
    try:
        import duckdb
    except ImportError as error:
        raise UserError(f"{error}; pip install duckdb") from error
    try:
        with (
            tempfile.TemporaryDirectory(prefix=temporary_folder_prefix()) as folder,
            closing(Duplicates(folder, memory_gb, threads)) as duplicates,
        ):
            yield duplicates
    except (duckdb.OperationalError, duckdb.FatalException) as error:
        raise UserError(
            f"the rows cannot be compared with memory_gb={memory_gb:g} and the disk of TMPDIR "
            f"({tempfile.gettempdir()}): {one_line(error).partition(' Possible solutions')[0]}; give a larger "
            "memory_gb, or a TMPDIR with more space"
        ) from error


class Duplicates:
    """The rows of an output in a database in `folder`, which uses at most about `memory_gb` of memory.

    The criteria are applied in the order url, bytes, picture, each to the rows that those before it left. Of rows with the
    same URL or the same bytes, the one with the lowest key stays. Of similar pictures, rows go greedily by key: a row goes
    if a row with a lower key stays that is within the radius. So no two rows that stay are duplicates by any criterion,
    and pictures are not joined by a chain of similar ones.
    """

    def __init__(self, folder: str, memory_gb: float, threads: int | None) -> None:
        import duckdb

        config: dict[str, Any] = {"memory_limit": f"{memory_gb}GB", "temp_directory": str(Path(folder, "spill"))}
        config |= {"preserve_insertion_order": False, **({"threads": threads} if threads else {})}
        self._db = duckdb.connect(str(Path(folder, "rows.duckdb")), config=config)
        self._db.execute("create table facts (key bigint, url varchar, sha256 varchar, phash bigint, part integer)")
        self._db.execute("create table gone (key bigint, stays bigint, reason varchar)")

    def add(self, facts: pa.Table) -> None:
        """Add rows (FACTS)."""
        self._db.register("new", facts)
        self._db.execute("insert into facts select key, url, sha256, phash, part from new")
        self._db.unregister("new")

    def check_keys(self, output: str) -> None:
        """Raise UserError if two rows of the output have the same key."""
        found = self._db.execute("select key from facts group by key having count(*) > 1 order by key limit 1")
        if row := found.fetchone():
            raise UserError(f"two rows of {output} have the key {row[0]:012d}; see hypergrit verify")

    def find(self, by: Collection[Criterion], radius: int) -> None:
        """Find the duplicates by these criteria; `radius` in bits, for pictures."""
        for criterion, column in COLUMNS.items():
            if criterion in by:
                self._find_equal(column, f"same_{criterion}")
        if "picture" in by:
            self._find_similar(radius)
        for _ in by:  # a row that stays by one criterion may go by a later one: follow it to the row that stays
            self._db.execute("update gone set stays = later.stays from gone later where gone.stays = later.key")

    def _find_equal(self, column: str, reason: str) -> None:
        self._db.execute(
            f"""
            create or replace temp table firsts as
                select {column} as value, min(key) as key
                from facts anti join gone using (key) where {column} is not null
                group by {column} having count(*) > 1;
            insert into gone
                select facts.key, firsts.key, '{reason}'
                from (from facts anti join gone using (key)) facts join firsts on facts.{column} = firsts.value
                where facts.key <> firsts.key;
            drop table firsts
            """
        )

    def _find_similar(self, radius: int) -> None:
        """Compare the distinct hashes: of the rows with one hash, only that with the lowest key can stay."""
        self._db.execute(
            """
            create table hashes as
                select phash as hash, min(key) as key
                from facts anti join gone using (key) where phash is not null group by phash
            """
        )
        self._join_pairs(radius)
        self._choose()
        self._db.execute(
            """
            create temp table stays as
                select hash, coalesce(lower.key, hashes.key) as key
                from hashes left join (
                    select high, min(low) as key from pairs anti join lost on low = lost.key
                    where high in (select key from lost) group by high
                ) lower on hashes.key = lower.high;
            insert into gone
                select facts.key, stays.key, 'same_picture'
                from (from facts anti join gone using (key)) facts join stays on facts.phash = stays.hash
                where facts.key <> stays.key
            """
        )

    def _join_pairs(self, radius: int) -> None:
        """Make the table of all pairs of hashes within the radius, by the keys of their rows: low < high."""
        self._db.execute("create table found (low bigint, high bigint)")
        counted = self._db.execute("select count(*) from hashes").fetchone()
        for mask in make_masks(radius, counted[0] if counted else 0) if radius else ():
            signed = mask - (1 << N_BITS) if mask >> (N_BITS - 1) else mask
            self._db.execute(
                f"""
                insert into found
                    select a.key, b.key
                    from (select *, hash & ({signed}) as band from hashes) a
                    join (select *, hash & ({signed}) as band from hashes) b on a.band = b.band
                    where a.key < b.key and bit_count(xor(a.hash, b.hash)) <= {radius}
                """
            )
        self._db.execute("create table pairs as select distinct low, high from found; drop table found")

    def _choose(self) -> None:
        """Make the table `lost` of the hashes that go, greedily by key.

        In each round, all hashes without a lower undecided neighbour stay, and their neighbours go: the same as one
        after the other (Blelloch et al. 2012), in about log n rounds for keys in random order.
        """
        self._db.execute("create table lost (key bigint); create table undecided as from pairs")
        while self._db.execute("select 1 from undecided limit 1").fetchone():
            self._db.execute(
                """
                create or replace temp table round as
                    select distinct high as key from undecided
                    where low in (select low from undecided except select high from undecided);
                insert into lost from round;
                create or replace table undecided as
                    from undecided anti join round on low = round.key or high = round.key
                """
            )

    def drops(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows that go, as (part, table of DROPS), by part and key; parts without any are left out."""
        reader: Any = self._db.sql(
            "select part, key, reason, stays as detail from gone join facts using (key) order by part, key"
        ).to_arrow_reader()
        pieces = ((part, batch) for batch in reader for part in batch["part"].unique().to_pylist())
        for number, found in groupby(pieces, key=itemgetter(0)):
            yield (
                number,
                pa.concat_tables(as_drops(batch.filter(pc.equal(batch["part"], number))) for _, batch in found),
            )

    def close(self) -> None:
        """Close the database."""
        self._db.close()


def as_drops(table: pa.RecordBatch) -> pa.Table:
    """Convert rows that go, with numbers as keys, to rows of DROPS."""
    keys, stays = ([format_key(number) for number in table[name].to_pylist()] for name in ("key", "detail"))
    return pa.table({"key": keys, "reason": table["reason"].cast(pa.string()), "detail": stays}, schema=DROPS)
