"""The row counts of shards, which can be added up."""

from collections import Counter
from collections.abc import Iterable

from schemas.manifest import Counts
from schemas.status import STAGES

NAMES = ("read", "kept", "retried", "recovered")


class RowCounts:
    """Sums of what shards add to the counts of their output (pipeline.write.attempts.net_counts).

    Drops are negative as long as the attempt that replaces rows is added without the shard whose rows it replaces.
    """

    def __init__(self, counts: Iterable[Counts] = ()) -> None:
        self.sums: Counter[str] = Counter()
        self.dropped: Counter[tuple[str, str]] = Counter()  # by stage and reason
        for count in counts:
            self.add(count)

    def add(self, counts: Counts) -> None:
        """Add the counts of a shard."""
        self.sums.update({name: counts.get(name, 0) for name in NAMES})
        for stage, reasons in counts["dropped"].items():
            self.dropped.update({(stage, reason): n for reason, n in reasons.items()})

    def to_counts(self, unfinished: int = 0) -> Counts:
        """Return the sums; stages are in pipeline order, reasons are sorted.

        `unfinished` rows are those of failed shards. Raises ValueError if more rows were tried again than dropped.
        """
        if negative := [f"{stage}: {reason}" for (stage, reason), n in self.dropped.items() if n < 0]:
            raise ValueError(f"more rows {negative[0]} were tried again than dropped")
        dropped: dict[str, dict[str, int]] = {stage: {} for stage in STAGES}
        for (stage, reason), n in sorted(self.dropped.items()):
            if n:
                dropped[stage][reason] = n
        rows: Counts = {
            "read": self.sums["read"] + unfinished,
            "kept": self.sums["kept"],
            "dropped": {stage: reasons for stage, reasons in dropped.items() if reasons},
            "unfinished": unfinished,
        }
        if self.sums["retried"]:
            rows |= {"retried": self.sums["retried"], "recovered": self.sums["recovered"]}
        return rows
