"""Read the manifest of a shard, and compare it with a plan."""

import hashlib
import json
from collections.abc import Collection, Iterable
from typing import Any, Final, cast

from hypergrit_common.errors import UserError
from hypergrit_common.json_file import fits
from hypergrit_common.remote import map_concurrently
from hypergrit_common.urls import clean, safe_lines, safe_message
from pipeline.output.store import Store, indices
from pipeline.read.types import Piece, ShardPlan, Task
from schemas.files import FAILED_FILE, MANIFEST_FILE
from schemas.manifest import Counts, FailedShard, Manifest, PieceJson, PlanJson, Provenance
from schemas.rows import VERSION

FIELDS: Final = frozenset({"schema", "shard", "plan", "formats", "files", "counts", "provenance"})
"""Fields without which a file is no manifest; all versions have them."""

PIECE_FIELDS: Final = tuple(PieceJson.__annotations__)


def plan_json(plan: ShardPlan) -> PlanJson:
    """Convert a plan to the values that reading it from a manifest returns: URLs have no passwords."""
    pieces = [
        {name: getattr(piece, name) for name in PIECE_FIELDS} | {"path": piece.name or piece.path}
        for piece in plan.pieces
    ]
    values = {"index": plan.index, "first_row": plan.first_row, "n_rows": plan.n_rows, "pieces": pieces}
    values |= {"appends": list(plan.appends)} if plan.appends else {}
    return cast(PlanJson, clean(values, strip_query=False))


def plan_from_json(value: PlanJson) -> ShardPlan:
    """Return the plan that a manifest holds."""
    pieces = tuple(Piece(**piece) for piece in value["pieces"])
    return ShardPlan(value["index"], value["first_row"], value["n_rows"], pieces, tuple(value.get("appends", ())))


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the content of the file of a manifest."""
    return json.dumps(manifest, sort_keys=True, ensure_ascii=False, indent=1).encode()


def manifest_hash(manifest: Manifest) -> str:
    """Return the hex SHA-256 of the file of a manifest."""
    return hashlib.sha256(manifest_bytes(manifest)).hexdigest()


def parse_manifest(content: bytes) -> Manifest | None:
    """Parse the content of a manifest; return None if it is damaged: the shard then counts as not finished."""
    try:
        value: Any = json.loads(content)
        is_manifest = value.keys() >= FIELDS and fits(value, Manifest)
        is_manifest &= value["counts"].keys() >= {"read", "kept", "dropped"}
        is_manifest &= all(facts.keys() >= {"bytes", "sha256"} for facts in value["files"].values())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return cast(Manifest, value) if is_manifest else None


def read_manifest(store: Store, index: int) -> Manifest | None:
    """Read the manifest of a shard; return None if it does not exist or is damaged."""
    content = store.read(MANIFEST_FILE.path(index))
    return None if content is None else parse_manifest(content)


def is_same(manifest: Manifest, plan: ShardPlan, provenances: Iterable[Provenance]) -> bool:
    """Return True if a manifest has this plan, the present schema, and one of `provenances`."""
    return (
        (manifest.get("schema"), manifest.get("plan")) == (VERSION, plan_json(plan))
        and manifest.get("provenance") in provenances
    )  # fmt: skip


class CountsError(UserError, ValueError):
    """The counts of a shard do not add up, or are not those of its rows: a bug, or a manifest of strangers."""

    def __init__(self, manifest: Manifest, text: str) -> None:
        super().__init__(f"shard {manifest['shard']}: {text}; hypergrit verify tells more")


def checked_counts(manifest: Manifest) -> Counts:
    """Return the counts of a shard. Raises CountsError if they do not add up."""
    counts = manifest["counts"]
    n_dropped = sum(sum(reasons.values()) for reasons in counts["dropped"].values())
    if counts["read"] != counts["kept"] + n_dropped:
        raise CountsError(manifest, f"{counts['read']} rows read, but {counts['kept']} kept and {n_dropped} dropped")
    return counts


# The records of failed shards, `_failed/NNNNN.json`. `write_shard` removes that of a shard that succeeds.


def failed_shard(plan: ShardPlan | Task, step: str, error: str, traceback: str, attempts: int) -> FailedShard:
    """Return the record of a shard that failed."""
    return {
        "shard": plan.index,
        "rows": plan.n_rows,
        "step": step,
        "error": safe_message(error),
        "traceback": safe_lines(traceback),
        "attempts": attempts,
    }


def write_failed(store: Store, failed: FailedShard) -> None:
    """Record a failed shard. Raises UserError if the output cannot be written."""
    store.write(FAILED_FILE.path(failed["shard"]), json.dumps(failed, ensure_ascii=False, indent=1))


def failed_indices(store: Store) -> set[int]:
    """Return the indices of the recorded shards."""
    return set(indices(store, FAILED_FILE))


def read_failed(store: Store, but: Collection[int] = (), only: Collection[int] | None = None) -> list[FailedShard]:
    """Return the recorded shards in order, without those in `but`, which a later run finished, and those not in `only`."""
    chosen = sorted(i for i in failed_indices(store) - set(but) if only is None or i in only)
    contents = map_concurrently(store.read, [FAILED_FILE.path(i) for i in chosen])
    return [failed for content in contents if content and (failed := parse_failed(content))]


def parse_failed(content: bytes) -> FailedShard | None:
    """Parse a record; return None if it is damaged. The next run tries its shard again."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    is_record = isinstance(value, dict) and FailedShard.__required_keys__ <= value.keys()
    return cast(FailedShard, value) if is_record else None
