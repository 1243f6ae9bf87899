"""Tasks of several data sets or files: one that is missing or malformed does not stop the others."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from common.errors import UserError
from trainer.evaluation.tasks.base import Figure, MissingFilesError, TaskResult


@dataclass(frozen=True)
class Problems:
    """The reason for each part of a task that was not evaluated, by the name of the part."""

    missing: dict[str, str] = field(default_factory=dict)
    malformed: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Record a MissingFilesError or UserError of the block under `name`, and continue after the block."""
        try:
            yield
        except MissingFilesError as error:
            self.missing[name] = str(error)
        except UserError as error:
            self.malformed[name] = str(error)

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
        skipped={f"{key}: {why}" if key else why: n for key, part in parts.items() for why, n in part.skipped.items()},
        checksums={path: value for part in parts.values() for path, value in part.checksums.items()},
        details=problems.details()
        | dict(parts[""].details if "" in parts else {})
        | {key: dict(part.details) for key, part in parts.items() if key},
        figures=[*figures, *(figure for part in parts.values() for figure in part.figures)],
        items={prefix + name: items for prefix, part in named for name, items in part.items.items()},
    )
