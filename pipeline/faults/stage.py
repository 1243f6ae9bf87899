"""Run a stage so that a row on which it raises costs this row alone."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import pyarrow as pa

from pipeline.faults.fault import BrokenProcessError, Fault, check_limit, describe, format_traceback, is_fault
from pipeline.faults.search import find_faulty
from schemas.table import drop_rows, kept_indices

Stage = Callable[[pa.Table], pa.Table | tuple[pa.Table, list[Fault]]]
"""A stage that drops the rows on which it raises by itself, such as `download`, returns them too."""
Result = TypeVar("Result")

ROUNDS: Final = 2
"""Searches in one stage: a row that fails only in the absence of another faulty row is found in the second."""


def run_isolated(
    name: str,
    stage: Callable[[pa.Table], Result],
    table: pa.Table,
    limit: int | None = None,
    probe: Callable[[pa.Table], object] | None = None,
) -> tuple[Result, list[Fault]]:
    """Apply a stage, without the rows on which it raises; return the result and the faults.

    The rows are found by running `probe`, by default the stage itself, on parts of the table; these results are thrown
    away. The stage then runs once on the whole table without the rows, so that the result depends on the set of faulty
    rows alone. Raises the exception of the stage if no single row is at fault, BrokenProcessError if the process cannot
    go on, and TooManyFaultsError for more than `limit` rows.
    """
    faults: list[Fault] = []
    for _ in range(ROUNDS):
        try:
            return stage(table), faults
        except BaseException as error:
            if not is_fault(error):
                raise
            check_process(error)
            found = search(name, probe or stage, table, limit)
            if not found:
                raise
        faults += found.values()
        check_limit(faults, limit)
        table = drop_faulty(table, name, found)
    return stage(table), faults


def search(name: str, stage: Callable[[pa.Table], object], table: pa.Table, limit: int | None) -> dict[int, Fault]:
    """Return the faulty kept rows of a table by position."""
    keys = table["key"]

    def probe(rows: Sequence[int]) -> Fault | None:
        try:
            stage(table.take(pa.array(rows, pa.int64())))
        except BaseException as error:
            if not is_fault(error):
                raise
            check_process(error)
            return Fault(keys[rows[0]].as_py(), name, describe(error), format_traceback(error))
        return None

    return find_faulty(kept_indices(table), probe, limit)


def drop_faulty(table: pa.Table, stage: str, faults: Mapping[int, Fault]) -> pa.Table:
    """Mark rows (position -> fault) as dropped by a stage."""
    return drop_rows(table, stage, {i: fault.drop for i, fault in faults.items()})


def check_process(error: BaseException) -> None:
    """Raise BrokenProcessError for an error of a GPU after which every call fails; a lack of memory is not one."""
    torch = sys.modules.get("torch")  # most processes of the download stage never import it
    if torch is not None and isinstance(error, torch.AcceleratorError):
        raise BrokenProcessError(describe(error)) from error
