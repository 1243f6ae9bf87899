"""The result of checking a shard."""

from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.verify.keys import ShardKeys
from schemas.files import INDEX_FILE, MANIFEST_FILE, ROLLUP_FILE, SUMMARY_FILE, rollup_of
from schemas.layout import FLAT, Layout
from schemas.manifest import Counts

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

    `counts` are those that it adds to the output (pipeline.write.attempts.net_counts), None for a damaged manifest, which
    leaves `command` None too. `command` made the shard from finished ones; "": the job or pipeline.retry did.
    """

    shard: int
    problems: list[Problem] = field(default_factory=list)
    counts: Counts | None = None
    formats: tuple[str, ...] = ()
    n_bytes: int = 0
    n_images: int = 0
    command: str | None = None
    keys: ShardKeys = field(default_factory=ShardKeys)
    layout: Layout = FLAT

    @property
    def is_full(self) -> bool:
        """True if further problems would tell nothing new."""
        return len(self.problems) >= MAX_PROBLEMS

    @property
    def is_computed_again(self) -> bool:
        """True if the next run has to compute the shard again: not its index alone or its summary alone is broken."""
        repaired = {self.layout.path(INDEX_FILE, self.shard), self.layout.path(SUMMARY_FILE, self.shard)}
        return not repaired.issuperset(problem.file for problem in self.problems)

    @property
    def causes(self) -> list[str]:
        """The files whose removal lets the next run repair the shard: its manifest, or the index and the summary alone.

        A rollup of summaries is removed with the summary.
        """
        if self.is_computed_again:
            return [self.layout.path(MANIFEST_FILE, self.shard)]
        files = sorted({problem.file for problem in self.problems})
        rollup = ROLLUP_FILE.format(rollup_of(self.shard))
        return [*files, rollup] if self.layout.path(SUMMARY_FILE, self.shard) in files else files

    def add(self, file: str, text: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(file, text))
