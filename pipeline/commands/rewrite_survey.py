"""The survey of `rewrite` before it writes: duplicates among all rows, and the number of kept rows of each shard."""

import dataclasses
import hashlib
import json
import logging
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hypergrit_common.devices import pick_device
from hypergrit_common.errors import UserError
from hypergrit_common.image_codec import ImageRejected
from hypergrit_common.images import STORED_IMAGE_LIMITS, Image, decode
from hypergrit_common.near_duplicates import N_BITS, find_alike, make_masks, perceptual_hash
from hypergrit_common.remote import map_concurrently
from hypergrit_common.text import counted, one_line
from pipeline.commands.rewrite_rows import (
    DROPS,
    MADE_FROM,
    Part,
    PartReader,
    concat,
    decode_table,
    encode,
    format_key,
    key_number,
    read_drops,
    write_drops,
)
from pipeline.config import PipelineConfig
from pipeline.output.lock import Lease
from pipeline.output.store import Store, remove_abandoned_folders, temporary_folder_prefix
from pipeline.read.types import Task
from pipeline.run.loop import Run
from pipeline.run.provenance import model_identity
from pipeline.run.steps import Recipe
from pipeline.stages.score.filters import ScoreConfig, scorer_path
from schemas.files import DROPS_FILE, FACTS_FILE
from schemas.manifest import ModelIdentity
from schemas.status import KEPT

if TYPE_CHECKING:
    from pipeline.stages.score.scorers import Scorer

logger = logging.getLogger("hypergrit")

Criterion = Literal["url", "bytes", "picture", "meaning"]
CRITERIA: Final[tuple[Criterion, ...]] = get_args(Criterion)
"""What makes two rows duplicates, in the order in which the criteria are applied."""
COLUMNS: Final = {"url": "url", "bytes": "sha256"}
COMPARED: Final = ("key", "url", "sha256", "status", "reason", "detail")
"""Columns of what is compared without pictures."""
DECIDED: Final = (*(f"same_{name}" for name in CRITERIA), "in_evaluation_set")
"""Reasons of the rows that the command drops."""
AT_ONCE: Final = 64
"""Number of files that are read or written at the same time."""


@dataclass(frozen=True)
class Survey:
    """A search of the rows of `parts`: duplicates by `criteria`, and the number of kept rows if `counts`.

    `radius` is that of pictures, in bits, and `cosine` the least one of images with the same meaning. The files are in the
    output until `clean`; an interrupted survey goes on.
    """

    parts: Sequence[Part]
    reader: PartReader
    config: PipelineConfig
    criteria: Sequence[Criterion]
    radius: int
    cosine: float
    memory_gb: float
    counts: bool

    def run(self, store: Store, lease: Lease) -> list[int]:
        """Write the rows to drop of each part to the output; return the number of kept rows of each, if it `counts`.

        Raises UserError for a part that cannot be read.
        """
        if self.criteria and None in self._kept_rows(but_counts=True):
            self._find_duplicates(store, lease)
        if not self.counts:
            return []
        before = self._kept_rows()
        missing = [part for part, n_kept in zip(self.parts, before, strict=True) if n_kept is None]
        reader = self.reader if self.criteria else dataclasses.replace(self.reader, drops=None)
        self.each(partial(count_rows, reader, self._identity), missing, "counted", lease)
        return [n_kept or 0 for n_kept in self._kept_rows()]

    def clean(self, store: Store) -> None:
        """Remove the files of the survey."""
        store.remove_many(store.file(kind, part.number) for part in self.parts for kind in (FACTS_FILE, DROPS_FILE))

    @property
    def _identity(self) -> str:
        assert self.reader.drops is not None
        return self.reader.drops

    def _kept_rows(self, but_counts: bool = False) -> list[int | None]:
        """Return the number of kept rows of each part, None without it; `but_counts`: 0 if its duplicates are known."""

        def read(part: Part) -> int | None:
            found = read_drops(self.config.output, self._identity, part)
            return found and (0 if but_counts else found[1])

        return list(map_concurrently(read, self.parts, AT_ONCE))

    def _find_duplicates(self, store: Store, lease: Lease) -> None:
        remove_abandoned_folders(tempfile.gettempdir())
        pictures, score = "picture" in self.criteria, self.config.score
        scorer = score if "meaning" in self.criteria else None
        read = partial(read_facts, store, pictures, scorer=scorer)
        facts = map_concurrently(read, self.parts, AT_ONCE)
        missing = [part for part, table in zip(self.parts, facts, strict=True) if table is None]
        self.each(partial(write_facts, self.config.output, pictures, scorer=scorer), missing, "read to compare", lease)
        with database(self.memory_gb, self.config.ray.cpu_workers) as duplicates:
            for part, table in zip(self.parts, map_concurrently(read, self.parts, AT_ONCE), strict=True):
                if table is None:
                    name = store.url(store.file(FACTS_FILE, part.number))
                    raise UserError(f"{name} has gone; run the same command again")
                duplicates.add(table)
            logger.info("comparing the rows of %s", counted(len(self.parts), "shard"))
            duplicates.check_keys(self.parts[0].source["output"])
            device = pick_device(score.device, key="score.device") if scorer else None
            duplicates.find(self.criteria, self.radius, self.cosine, device)
            lease.check()
            n_rows = self._write(duplicates)
        logger.info("%s found", counted(n_rows, "duplicate"))

    def each(self, work: Callable[[Part], object], parts: Sequence[Part], text: str, lease: Lease) -> None:
        """Call a function for each part in the workers. Raises UserError for the first part that fails."""
        tasks = [Task(part.number, part.plan.n_rows, part) for part in parts]
        for result in Run(self.config, lease).results(Recipe.calling(work, text), tasks):
            if isinstance(result, dict):
                raise UserError(f"shard {result['shard']} of the sources cannot be read: {result['error']}")

    def _write(self, duplicates: "Duplicates") -> int:
        """Write the rows to drop of every part, also if there are none; return the number of these rows."""
        found, n_rows = duplicates.drops(), 0
        number, table = next(found, (-1, DROPS.empty_table()))

        def write(item: tuple[Part, pa.Table]) -> None:
            write_drops(self.config.output, self._identity, *item)

        for first in range(0, len(self.parts), AT_ONCE):
            files = list[tuple[Part, pa.Table]]()
            for part in self.parts[first : first + AT_ONCE]:
                files.append((part, table if part.number == number else DROPS.empty_table()))
                if part.number == number:
                    number, table = next(found, (-1, DROPS.empty_table()))
            n_rows += sum(len(drops) for _, drops in files)
            list(map_concurrently(write, files))
        return n_rows


def count_rows(reader: PartReader, identity: str, part: Part) -> int:
    """Apply all steps to a part; write the rows that the command drops, and the number of kept ones, which it returns."""
    table = concat(reader.batches(part)) if reader.found is None else reader.table(part)
    drops = table.filter(pc.is_in(table["reason"], pa.array(DECIDED))).select(DROPS.names)
    n_kept = pc.sum(pc.equal(table["status"], KEPT)).as_py() or 0
    write_drops(reader.output, identity, part, drops.cast(DROPS), n_kept)
    return int(n_kept)


# What dedupe compares: URL, SHA-256 and perceptual hash of the kept rows of each part.

FACTS: Final = pa.schema(
    [("key", pa.int64()), ("url", pa.string()), ("sha256", pa.string()), ("phash", pa.int64()), ("part", pa.int32())]
)
"""A kept row: the number that its key is, and what is compared; `phash` is null if pictures are not compared."""
EMBEDDING: Final = "embedding"
"""Further column with the scorer's embedding of the image, of unit length: the bytes of float16 [d]."""


def write_facts(output: str, pictures: bool, part: Part, scorer: ScoreConfig | None = None) -> int:
    """Write the facts of a part to the output, with embeddings if there is a scorer; return their number."""
    table, store = make_facts(output, pictures, part, scorer), Store(output)
    content = encode(table, {MADE_FROM: facts_identity(part, pictures, scorer).encode()})
    store.write_bytes(store.file(FACTS_FILE, part.number), content)
    return len(table)


def read_facts(store: Store, pictures: bool, part: Part, scorer: ScoreConfig | None = None) -> pa.Table | None:
    """Return the facts of a part; None if the output has none, or those of another part, or damaged ones."""
    return decode_table(store.read(store.file(FACTS_FILE, part.number)), facts_identity(part, pictures, scorer))


def facts_identity(part: Part, pictures: bool, scorer: ScoreConfig | None) -> str:
    """Return the identity of the facts of a part, by which those of another one are recognised."""
    model = scorer and scorer_identity(scorer)
    return hashlib.sha256(
        json.dumps([part.identity, part.number, pictures, model], sort_keys=True).encode()
    ).hexdigest()


def scorer_identity(config: ScoreConfig) -> ModelIdentity:
    """Return the name of the scorer, and the hash of its files if they are local."""
    return model_identity(config.scorer, scorer_path(config.scorer))


@cache
def loaded_scorer(config: ScoreConfig) -> "Scorer":
    """Load the scorer once in each process. Raises UserError like `make_scorer`."""
    from pipeline.stages.score.scorers import make_scorer  # imports torch

    return make_scorer(config)


def make_facts(output: str, pictures: bool, part: Part, scorer: ScoreConfig | None = None) -> pa.Table:
    """Return the facts of the kept rows of a part. Raises UserError if it cannot be read."""
    reader = PartReader(output)
    table = reader.table(part) if pictures or scorer else concat(reader.batches(part, COMPARED))
    table = table.filter(pc.equal(table["status"], KEPT))
    keys = table["key"].to_pylist()
    hashes: list[int | None] = [None] * len(table)
    if pictures:
        hashes = [signed_hash(*pair) for pair in zip(table["image"].to_pylist(), keys, strict=True)]
    facts = pa.table(
        {
            "key": [key_number(key, part.source["output"]) for key in keys],
            "url": table["url"],
            "sha256": table["sha256"],
            "phash": hashes,
            "part": [part.number] * len(table),
        },
        schema=FACTS,
    )
    if scorer is None:
        return facts
    embeddings = list[bytes]()
    if keys:  # the scorer takes at least one image
        images = (decoded(image.as_py(), key) for image, key in zip(table["image"], keys, strict=True))
        embeddings = [row.tobytes() for row in loaded_scorer(scorer).embed_images(images).half().numpy()]
    return facts.append_column(EMBEDDING, pa.array(embeddings, pa.binary()))


def decoded(image: bytes, key: str) -> Image:
    """Return a stored image. Raises UserError, naming the row, if it cannot be decoded."""
    try:
        return decode(image, STORED_IMAGE_LIMITS)
    except ImageRejected as error:
        raise UserError(f"row {key}: its stored image cannot be decoded ({error}); see hypergrit verify") from error


def signed_hash(image: bytes, key: str) -> int:
    """Return the perceptual hash of a stored image as the signed integer with the same bits.

    Raises UserError like `decoded`.
    """
    value = perceptual_hash(decoded(image, key))
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

    The criteria are applied in the order url, bytes, picture, meaning, each to the rows that those before it left. Of rows
    with the same URL or the same bytes, the one with the lowest key stays. Of similar pictures, rows go greedily by key: a
    row goes if a row with a lower key stays that is within the radius; likewise of similar embeddings. So no two rows that
    stay are duplicates by any criterion, and pictures are not joined by a chain of similar ones.
    """

    def __init__(self, folder: str, memory_gb: float, threads: int | None) -> None:
        import duckdb

        config: dict[str, Any] = {"memory_limit": f"{memory_gb}GB", "temp_directory": str(Path(folder, "spill"))}
        config |= {"preserve_insertion_order": False, **({"threads": threads} if threads else {})}
        self._db = duckdb.connect(str(Path(folder, "rows.duckdb")), config=config)
        self._db.execute("create table facts (key bigint, url varchar, sha256 varchar, phash bigint, part integer)")
        self._db.execute("create table gone (key bigint, stays bigint, reason varchar)")
        self._embeddings = list[tuple[Any, Any]]()  # keys [n], and float16 [n d]

    def add(self, facts: pa.Table) -> None:
        """Add rows (FACTS), perhaps with an EMBEDDING, which stays in memory."""
        if EMBEDDING in facts.column_names and len(facts):
            rows = [np.frombuffer(row, np.float16) for row in facts[EMBEDDING].to_pylist()]
            self._embeddings.append((facts["key"].to_numpy(), np.stack(rows)))
            facts = facts.drop_columns([EMBEDDING])
        self._db.register("new", facts)
        self._db.execute("insert into facts select key, url, sha256, phash, part from new")
        self._db.unregister("new")

    def check_keys(self, output: str) -> None:
        """Raise UserError if two rows of the output have the same key."""
        found = self._db.execute("select key from facts group by key having count(*) > 1 order by key limit 1")
        if row := found.fetchone():
            raise UserError(f"two rows of {output} have the key {row[0]:012d}; see hypergrit verify")

    def find(self, by: Collection[Criterion], radius: int, cosine: float = 1.0, device: Any = None) -> None:
        """Find the duplicates by these criteria; `radius` in bits, for pictures; `cosine` and torch device, for meaning."""
        for criterion, column in COLUMNS.items():
            if criterion in by:
                self._find_equal(column, f"same_{criterion}")
        if "picture" in by:
            self._find_similar(radius)
        if "meaning" in by and self._embeddings:
            self._find_alike(cosine, device)
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

    def _find_alike(self, cosine: float, device: Any) -> None:
        left = self._db.execute("select key from facts anti join gone using (key)").fetchnumpy()["key"]
        keys, features = (np.concatenate(parts) for parts in zip(*self._embeddings, strict=True))
        self._embeddings.clear()
        order = np.argsort(keys)
        order = order[np.isin(keys[order], left)]
        keys, features = keys[order], features[order]
        stays = keys[find_alike(features, cosine, device)]
        is_gone = stays != keys
        self._db.register("alike", pa.table({"key": keys[is_gone], "stays": stays[is_gone]}))
        self._db.execute("insert into gone select key, stays, 'same_meaning' from alike")
        self._db.unregister("alike")

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
