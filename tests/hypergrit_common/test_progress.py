"""The progress of loops where there is no terminal."""

import logging
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from hypergrit_common import progress
from tests.patience import PATIENCE_S, wait_until


def slow(caplog: pytest.LogCaptureFixture) -> Iterator[int]:
    """Three items, of which each comes after another line."""
    for i in range(3):
        n_lines, end = len(caplog.records), time.monotonic() + PATIENCE_S
        while len(caplog.records) == n_lines and time.monotonic() < end:
            time.sleep(0.001)
        yield i


def test_lines_begin_before_the_first_item_is_done_and_end_with_the_last(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert list(progress.tracked(slow(caplog), 3, "compared", most_s=0.01)) == [0, 1, 2]
    found = [record.getMessage() for record in caplog.records]
    assert found[0] == "compared: 0 of 3 shards"
    assert any(line.startswith("compared: 2 of 3 shards, about ") for line in found)
    assert found[-1] == "compared: 3 of 3 shards"
    assert vars(caplog.records[-1])["progress"] == {"text": "compared", "finished": 3, "total": 3}


def test_pauses_double(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [time.monotonic()]
    with progress.now_and_then(lambda: times.append(time.monotonic()), 0.04, 0.2):
        wait_until(lambda: len(times) > 4)
    pauses = [after - before for before, after in pairwise(times)]
    assert all(pause > 0.9 * least for pause, least in zip(pauses, (0.04, 0.08, 0.16, 0.2), strict=False))


@pytest.mark.parametrize(("quiet", "most_s"), [(False, 60.0), (True, 0.001)])
def test_a_short_loop_and_a_quiet_one_get_no_line(caplog: pytest.LogCaptureFixture, quiet: bool, most_s: float) -> None:
    with caplog.at_level(logging.INFO):
        for _ in progress.tracked(range(2), 2, "compared", quiet=quiet, most_s=most_s):
            time.sleep(0.02)
    assert caplog.records == []
