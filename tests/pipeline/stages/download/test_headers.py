"""Response headers from untrusted servers."""

import gzip
import random
import time
from datetime import UTC, datetime

import pytest

from pipeline.stages.download.addresses import FetchError
from pipeline.stages.download.fetch import MAX_HEAD, MAX_MEMBERS, inflate, opt_out, retry_after_s, tidy_head

NOW = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0),
        ("Sat, 01 Jan 2000 00:01:30 GMT", 90),
        ("Friday, 31-Dec-99 23:59:59 GMT", 0),
        ("soon", 0),
        ("-5", 0),
        ("", 0),
        ("Fri, 31 Dec 99999999999999999999 23:59:59 GMT", 0),
        ("Fri, 31 Dec 2000 23:59:59 +9999999999", 0),
        ("Fri, 31 Dec -1 23:59:59 GMT", 0),
        ("9" * 400, float("inf")),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str, seconds: float) -> None:
    assert retry_after_s(value, NOW) == seconds


def test_no_header_raises_an_exception() -> None:
    rng = random.Random(13)
    words = [
        "Fri,",
        "31",
        "Dec",
        "99999999999999999999",
        "1999",
        "23:59:59",
        "-1",
        "GMT",
        "+0000",
        "-99999",
        "\0",
        "²",
        "é",
    ]
    for _ in range(20_000):
        value = " ".join(rng.choices(words, k=rng.randrange(9)))
        value = "".join(rng.choice(":,;-+ 9") if rng.random() < 0.05 else letter for letter in value)
        assert retry_after_s(value, NOW) >= 0
        opt_out([value], "hypergrit", ["noai"])


NASTY = [
    *((b"HTTP/1.1 200 OK\r\n" + start, fill, end)
      for start, end in ((b"Content-Length: a", b"b"), (b"X", b": y"), (b"X: y\r\n", b"z"))
      for fill in (b" ", b"\t ", b"x", b"\r")),
    *((b"HTTP/1.1 200 OK\r\n", fill, b"")
      for fill in (b"Content-Length: 5\r\n", b"Content-Length: a \n", b"X: y\r\n", b"X\r\n", b"X: y\r\n \t", b":\n", b"\0")),
    *((b"HTTP/1.1 200 OK\r\nContent-Length: ", fill, b"") for fill in (b"9", b"9,", b"9" * 4000 + b",")),
    *((b"HTTP/1.1", fill, b"x") for fill in (b" ", b"1", b".")),
]  # fmt: skip


def test_hostile_heads_take_linear_time() -> None:
    def taken_s() -> float:
        start_s = time.thread_time()
        for start, fill, end in NASTY:
            room = MAX_HEAD - len(start) - len(end) - 4
            tidy_head(start + fill * (room // len(fill)) + end + b"\r\n\r\n")
        return time.thread_time() - start_s

    assert taken_s() < 10  # 0.2 s; quadratic ones take minutes


def test_members_of_gzip_are_limited() -> None:
    assert inflate(gzip.compress(b"x") * MAX_MEMBERS, 1000) == b"x" * MAX_MEMBERS
    with pytest.raises(FetchError, match="more than 100 members of gzip"):
        inflate(gzip.compress(b"") * 1_000_000, 1000)  # 20 MB
