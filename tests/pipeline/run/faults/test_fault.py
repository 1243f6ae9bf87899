"""The detail of a fault: one bounded line without control characters."""

import pytest

from hypergrit_common.errors import UserError
from pipeline.faults import MAX_DETAIL, ShardError, describe, is_fault


@pytest.mark.parametrize("message", ["\x1b[2J", "a\nb", "\x9b31m", "\ud800", "\u202e", "x" * 5000, ""])
def test_the_detail_is_one_printable_line_of_bounded_length(message: str) -> None:
    detail = describe(ValueError(message))
    assert detail.startswith("ValueError")
    assert detail.isprintable()
    assert len(detail) <= MAX_DETAIL
    detail.encode()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RecursionError(), True),
        (BaseException("a panic"), True),
        (UserError("disk full"), False),
        (ShardError("the input has changed"), False),
        (KeyboardInterrupt(), False),
        (SystemExit(), False),
    ],
)
def test_only_errors_that_a_row_can_cause_are_faults(error: BaseException, expected: bool) -> None:
    assert is_fault(error) == expected
