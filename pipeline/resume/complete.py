"""The shards that an output lacks: of a job or command that was stopped, that failed, or that verify has requeued."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from common.errors import UserError
from common.text import counted
from pipeline.resume.command import again, describe_left_out, read_command
from pipeline.resume.record import read_record, recorded_plans
from pipeline.write.failed import read_failed
from pipeline.write.store import Store
from schemas.job import CommandRecord, JobRecord, LeftOut

logger = logging.getLogger("hypergrit")


class Unfinished(NamedTuple):
    """The shards that an output lacks: index -> number of rows if it is known; the job makes them if `command` is "".

    `left_out` are the shards that its sources lacked when it was made.
    """

    shards: Mapping[int, int | None]
    command: str
    left_out: Sequence[LeftOut]

    @property
    def n_rows(self) -> int | None:
        """The number of rows, None if that of a shard is not known."""
        known = [n for n in self.shards.values() if n is not None]
        return sum(known) if len(known) == len(self.shards) else None


def find_unfinished(store: Store, finished: Collection[int]) -> Unfinished:
    """Return the shards that are not `finished`: those planned by the job or the command, and those that failed.

    Raises UserError if the record of one of them is damaged.
    """
    made, job = read_command(store), read_record(store)
    shards = missing_shards(made, None, finished)
    command = made["command"] if made and (shards or job is None) else ""
    shards |= {failed["shard"]: failed["rows"] for failed in read_failed(store, but=finished)}
    shards |= missing_shards(None, job, finished)
    return Unfinished(dict(sorted(shards.items())), command, lacked_by_sources(made, job))


def missing_shards(
    made: CommandRecord | None, job: JobRecord | None, finished: Collection[int]
) -> dict[int, int | None]:
    """Return the shards that the records of command and job plan and that are not `finished`, with their rows if known.

    Raises UserError if the record of the job is damaged.
    """
    shards: dict[int, int | None] = dict.fromkeys(sorted(set(made["shards"]) - set(finished))) if made else {}
    return shards | ({plan.index: plan.n_rows for plan in recorded_plans(job).without(finished)} if job else {})


def lacked_by_sources(made: CommandRecord | None, job: JobRecord | None) -> list[LeftOut]:
    """Return the unfinished shards of the sources of a command that nothing can make any more.

    A job can make what a source of refilter lacked: its plan tells what is missing now.
    """
    return made.get("left_out", []) if made and job is None else []


def check_complete(store: Store, output: str, finished: Collection[int], incomplete: bool) -> list[LeftOut]:
    """Return the shards that `output` and its sources lack, after a warning: no output made from it has their rows.

    Raises UserError if the output itself lacks shards, unless `incomplete`, and always if a command can make them: its
    plan bounds the keys of all rows only when it has finished (pipeline.derive.combine.key_end).
    """
    missing = find_unfinished(store, finished)
    for left in missing.left_out:
        logger.warning("%s are left out of %s", describe_left_out(left), output)
    if not missing.shards:
        return [*missing.left_out]
    rows = "" if missing.n_rows is None else f" ({counted(missing.n_rows, 'row')})"
    text = (
        f"{output} lacks {len(missing.shards)} of its {counted(len(missing.shards) + len(finished), 'shard')}{rows}, such "
        f"as shard {next(iter(missing.shards))}"
    )
    if missing.command or not incomplete:
        leave = "" if missing.command else ", or give incomplete=true to leave these rows out"
        raise UserError(f"{text}; run {again(missing.command)} to finish it{leave}")
    logger.warning("%s; they are left out", text)
    return [*missing.left_out, {"output": output, "shards": list(missing.shards), "rows": missing.n_rows}]
