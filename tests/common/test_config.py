"""Filling dataclasses: what wins, what is refused, and what --help says."""

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import inf, nan
from typing import Literal

import pytest

from common.config import check_positive, check_range, merge, read_layers
from common.config_help import describe, keys
from common.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Tower:
    width: int = 4  # how wide

    def __post_init__(self) -> None:
        check_range(self, "width", least=1, most=30)


@dataclass(frozen=True, kw_only=True)
class TallTower(Tower):
    floors: int = 2  # how tall


@dataclass(frozen=True, kw_only=True)
class Town:
    name: str = ""  # of the town
    tower: Tower = field(default_factory=Tower)


def town(*overrides: str, kinds: dict[str, type] | None = None) -> Town:
    merged = merge(Town, read_layers(None, overrides, {"width": "tower.width"}), kinds)
    assert isinstance(merged, Town)
    return merged


def test_a_field_may_hold_a_subclass_with_keys_of_its_own() -> None:
    tall = town("tower.floors=9", "width=7", kinds={"tower": TallTower})
    assert tall.tower == TallTower(width=7, floors=9)
    with pytest.raises(UserError, match=r"tower\.floors"):
        town("tower.floors=9")


def test_what_a_configuration_says_of_its_values_reaches_the_user_with_the_key() -> None:
    for value in (0, 31):
        with pytest.raises(UserError, match=rf"^tower\.width is {value}; give 1 to 30$"):
            town(f"tower.width={value}")
    with pytest.raises(UserError, match=r"^width is 0"):
        merge(Tower, read_layers(None, ["width=0"], {}))


@pytest.mark.parametrize(
    ("value", "is_positive", "is_in_range"),
    [
        (None, True, True),
        (1.0, True, True),
        (0.0, False, True),
        (-1.0, False, False),
        (nan, False, False),
        (inf, False, False),
    ],
)
def test_fields_out_of_their_range_or_without_a_value_are_refused(
    value: float | None, is_positive: bool, is_in_range: bool
) -> None:
    @dataclass
    class Rate:
        lr: float | None

    for check, passes in ((check_positive, is_positive), (partial(check_range, least=0, below=inf), is_in_range)):
        with nullcontext() if passes else pytest.raises(UserError, match=f"lr is {value}; give"):
            check(Rate(value), "lr")


def test_help_holds_the_comments_of_a_parent_beside_those_of_its_child() -> None:
    assert list(keys(Town, kinds={"tower": TallTower})) == [
        ("name", "", "of the town"),
        ("tower.width", 4, "how wide"),
        ("tower.floors", 2, "how tall"),
    ]
    assert "width (= tower.width) = 4\n      how wide" in describe("usage", Town, {"width": "tower.width"})


@dataclass(frozen=True, kw_only=True)
class Street:
    # Above it,
    # in two lines.
    length_m: int = 9  # And beside it.


def test_a_comment_may_stand_above_its_field() -> None:
    assert list(keys(Street)) == [("length_m", 9, "Above it, in two lines. And beside it.")]


@dataclass(frozen=True, kw_only=True)
class Paint:
    colour: Literal["red", "blue"] = "red"  # of the door
    finish: Literal["matt", "gloss"] | None = None  # none; matt or gloss
    rooms: tuple[Literal["hall", "attic"], ...] = ()


def test_help_lists_the_values_of_a_choice_that_its_comment_does_not_name() -> None:
    comments = {key: comment for key, _, comment in keys(Paint)}
    assert comments == {
        "colour": "of the door; one of red, blue",
        "finish": "none; matt or gloss",
        "rooms": "one of hall, attic",
    }


@pytest.mark.parametrize("item", ["tower.width=", "name="])
def test_an_override_without_a_value_says_how_to_write_none_and_an_empty_text(item: str) -> None:
    with pytest.raises(UserError, match=rf"{item} gives no value; .*{item}null"):
        town(item)
    assert town("name=town", 'name=""').name == ""


@pytest.mark.parametrize(
    ("item", "said"),
    [("name=[1,2", "name=.1,2 cannot be read"), ("=3", "neither"), ("tower=3", "tower=3: .*group of keys")],
)
def test_an_override_that_makes_no_sense_is_named(item: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        town(item)


def test_help_ends_quietly_where_its_reader_has_left() -> None:
    writer = [sys.executable, "-c", r"from common.help import show; show('line\n' * 100_000)"]
    with subprocess.Popen(writer, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
