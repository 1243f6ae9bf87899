"""Tasks of several data sets or files: one that is missing or malformed does not stop the others."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from common.errors import UserError
from common.text import message
from trainer.evaluation.tasks.base import Figure, MissingFilesError, TaskResult

Entry = TypeVar("Entry")
Parsed = TypeVar("Parsed")

MAX_MALFORMED: Final = 0.01
"""Share of the entries of a file above which the file is malformed. A file of fewer than 100 entries must have none."""
MAX_NAMED: Final = 5
"""Malformed entries of a file that a result names; it counts all of them."""


@dataclass(frozen=True)
class Problems:
    """The reason for each part of a task that was not evaluated, by the name of the part."""

    missing: dict[str, str] = field(default_factory=dict)
    malformed: dict[str, str] = field(default_factory=dict)
    """Also the first `MAX_NAMED` malformed entries of each file."""
    skipped: Counter[str] = field(default_factory=Counter)
    """The number of malformed entries, for `TaskResult.skipped`."""

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Record a MissingFilesError or UserError of the block under `name`, and continue after the block."""
        try:
            yield
        except MissingFilesError as error:
            self.missing[name] = message(str(error))
        except UserError as error:
            self.malformed[name] = message(str(error))

    def entries(
        self, path: Path, entries: Iterable[Entry], parse: Callable[[Entry], Parsed], name: str = ""
    ) -> list[Parsed]:
        """Parse the entries of a file, and record those for which `parse` raises UserError.

        `name` tells lists of the same file, or files of the same name, apart; by default it is that of the file.
        Raises the first of these errors if they are more than `MAX_MALFORMED` of the entries.
        """
        found: list[Parsed] = []
        errors: dict[str, UserError] = {}
        for number, entry in enumerate(entries):
            try:
                found.append(parse(entry))
            except UserError as error:
                errors[f"{name or path.name}, item {number}"] = error
        if len(errors) > MAX_MALFORMED * (len(found) + len(errors)):
            raise next(iter(errors.values()))
        self.malformed.update({key: message(str(error)) for key, error in list(errors.items())[:MAX_NAMED]})
        self.skipped.update({f"malformed entry of {name or path.name}": len(errors)} if errors else {})
        return found

    def require(self, found: object, expected: str) -> None:
        """Raise if `found` is empty: UserError if a part is malformed, else MissingFilesError with `expected`."""
        if found:
            return
        if self.malformed:
            raise UserError("; ".join(self.malformed.values()))
        raise MissingFilesError(expected)

    def details(self) -> dict[str, object]:
        """The entries of `TaskResult.details`."""
        return {"missing": self.missing, "malformed": self.malformed}


def merge(parts: Mapping[str, TaskResult], problems: Problems, figures: Sequence[Figure] = ()) -> TaskResult:
    """Join the results of data sets, with the names of the sets before those of the metrics; none for the name "".

    `figures` come before those of the parts.
    """
    named = [(f"{key}/" if key else "", part) for key, part in parts.items()]
    return TaskResult(
        metrics={prefix + name: value for prefix, part in named for name, value in part.metrics.items()},
        chance={prefix + name: value for prefix, part in named for name, value in part.chance.items()},
        rules={prefix + name: rule for prefix, part in named for name, rule in part.rules.items()},
        n_used=sum(part.n_used for part in parts.values()),
        skipped={f"{key}: {why}" if key else why: n for key, part in parts.items() for why, n in part.skipped.items()}
        | problems.skipped,
        checksums={path: value for part in parts.values() for path, value in part.checksums.items()},
        details=problems.details()
        | dict(parts[""].details if "" in parts else {})
        | {key: dict(part.details) for key, part in parts.items() if key},
        figures=[*figures, *(figure for part in parts.values() for figure in part.figures)],
        items={prefix + name: items for prefix, part in named for name, items in part.items.items()},
    )
