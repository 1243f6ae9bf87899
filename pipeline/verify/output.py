"""Check an output as a whole, and put its broken shards back into the queue."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from common.errors import UserError
from pipeline.lease import Lease
from pipeline.report.shards import check_finished
from pipeline.resume.command import again, read_command
from pipeline.resume.complete import lacked_by_sources, missing_shards
from pipeline.resume.listing import list_output
from pipeline.resume.record import read_record, recorded_plans
from pipeline.verify.finding import Finding, Problem
from pipeline.verify.keys import AllKeys, ShardKeys
from pipeline.write.attempts import discard_attempts
from pipeline.write.manifest import plan_json
from pipeline.write.pending import takedown_record
from pipeline.write.store import Store
from schemas.attempts import attempt_of, later_attempts, shard_of
from schemas.files import COMMAND_FILE, FILES, JOB_FILE, STATS_FILE
from schemas.job import LeftOut
from schemas.manifest import PlanJson


@dataclass
class Contents:
    """The finished shards of an output, each with its plan if `_job.json` has it, and the problems of other files.

    A shard of pipeline.retry has the plan of the shard whose rows it tried again. `command` made the output from others;
    "" for an output of the job, or of version 0.6 or earlier. `left_out` are unfinished shards of its sources.
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
    if record_file := takedown_record(store):
        problems.append(Problem(record_file, "a takedown was interrupted, or still runs; run the same takedown again"))
    try:
        made = read_command(store)
    except UserError as error:
        problems.append(Problem(COMMAND_FILE, str(error)))
    command = made["command"] if made else ""
    if made and (missing := missing_shards(made, None, committed)):
        problems.append(
            Problem(COMMAND_FILE, f"{len(missing)} of {len(made['shards'])} shards are missing, such as shard "
                                  f"{next(iter(missing))}; run {again(command)}")
        )  # fmt: skip
    n_unfinished, left_out = len(missing_shards(made, job, committed)), lacked_by_sources(made, job)
    return Contents(
        {index: planned.get(shard_of(index)) for index in committed}, n_unfinished, command, problems, left_out
    )


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
        fix = f"write it again with `python -m pipeline.report {store.url('').rstrip('/')}`"
        try:
            stats = json.loads(content)
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

    def problem(self, store: Store) -> Problem | None:
        """Return the problem, None without repeated keys."""
        key, shard = self.first
        text = f"row {key} is in another shard too ({self.n_rows} such rows); make the output again with overwrite=true"
        return Problem(store.file(FILES["arrow"][0], shard), text) if self.n_rows else None


def requeue(store: Store, findings: Sequence[Finding], lease: Lease) -> None:
    """Let the next run compute broken shards again, or restore their index and summary if nothing else is broken.

    Only the manifest (or index and summary) is removed: readers ignore a shard without one, and its files are replaced when the
    job commits it again. Later attempts of pipeline.retry at its rows are removed before it; the next run of
    pipeline.retry tries rows of a broken attempt again. Raises UserError if the lease is lost or a file cannot be removed.
    """
    lease.check()
    committed = list_output(store).committed()
    broken = [finding.shard for finding in findings if finding.is_computed_again]
    discard_attempts(
        store, {i for index in broken for i in later_attempts(index, committed)} | set(filter(attempt_of, broken))
    )
    store.remove_many({file for finding in findings for file in finding.causes})
