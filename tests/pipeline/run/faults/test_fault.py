"""The detail of a fault: one bounded line without control characters."""

import pytest

from hypergrit_common.errors import UserError
from pipeline.faults import MAX_DETAIL, MAX_TRACEBACK, ShardError, describe, format_traceback, is_fault
from pipeline.output.manifest import failed_shard
from pipeline.read.types import Task


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


def test_a_password_at_the_place_of_a_cut_is_not_in_what_is_left() -> None:
    url, tail = "http://ann:PASSWORD@h.test/", "x" * MAX_TRACEBACK
    for n in range(60):
        assert "PASS" not in describe(ValueError("y" * (2 * MAX_DETAIL - n) + url))
        assert "WORD" not in format_traceback(ValueError(url + tail[n:]))


def test_the_record_of_a_failed_shard_has_no_secret_of_a_url() -> None:
    text = "s3://KEY:PASSWORD@bucket/a?sig=SIGNATURE is gone"
    record = failed_shard(Task(3, 5, None), "read", text, f"line 1\n{text}", 1)
    assert (record["error"], record["traceback"]) == ("s3://***@bucket/a is gone", "line 1\ns3://***@bucket/a is gone")
