"""The records of failed shards, `_failed/NNNNN.json`. `write_shard` removes that of a shard that succeeds."""

import json
from collections.abc import Collection
from typing import cast

from common.remote import map_concurrently
from pipeline.read.types import ShardPlan
from pipeline.write.layout import indices
from pipeline.write.store import Store
from schemas.files import FAILED_FILE
from schemas.manifest import FailedShard


def failed_shard(plan: ShardPlan, step: str, error: str, traceback: str, attempts: int) -> FailedShard:
    """Return the record of a shard that failed."""
    return {
        "shard": plan.index,
        "rows": plan.n_rows,
        "step": step,
        "error": error,
        "traceback": traceback,
        "attempts": attempts,
    }


def write_failed(store: Store, failed: FailedShard) -> None:
    """Record a failed shard. Raises UserError if the output cannot be written."""
    store.write(store.file(FAILED_FILE, failed["shard"]), json.dumps(failed, ensure_ascii=False, indent=1))


def failed_indices(store: Store) -> set[int]:
    """Return the indices of the recorded shards."""
    return set(indices(store, FAILED_FILE))


def read_failed(store: Store, but: Collection[int] = (), only: Collection[int] | None = None) -> list[FailedShard]:
    """Return the recorded shards in order, without those in `but`, which a later run finished, and those not in `only`."""
    chosen = sorted(i for i in failed_indices(store) - set(but) if only is None or i in only)
    contents = map_concurrently(store.read, [store.file(FAILED_FILE, i) for i in chosen])
    return [failed for content in contents if content and (failed := parse_failed(content))]


def parse_failed(content: bytes) -> FailedShard | None:
    """Parse a record; return None if it is damaged. The next run tries its shard again."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    is_record = isinstance(value, dict) and FailedShard.__required_keys__ <= value.keys()
    return cast(FailedShard, value) if is_record else None
