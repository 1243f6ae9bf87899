"""The records of a takedown that has not finished: `_takedown.json`, and `_takedown/NNNNN.json` for shards in flight.

The first exists from before the first change of the output until the report has been written, and holds digests of the
entries of the list, so that the run is finished with all of them.

A record of a shard exists from before the first file of its shard is replaced until the new manifest is written. It
holds all that is needed to finish the removal after a kill, whatever has been replaced by then.
"""

import json
from collections.abc import Set
from typing import cast

from common.errors import UserError
from common.remote import map_concurrently
from pipeline.write.layout import indices
from pipeline.write.manifest import parse_manifest
from pipeline.write.store import Store
from schemas.files import TAKEDOWN_FILE, TAKEDOWN_RUN_FILE
from schemas.job import TakedownRun
from schemas.manifest import PendingTakedown


def begin_takedown(store: Store, digests: Set[str]) -> None:
    """Record that rows are about to be removed; `digests` are those of the entries of the list.

    Raises UserError if an interrupted run had entries that this one lacks, or the output cannot be written.
    """
    lacking = entries_left(store) - digests
    if lacking:
        raise UserError(
            f"{store.url(TAKEDOWN_RUN_FILE)}: a takedown was interrupted, and this list lacks {len(lacking)} entries of "
            "its list; give the same list, or one with more entries; or remove the file to give up these entries"
        )
    run: TakedownRun = {"entries": sorted(digests)}
    store.write(TAKEDOWN_RUN_FILE, json.dumps(run))


def entries_left(store: Store) -> set[str]:
    """Return the digests of the entries of an interrupted run, none without one.

    Raises UserError for a damaged record.
    """
    content = store.read(TAKEDOWN_RUN_FILE)
    if content is None:
        return set()
    try:
        return set(map(str, json.loads(content)["entries"]))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(
            f"{store.url(TAKEDOWN_RUN_FILE)} is damaged ({type(error).__name__}); remove it, and run the takedown again "
            "with the same list"
        ) from error


def end_takedown(store: Store) -> None:
    """Remove the record of a run: all rows have been removed, and the report has been written."""
    store.remove([TAKEDOWN_RUN_FILE])


def write_pending(store: Store, pending: PendingTakedown) -> None:
    """Record a removal that begins. Raises UserError if the output cannot be written."""
    store.write(store.file(TAKEDOWN_FILE, pending["manifest"]["shard"]), json.dumps(pending, sort_keys=True))


def pending_files(store: Store) -> list[str]:
    """Return the names of the records."""
    return [store.file(TAKEDOWN_FILE, index) for index in indices(store, TAKEDOWN_FILE)]


def read_pending(store: Store) -> list[PendingTakedown]:
    """Return the removals that a kill has interrupted, in order. Raises UserError for a damaged record."""
    names = pending_files(store)
    found: list[PendingTakedown] = []
    for name, content in zip(names, map_concurrently(store.read, names), strict=True):
        if content is None:
            continue
        try:
            pending = cast(PendingTakedown, json.loads(content))
            if parse_manifest(json.dumps(pending["manifest"]).encode()) is None:
                raise ValueError("no manifest")
            dict(pending["rows"])
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise UserError(
                f"{store.url(name)} is damaged ({type(error).__name__}); remove it, and run the job, which computes its "
                "shard again; give it read.takedown"
            ) from error
        found.append(pending)
    return found


def takedown_record(store: Store) -> str | None:
    """Return the name of a record of a takedown that has not finished, None without one."""
    if store.size(TAKEDOWN_RUN_FILE) is not None:
        return TAKEDOWN_RUN_FILE
    return next(iter(pending_files(store)), None)


def check_nothing_pending(store: Store) -> None:
    """Raise UserError if a takedown has not finished: rows of its list are left, in shards or in the report."""
    if name := takedown_record(store):
        raise UserError(
            f"{store.url(name)}: pipeline.takedown was interrupted, or still runs; run the same takedown again first"
        )
