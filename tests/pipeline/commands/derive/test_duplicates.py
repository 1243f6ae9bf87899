"""The duplicates of DuckDB against brute force."""

import random
from collections.abc import Sequence
from contextlib import closing
from itertools import combinations
from math import comb
from pathlib import Path

import pyarrow as pa
import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.near_duplicates import make_masks
from pipeline.commands.rewrite_survey import CRITERIA, FACTS, Criterion, Duplicates

Fact = tuple[int, str | None, str | None, int]


def brute_force(facts: Sequence[Fact], by: Sequence[Criterion], radius: int) -> dict[int, tuple[int, str]]:
    """Key of each row that goes -> (key of the row that stays, reason), one row after the other."""
    gone: dict[int, tuple[int, str]] = {}
    for criterion in [name for name in CRITERIA if name in by]:
        stay: list[Fact] = []
        for fact in sorted(fact for fact in facts if fact[0] not in gone):
            same = [other[0] for other in stay if is_same(criterion, fact, other, radius)]
            if same:
                gone[fact[0]] = (min(same), f"same_{criterion}")
            else:
                stay.append(fact)
    for key, (stays, reason) in gone.items():
        while stays in gone:
            stays = gone[stays][0]
        gone[key] = (stays, reason)
    return gone


def is_same(criterion: Criterion, a: Fact, b: Fact, radius: int) -> bool:
    if criterion == "picture":
        return ((a[3] ^ b[3]) & (2**64 - 1)).bit_count() <= radius
    return (
        a[CRITERIA.index(criterion) + 1] is not None
        and a[CRITERIA.index(criterion) + 1] == b[CRITERIA.index(criterion) + 1]
    )


def find(folder: Path, facts: Sequence[Fact], by: Sequence[Criterion], radius: int) -> dict[int, tuple[int, str]]:
    with closing(Duplicates(str(folder), 1.0, 1)) as duplicates:
        for shard in range(3):
            rows = [dict(zip(FACTS.names, (*fact, shard), strict=True)) for fact in facts if fact[0] % 3 == shard]
            duplicates.add(pa.Table.from_pylist(rows, schema=FACTS))
        duplicates.check_keys("out")
        duplicates.find(by, radius)
        found = [(shard, row) for shard, table in duplicates.drops() for row in table.to_pylist()]
    keys = [(shard, int(row["key"])) for shard, row in found]
    assert keys == sorted((key % 3, key) for _, key in keys)
    return {int(row["key"]): (int(row["detail"]), row["reason"]) for _, row in found}


def random_facts(seed: int, n: int, centres: int) -> list[Fact]:
    """Rows whose hashes lie around some centres, in chains of small steps, with repeated URLs and bytes."""
    rng = random.Random(seed)
    hashes = [rng.getrandbits(64) for _ in range(centres)]
    facts: list[Fact] = []
    for key in rng.sample(range(10 * n), n):
        value = rng.choice(hashes)
        for bit in rng.sample(range(64), rng.choice([0, 0, 1, 2, 3, 5, 9])):
            value ^= 1 << bit
        hashes.append(value)
        url = rng.choice([None, f"u{rng.randrange(n)}", f"u{rng.randrange(n)}"])
        facts.append((key, url, rng.choice([None, f"s{rng.randrange(n)}"]), value - (value >> 63 << 64)))
    return facts


@pytest.mark.parametrize(
    ("by", "radius"),
    [(["url"], 0), (["bytes", "url"], 0), *((["picture"], radius) for radius in (0, 1, 4, 8)),
     (["url", "bytes", "picture"], 4)],
)  # fmt: skip
def test_rows_and_reasons_are_those_of_brute_force(tmp_path: Path, by: list[Criterion], radius: int) -> None:
    facts = random_facts(radius, 400, 60)
    expected = brute_force(facts, by, radius)
    assert expected
    assert find(tmp_path, facts, by, radius) == expected


def test_a_chain_of_similar_pictures_is_not_one_duplicate(tmp_path: Path) -> None:
    facts = [(key, None, None, (1 << 4 * key) - 1) for key in range(9)]  # four bits from one to the next
    assert find(tmp_path, facts, ["picture"], 4) == {key: (key - 1, "same_picture") for key in (1, 3, 5, 7)}


def test_a_duplicate_of_a_duplicate_names_the_row_that_stays(tmp_path: Path) -> None:
    facts: list[Fact] = [(1, "a", "x", 0), (2, "b", "x", 0), (3, "b", "y", 0)]
    assert find(tmp_path, facts, ["url", "bytes"], 0) == {3: (1, "same_url"), 2: (1, "same_bytes")}


def test_two_rows_with_one_key_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="two rows of out have the key 000000000001"):
        find(tmp_path, [(1, None, None, 0), (1, None, None, 1)], ["url"], 0)


@pytest.mark.parametrize("n_hashes", [10, 10**6, 10**9])
@pytest.mark.parametrize("radius", [1, 2, 4, 8])
def test_any_bits_within_the_radius_leave_a_mask_untouched(radius: int, n_hashes: int) -> None:
    masks = make_masks(radius, n_hashes)
    rng = random.Random(radius)
    assert len(set(masks)) == len(masks)
    patterns = [rng.sample(range(64), radius) for _ in range(500)]
    if comb(64, radius) < 3000:
        patterns += [list(bits) for bits in combinations(range(64), radius)]
    for bits in patterns:
        changed = sum(1 << bit for bit in bits)
        assert any(changed & mask == 0 for mask in masks)
