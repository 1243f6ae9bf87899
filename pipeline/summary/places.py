"""Shards in which the report looks for its pictures and for examples of dropped rows: a bounded choice."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from schemas.stats import Places

MAX_KEPT: Final = 8
"""Maximum number of shards to take pictures from, since a tar has to be read up to the chosen image."""
MAX_DROPPED: Final = 16
"""Maximum number of shards to take the examples of a drop reason from."""

Cause = tuple[str, str]
"""Stage and drop reason."""


class Chosen:
    """The shards with kept rows whose indices have the lowest hashes, and the first with each drop reason.

    Merging is exact: the result does not depend on the order.
    """

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.dropped: dict[Cause, list[int]] = {}

    def add_kept(self, indices: Iterable[int]) -> None:
        """Offer shards with kept rows."""
        self.kept = sorted({*self.kept, *indices}, key=hash_of)[:MAX_KEPT]

    def add_dropped(self, cause: Cause, indices: Iterable[int]) -> None:
        """Offer shards of the job in which, or in whose attempts, rows were dropped."""
        self.dropped[cause] = sorted({*self.dropped.get(cause, ()), *indices})[:MAX_DROPPED]

    def merge(self, other: "Chosen") -> None:
        """Offer the shards that another output, or another part of this one, has chosen."""
        self.add_kept(other.kept)
        for cause, indices in other.dropped.items():
            self.add_dropped(cause, indices)

    def to_json(self) -> Places:
        """Return the shards by index, and those of drop reasons by stage."""
        dropped: dict[str, dict[str, list[int]]] = {}
        for (stage, reason), indices in sorted(self.dropped.items()):
            dropped.setdefault(stage, {})[reason] = indices
        return {"kept": sorted(self.kept), "dropped": dropped}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Chosen":
        """Return the shards that `to_json` describes."""
        chosen = cls()
        chosen.add_kept(value["kept"])
        for stage, reasons in value["dropped"].items():
            for reason, indices in reasons.items():
                chosen.add_dropped((stage, reason), indices)
        return chosen


def hash_of(index: int) -> bytes:
    """Return a hash that orders shards at random, and in every run in the same way."""
    return hashlib.sha256(str(index).encode()).digest()
