"""The records of shards of which pipeline.takedown is removing rows, `_takedown/NNNNN.json`.

A record exists from before the first file of its shard is replaced until the new manifest is written. It holds all that
is needed to finish the removal after a kill, whatever has been replaced by then.
"""

import json
from typing import cast

from common.errors import UserError
from common.remote import map_concurrently
from pipeline.write.layout import indices
from pipeline.write.manifest import parse_manifest
from pipeline.write.store import Store
from schemas.files import TAKEDOWN_FILE
from schemas.manifest import PendingTakedown


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


def check_nothing_pending(store: Store) -> None:
    """Raise UserError if a removal was interrupted: its shard has no manifest, but is not lost."""
    if names := pending_files(store):
        raise UserError(
            f"{store.url(names[0])}: pipeline.takedown was interrupted in {len(names)} shards; run the same takedown "
            "again first"
        )
