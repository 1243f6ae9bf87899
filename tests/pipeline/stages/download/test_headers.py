"""Response headers from untrusted servers."""

import random
from datetime import UTC, datetime

import pytest

from pipeline.stages.download.fetch import opt_out, retry_after_s

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
