"""Check an output as a whole, and put its broken shards back into the queue."""

import json
import os
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from hypergrit_common.errors import UserError, is_machine_error
from hypergrit_common.files import file_hash
from hypergrit_common.json_file import fits
from hypergrit_common.text import counted, one_line
from pipeline.output.ledger import check_finished
from pipeline.output.listing import list_output
from pipeline.output.lock import Lease
from pipeline.output.manifest import plan_json
from pipeline.output.record import again, lacked_by_sources, missing_shards, read_command, read_record, recorded_plans
from pipeline.output.store import Store, indices
from schemas.files import (
    COMMAND_FILE,
    FILES,
    INDEX_FILE,
    JOB_FILE,
    JOURNAL_FILE,
    MANIFEST_FILE,
    ROLLUP_FILE,
    STATS_FILE,
    SUMMARY_FILE,
    rollup_of,
)
from schemas.job import LeftOut
from schemas.manifest import Counts, FileFacts, PlanJson
from schemas.stats import Statistics

# Compare the files of a shard with the sizes and hashes of its manifest; copy remote ones to a local folder.


def file_problem(store: Store, name: str, facts: FileFacts, folder: str) -> str:
    """Describe how a file differs from its entry in the manifest; "" if it does not.

    A file of a remote store is copied to `folder`, below which it keeps its name. Raises UserError if the store does
    not answer, and OSError if the machine lacks something.
    """
    size = store.size(name)
    if size is None:
        return "missing"
    if size != facts["bytes"]:
        return f"{size} bytes, but the manifest names {facts['bytes']}"
    try:
        path = store.path(name) if store.is_local else copied(store, name, folder)
        digest = file_hash(path)
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        if is_machine_error(error):
            raise
        return f"cannot be read: {one_line(error)}"
    return "" if digest == facts["sha256"] else "other content than the manifest names (SHA-256)"


def copied(store: Store, name: str, folder: str) -> str:
    """Copy a remote file block by block; return the path of the copy. Raises UserError and FileNotFoundError."""
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with store.convert_errors("read", name):
        store.fs.get_file(store.path(name), path)
    return path


# Find keys that are in more than one shard: every row has a key of its own in the whole output.

CHUNK: Final = 1 << 16
"""Consecutive numbers whose bits are in one array, of 8 KiB."""


@dataclass
class ShardKeys:
    """The keys of the rows of a shard: numbers, as `read` gives them, and other texts."""

    numbers: "array[int]" = field(default_factory=lambda: array("q"))
    texts: list[str] = field(default_factory=list)

    def add(self, key: str) -> None:
        """Add the key of a row."""
        if key.isascii() and key.isdigit() and len(key) <= 18 and f"{int(key):012d}" == key:
            self.numbers.append(int(key))
        else:
            self.texts.append(key)


class AllKeys:
    """The keys of the shards seen so far: a bit for each number, and the texts. 10^9 rows take 125 MB."""

    def __init__(self) -> None:
        self._bits: dict[int, np.ndarray] = {}
        self._texts: set[str] = set()

    def add(self, keys: ShardKeys) -> list[str]:
        """Add the keys of a shard; return those that another shard has."""
        repeated = sorted(self._texts & set(keys.texts))
        self._texts.update(keys.texts)
        if not keys.numbers:
            return repeated
        numbers = np.unique(np.frombuffer(keys.numbers, np.int64))
        chunks, starts = np.unique(numbers // CHUNK, return_index=True)
        for chunk, places in zip(chunks.tolist(), np.split(numbers % CHUNK, starts[1:]), strict=True):
            flags = np.zeros(CHUNK, bool)
            flags[places] = True
            new, old = np.packbits(flags), self._bits.get(chunk)
            if old is not None:
                found = np.flatnonzero(np.unpackbits(new & old))
                repeated += [f"{chunk * CHUNK + place:012d}" for place in found.tolist()]
                new |= old
            self._bits[chunk] = new
        return repeated


# The result of checking a shard.

MAX_PROBLEMS = 20
"""Problems of a shard after which its rows are not compared further."""


class Problem(NamedTuple):
    """A defect of a file; `file` is relative to the output."""

    file: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.text}"


@dataclass
class Finding:
    """The defects of a shard, and the amount that was checked.

    `counts` are those of its manifest, None for a damaged one, which leaves `command` None too. `command` made the shard
    from finished ones; "": the job did. `lack` tells what the machine lacked to check it, so that nothing is known of it.
    """

    shard: int
    problems: list[Problem] = field(default_factory=list)
    counts: Counts | None = None
    formats: tuple[str, ...] = ()
    n_bytes: int = 0
    n_images: int = 0
    command: str | None = None
    keys: ShardKeys = field(default_factory=ShardKeys)
    lack: str = ""

    @property
    def is_full(self) -> bool:
        """True if further problems would tell nothing new."""
        return len(self.problems) >= MAX_PROBLEMS

    @property
    def is_computed_again(self) -> bool:
        """True if the next run has to compute the shard again: not its index alone or its summary alone is broken."""
        repaired = {INDEX_FILE.path(self.shard), SUMMARY_FILE.path(self.shard)}
        return not repaired.issuperset(problem.file for problem in self.problems)

    @property
    def causes(self) -> list[str]:
        """The files whose removal lets the next run repair the shard: its manifest, or the index and the summary alone."""
        if self.is_computed_again:
            return [MANIFEST_FILE.path(self.shard)]
        return sorted({problem.file for problem in self.problems})

    def add(self, file: str, text: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(file, text))


@dataclass
class Contents:
    """The finished shards of an output, each with its plan if `_job.json` has it, and the problems of other files.

    `command` made the output from others; "" for an output of the job. `left_out` are unfinished shards of its sources.
    """

    plans: dict[int, PlanJson | None]
    n_unfinished: int
    command: str
    problems: list[Problem]
    left_out: list[LeftOut] = field(default_factory=list)


def list_contents(store: Store) -> Contents:
    """List an output. Raises UserError if it has no finished shard."""
    committed = list_output(store).committed()
    check_finished(store, committed)
    problems: list[Problem] = []
    made, job, planned = None, None, dict[int, PlanJson]()
    try:
        record = read_record(store)
        planned = {plan.index: plan_json(plan) for plan in recorded_plans(record)} if record else {}
        job = record
    except UserError:
        problems.append(
            Problem(JOB_FILE, "damaged; remove it, and the job compares the manifests of the shards instead")
        )
    problems += [
        Problem(JOURNAL_FILE.path(index), "the shard was being replaced; run the command again, which finishes it")
        for index in indices(store, JOURNAL_FILE)
    ]
    try:
        made = read_command(store)
    except UserError as error:
        problems.append(Problem(COMMAND_FILE, str(error)))
    command = made["command"] if made else ""
    if made and (missing := missing_shards(made, None, committed)):
        problems.append(
            Problem(COMMAND_FILE, f"{len(missing)} of {counted(len(made['shards']), 'shard')} missing, such as shard "
                                  f"{next(iter(missing))}; run {again(command)}")
        )  # fmt: skip
    n_unfinished, left_out = len(missing_shards(made, job, committed)), lacked_by_sources(made, job)
    return Contents({index: planned.get(index) for index in committed}, n_unfinished, command, problems, left_out)


class Sums:
    """The rows of all intact manifests, to compare them with stats.json."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.shards: set[int] = set()

    def add(self, finding: Finding) -> None:
        """Add the counts of a shard."""
        if finding.counts is None:
            return
        self.shards.add(finding.shard)
        self.rows.update(read=finding.counts["read"], kept=finding.counts["kept"])
        for stage, reasons in finding.counts["dropped"].items():
            self.rows.update({f"{stage}: {reason}": n for reason, n in reasons.items()})

    def problem(self, store: Store) -> Problem | None:
        """Return the difference of stats.json and these sums; None without a difference, or for a file about other shards."""
        content = store.read(STATS_FILE)
        if content is None:
            return None
        fix = f"write it again with `hypergrit explore {store.url('').rstrip('/')} report=true`"
        try:
            stats = json.loads(content)
            if not fits(stats, Statistics):
                raise ValueError("a value has another type")
            rows, shards = stats["rows"], set(stats["shards"])
            found = Counter({"read": rows["read"] - rows.get("unfinished", 0), "kept": rows["kept"]})
            found.update({f"{s}: {r}": n for s, reasons in rows["dropped"].items() for r, n in reasons.items()})
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return Problem(STATS_FILE, f"damaged; {fix}")
        if shards != self.shards or +found == +self.rows:  # the job goes on, or the sums agree
            return None
        name = next(name for name in (*found, *self.rows) if found[name] != self.rows[name])
        return Problem(STATS_FILE, f"{found[name]} rows {name}, but {self.rows[name]} in the manifests; {fix}")


class Repeats:
    """Keys that are in more than one shard."""

    def __init__(self) -> None:
        self.keys, self.n_rows, self.first = AllKeys(), 0, ("", 0)

    def add(self, finding: Finding) -> None:
        """Compare the keys of a shard with those of the shards before it, and let go of them."""
        repeated = self.keys.add(finding.keys)
        finding.keys = ShardKeys()
        if repeated:
            found = min(repeated), finding.shard
            self.first = min(self.first, found) if self.n_rows else found
            self.n_rows += len(repeated)

    def problem(self) -> Problem | None:
        """Return the problem, None without repeated keys."""
        key, shard = self.first
        text = f"row {key} is in another shard too ({self.n_rows} such rows); make the output again with overwrite=true"
        return Problem(FILES["arrow"][0].path(shard), text) if self.n_rows else None


def requeue(store: Store, findings: Sequence[Finding], lease: Lease) -> None:
    """Let the next run compute broken shards again, or restore their index and summary if nothing else is broken.

    Only the manifest (or index and summary) and the rollup are removed: readers ignore a shard without a manifest, and its
    files are replaced when the job commits it again. Raises UserError if the lease is lost or a file cannot be removed.
    """
    lease.check()
    rollups = {ROLLUP_FILE.path(rollup_of(finding.shard)) for finding in findings}
    store.remove_many({file for finding in findings for file in finding.causes} | rollups)
