"""Read the manifest of a shard, and compare it with a plan."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, cast

from common.urls import clean
from pipeline.read.types import Piece, ShardPlan
from pipeline.write.store import Store
from schemas.files import MANIFEST_FILE
from schemas.manifest import Manifest, PieceJson, PlanJson, Provenance
from schemas.rows import VERSION

FIELDS: Final[Mapping[str, type]] = MappingProxyType(
    {"schema": str, "shard": int, "plan": dict, "formats": list, "files": dict, "counts": dict, "provenance": dict}
)
"""Fields without which a file is no manifest, with their types in JSON; all versions have them."""

PIECE_FIELDS: Final = tuple(PieceJson.__annotations__)


def plan_json(plan: ShardPlan) -> PlanJson:
    """Convert a plan to the values that reading it from a manifest returns: URLs have no passwords."""
    pieces = [{name: getattr(piece, name) for name in PIECE_FIELDS} for piece in plan.pieces]
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
        is_manifest = all(isinstance(value[name], kind) for name, kind in FIELDS.items())
        for facts in value["files"].values():
            is_manifest &= isinstance(facts["bytes"], int) and isinstance(facts["sha256"], str)
        is_manifest &= "retry" not in value or is_retry(value["retry"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return cast(Manifest, value) if is_manifest else None


def is_retry(value: Any) -> bool:
    """Return True if a field `retry` can be counted with. Raises exceptions of `parse_manifest` for another structure."""
    counts = [*value["before"].values(), *(n for reasons in value["replaced"].values() for n in reasons.values())]
    numbers = [value["attempt"], value["shard"], *map(int, value["before"]), *counts]
    return all(isinstance(number, int) and number >= 0 for number in numbers) and bool(counts)


def read_manifest(store: Store, index: int) -> Manifest | None:
    """Read the manifest of a shard; return None if it does not exist or is damaged."""
    content = store.read(store.file(MANIFEST_FILE, index))
    return None if content is None else parse_manifest(content)


def is_same(manifest: Manifest, plan: ShardPlan, provenances: Iterable[Provenance]) -> bool:
    """Return True if a manifest has this plan, the present schema, and one of `provenances`."""
    return (
        (manifest.get("schema"), manifest.get("plan")) == (VERSION, plan_json(plan))
        and manifest.get("provenance") in provenances
    )  # fmt: skip
