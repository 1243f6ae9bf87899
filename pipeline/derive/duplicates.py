"""Find duplicates among the rows of all shards with DuckDB, out of core."""

import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pyarrow as pa

from common.errors import UserError
from common.text import one_line
from pipeline.derive.bands import make_masks
from pipeline.derive.options import Criterion
from pipeline.derive.phash import N_BITS
from pipeline.write.temporary import temporary_folder_prefix

COLUMNS: Final = {"url": "url", "bytes": "sha256"}
DROPS: Final = pa.schema([("shard", pa.int32()), ("key", pa.int64()), ("stays", pa.int64()), ("reason", pa.string())])
"""A duplicate: the row that goes, the row that stays, and the drop reason (schemas.status)."""


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
            Duplicates(folder, memory_gb, threads) as duplicates,
        ):
            yield duplicates
    except (duckdb.OperationalError, duckdb.FatalException) as error:
        raise UserError(
            f"the rows cannot be compared with memory_gb={memory_gb:g} and the disk of TMPDIR ({tempfile.gettempdir()}): "
            f"{one_line(error).partition(' Possible solutions')[0]}; give a larger memory_gb, or a TMPDIR with more space"
        ) from error


class Duplicates:
    """The rows of an output in a database in `folder`, which uses at most about `memory_gb` of memory.

    The criteria are applied in the order url, bytes, picture, each to the rows that those before it left. Of rows with
    the same URL or the same bytes, the one with the lowest key stays. Of similar pictures, rows go greedily by key: a
    row goes if a row with a lower key stays that is within the radius. So no two rows that stay are duplicates by any
    criterion, and pictures are not joined by a chain of similar ones.
    """

    def __init__(self, folder: str, memory_gb: float, threads: int | None) -> None:
        import duckdb

        config: dict[str, Any] = {"memory_limit": f"{memory_gb}GB", "temp_directory": str(Path(folder, "spill"))}
        config |= {"preserve_insertion_order": False, **({"threads": threads} if threads else {})}
        self._db = duckdb.connect(str(Path(folder, "rows.duckdb")), config=config)
        self._db.execute("create table facts (key bigint, url varchar, sha256 varchar, phash bigint, shard integer)")
        self._db.execute("create table gone (key bigint, stays bigint, reason varchar)")

    def add(self, facts: pa.Table) -> None:
        """Add the rows of a shard (pipeline.derive.facts.FACTS)."""
        self._db.register("new", facts)
        self._db.execute("insert into facts select key, url, sha256, phash, shard from new")
        self._db.unregister("new")

    def check_keys(self, output: str) -> None:
        """Raise UserError if two rows of the output have the same key."""
        found = self._db.execute("select key from facts group by key having count(*) > 1 order by key limit 1")
        if row := found.fetchone():
            raise UserError(f"two rows of {output} have the key {row[0]:012d}; see pipeline.verify")

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
        """Yield the rows that go, as (shard, table of DROPS), by shard and key; shards without any are left out."""
        reader: Any = self._db.sql(
            "select shard, key, stays, reason from gone join facts using (key) order by shard, key"
        ).to_arrow_reader()
        shard, parts = -1, list[pa.Table]()
        for batch in reader:
            table = pa.Table.from_batches([batch]).cast(DROPS)
            for number in table["shard"].unique().to_pylist():
                if number != shard and parts:
                    yield shard, pa.concat_tables(parts)
                    parts = []
                shard = number
                parts.append(table.filter(pa.compute.equal(table["shard"], number)))
        if parts:
            yield shard, pa.concat_tables(parts)

    def __enter__(self) -> "Duplicates":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._db.close()
