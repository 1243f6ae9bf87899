"""Configuration: layers, checks, earlier key names, runtime settings, and the text of --help."""

import json
import re
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import inf, nan
from pathlib import Path
from typing import Any, Literal

import pytest

from hypergrit_common.config import (
    Keys,
    check_positive,
    check_range,
    command_line,
    merge,
    read_layers,
    runtime,
    runtime_keys,
    split_runtime,
)
from hypergrit_common.config_help import describe, list_keys
from hypergrit_common.errors import UserError
from hypergrit_common.removed import LAST_COMMIT
from hypergrit_common.yaml_text import parse_yaml, plain
from tests.removed import INVENTED, YAML

KEYS = Keys(short={"width": "tower.width"})


@dataclass(frozen=True, kw_only=True)
class Tower:
    # width, in metres
    width: int = 4
    # device
    device: str = runtime("auto")

    def __post_init__(self) -> None:
        check_range(self, "width", least=1, most=30)


@dataclass(frozen=True, kw_only=True)
class TallTower(Tower):
    # number of floors
    floors: int = 2


@dataclass(frozen=True, kw_only=True)
class Log:
    # steps between two lines
    every: int = 5


@dataclass(frozen=True, kw_only=True)
class Town:
    # name of the town
    name: str = ""
    tower: Tower = field(default_factory=Tower)
    log: Log = runtime(factory=Log)


def town(*arguments: str, kinds: dict[str, type] | None = None) -> Town:
    merged = merge(Town, read_layers(arguments, KEYS), kinds)
    assert isinstance(merged, Town)
    return merged


def test_a_command_is_shown_without_secrets() -> None:
    arguments = ["input=s3://bucket/?.csv", "list=https://h/a?sig=SECRET", "log.key=SECRET", "name=a b"]
    shown = "hypergrit run 'input=s3://bucket/?.csv' list=https://h/a 'log.key=***' 'name=a b'"
    assert command_line("hypergrit run", arguments, Keys(secret=("log.key",))) == shown


@pytest.mark.parametrize(
    ("key", "is_hidden"),
    [
        *((key, True) for key in ("headers", "header", "api_key", "apikey", "headers.A", "x.api_keys", "download")),
        *((key, True) for key in ("hf_token", "ray.AWS_SECRET_ACCESS_KEY", "s3.Password", "--token")),
        *(
            (key, False)
            for key in ("name", "head", "download.timeout_s", "key", "score.head", "max_tokens", "tokenizer")
        ),
    ],
)
def test_a_secret_is_recognised_without_its_group_and_misspelt(key: str, is_hidden: bool) -> None:
    keys = Keys(secret=("download.headers", "recaption.api_key"))
    assert keys.is_secret(key) == is_hidden
    if is_hidden:
        with pytest.raises(UserError) as caught:
            merge(Town, read_layers([f"{key}={{A: TOKEN}}"], keys))
        assert "TOKEN" not in str(caught.value)


def test_kinds_replaces_the_type_of_a_group_by_a_subclass_with_more_keys() -> None:
    tall = town("tower.floors=9", "width=7", kinds={"tower": TallTower})
    assert tall.tower == TallTower(width=7, floors=9)
    with pytest.raises(UserError, match=r"tower\.floors"):
        town("tower.floors=9")


def test_an_error_of_a_group_names_the_full_key() -> None:
    for value in (0, 31):
        with pytest.raises(UserError, match=rf"^tower\.width is {value}; give 1 to 30$"):
            town(f"tower.width={value}")
    with pytest.raises(UserError, match=r"^width is 0"):
        merge(Tower, read_layers(["width=0"], Keys()))


def test_later_files_override_earlier_ones_and_arguments_override_files(tmp_path: Path) -> None:
    base, overlay = tmp_path / "base.yaml", tmp_path / "overlay.yaml"
    base.write_text("name: base\ntower: {width: 5, device: cpu}\n")
    overlay.write_text("name: overlay\nwidth: 6\n")
    assert town(str(base), str(overlay)) == Town(name="overlay", tower=Tower(width=6, device="cpu"))
    assert town(str(overlay), str(base)).name == "base"
    assert town("name=argument", str(base), str(overlay)).name == "argument"


def test_runtime_settings_are_separated_from_the_others() -> None:
    assert runtime_keys(Town, {"tower": TallTower}) == {"tower.device", "log"}
    fixed, free = split_runtime(Town(name="a", tower=TallTower(floors=3)))
    assert fixed == {"name": "a", "tower": {"width": 4, "floors": 3}}
    assert free == {"tower": {"device": "auto"}, "log": {"every": 5}}


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
def test_values_out_of_range_are_errors(value: float | None, is_positive: bool, is_in_range: bool) -> None:
    @dataclass
    class Rate:
        lr: float | None

    for check, passes in ((check_positive, is_positive), (partial(check_range, least=0, below=inf), is_in_range)):
        with nullcontext() if passes else pytest.raises(UserError, match=f"lr is {value}; give"):
            check(Rate(value), "lr")


def test_help_lists_the_keys_of_a_parent_and_its_child_with_their_comments() -> None:
    assert list(list_keys(Town, kinds={"tower": TallTower})) == [
        ("name", "", "name of the town", False),
        ("tower.width", 4, "width, in metres", False),
        ("tower.device", "auto", "device", True),
        ("tower.floors", 2, "number of floors", False),
        ("log.every", 5, "steps between two lines", True),
    ]
    text = describe("usage", Town, {"width": "tower.width"})
    assert "width (= tower.width) = 4\n      width, in metres" in text
    assert "tower.device = auto   [runtime]" in text


@dataclass(frozen=True, kw_only=True)
class Street:
    # Length,
    # in two lines.
    length_m: int = 9  # not part of --help


def test_help_of_a_field_is_the_comment_above_it() -> None:
    assert [key.comment for key in list_keys(Street)] == ["Length, in two lines."]


@dataclass(frozen=True, kw_only=True)
class Paint:
    # colour of the door
    colour: Literal["red", "blue"] = "red"
    # null; matt or gloss
    finish: Literal["matt", "gloss"] | None = None
    rooms: tuple[Literal["hall", "attic"], ...] = ()


def test_help_lists_the_values_of_a_choice_that_its_comment_does_not_name() -> None:
    assert {key.name: key.comment for key in list_keys(Paint)} == {
        "colour": "colour of the door; one of red, blue",
        "finish": "null; matt or gloss",
        "rooms": "one of hall, attic",
    }
    assert "finish = null" in describe("usage", Paint, {})


@pytest.mark.parametrize("item", ["tower.width=", "name="])
def test_an_argument_without_a_value_is_an_error_that_explains_null_and_the_empty_text(item: str) -> None:
    with pytest.raises(UserError, match=rf"{item} has no value; .*{item}null"):
        town(item)
    assert town("name=town", 'name=""').name == ""


@pytest.mark.parametrize(
    ("item", "message"),
    [("name=[1,2", "name=.1,2 cannot be read"), ("=3", "neither"), ("tower=3", "tower=3: .*group of keys")],
)
def test_an_argument_that_cannot_be_read_is_named(item: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        town(item)


@pytest.mark.parametrize(
    "text",
    ["007", "2024_10", "1e3", "0x10", "on", "1:30", "set #2", "1.50", "|", '"x" in s', '"x" in "\U0001f600"', "a, b"],
)
def test_a_text_is_the_one_that_was_written_and_no_number_of_yaml(text: str) -> None:
    found = town(f"name={text}", f"tower.device={text}", "width=007")
    assert (found.name, found.tower.device, found.tower.width) == (text, text, 7)
    assert town(f"name={json.dumps(text, ensure_ascii=False)}").name == text
    assert town("tower={device: no}").tower.device == "no"
    with pytest.raises(UserError, match=r'tower\.width is "x" in s; give a whole number'):
        town('width="x" in s')


def test_a_text_in_a_file_is_the_one_that_was_written(tmp_path: Path) -> None:
    file = tmp_path / "town.yaml"
    file.write_text("name: 2024_10\ntower: {width: 007, device: no}\n")
    assert town(str(file)) == Town(name="2024_10", tower=Tower(width=7, device="no"))


REPEATED = "aliases repeat more than 1000000 characters"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: *x", "found undefined alias 'x' in line 1"),
        ("name: &x [*x]", "found unconstructable recursive node in line 1"),
        (
            "".join(f"- &a{i} [{f'*a{i - 1}' if i else ''}]\n" for i in range(50)),
            "line 1: values are nested more than 50",
        ),
        ("a: &a [x]\n" + "".join(f"{b}: &{b} [{f'*{a}, ' * 9}]\n" for a, b in pairwise("abcdefgh")), REPEATED),
        (f"long: &x {'a' * 1000}\nothers: [{'{*x : 1}, ' * 1001}]", REPEATED),
        ("[" * 700, "values are nested more than 50 deep"),
        ("name: !!int ''", "a value cannot be converted (IndexError)"),
        ("name: !!bool maybe", "a value cannot be converted (KeyError)"),
        ("name: !!map [a]", "expected a mapping node, but found sequence in line 1"),
        ('name: "\\Uffffffff"', "a value cannot be converted (OverflowError)"),
        ("name: !!int 0x" + "f" * 4000, "int of more than 100 characters cannot be converted"),
        ("name: a\nname: b", "found duplicate key name in line 2"),
        ("? [a]\n: b", "a key is no text"),
        ("name: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("name: " + "[" * 51 + "]" * 51, "line 1: values are nested more than 50 deep"),
        ("name: " + "a" * 1_000_000, "a configuration has at most 1000000"),
    ],
)
def test_what_a_file_must_not_have_is_named(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "town.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=rf"town\.yaml' cannot be read: .*{re.escape(problem)}"):
        town(str(file))


@pytest.mark.parametrize("value", ["[::1]", "[127.0.0.1,::1]", "[a, ::ffff:10.0.0.1]", "[[::1]]"])
def test_an_ipv6_address_in_a_list_says_to_quote_it(tmp_path: Path, value: str) -> None:
    file = tmp_path / "town.yaml"
    file.write_text(f"names: {value}\n")
    for item in (f"names={value}", str(file)):
        with pytest.raises(UserError, match=r'put IPv6 addresses in quotes, such as \["::1"\]'):
            read_layers([item], Keys())
    with pytest.raises(UserError, match=r"^(?!.*IPv6)"):
        read_layers(["names=[a"], Keys())


def test_an_alias_has_a_value_of_its_own_as_it_was_written() -> None:
    values = parse_yaml("a: &x {size: 007, of: [&y no, *y]}\nb: *x\nc: [*x, *y]\n")
    assert values["a"] == values["b"] == values["c"][0] == {"size": "007", "of": ["no", "no"]}
    assert plain(values["c"]) == [{"size": 7, "of": [False, False]}, False]
    values["b"]["of"].clear()
    assert plain(values["a"]) == {"size": 7, "of": [False, False]}


@pytest.mark.parametrize(
    "value", ["[!!bool x]", "[!!map [a]]", '"\\Uffffffff"', "[!!float " + "7" * 400 + "]", "[" * 700]
)
def test_an_argument_that_yaml_cannot_convert_is_named(value: str) -> None:
    with pytest.raises(UserError, match=r"^names=.* cannot be read: .*(conver|expected a mapping|values are nested)"):
        read_layers([f"names={value}"], Keys())


@dataclass(frozen=True)
class Kinds:
    switch: bool = False
    size: int | Literal["auto"] | None = None
    pair: tuple[float, float] = (0.0, 1.0)
    names: tuple[str, ...] = ()
    free: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("item", "value"),
    [
        ("switch=yes", True),
        ("size=auto", "auto"),
        ("size=0x10", 16),
        ("size=null", None),
        ("pair=[1, .5e1]", (1.0, 5.0)),
        ("names=[007, no, 'a b']", ("007", "no", "a b")),
        ("free={a: 1e3, b: '1', c: [no]}", {"a": 1000.0, "b": "1", "c": [False]}),
        ("free.a.b=x", {"a": {"b": "x"}}),
    ],
)
def test_a_value_has_the_type_of_its_field(item: str, value: object) -> None:
    assert getattr(merge(Kinds, read_layers([item], Keys())), re.split(r"[.=]", item)[0]) == value


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ("switch=1", "switch is 1; give true or false"),
        ("size=many", "size is many; give a whole number or auto"),
        ("size=true", "size is true; give a whole number or auto"),
        ("pair=[1]", "pair has 1 values; give 2"),
        ("pair=[1, x]", 'pair is [1, "x"]; give a number'),
        ("names=a", "names must be a list; write [a] for one value"),
        ("names={a: b}", "names must be a list, not a mapping"),
        ("free=[a]", "free must be a mapping {name: value}, not a list"),
    ],
)
def test_a_value_of_another_type_is_named_with_what_to_give(item: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        merge(Kinds, read_layers([item], Keys()))
    assert str(caught.value) == f"{item}: {problem}"


@dataclass(frozen=True)
class Rates:
    lr: float = 0.1
    floors: int = 1


@dataclass(frozen=True)
class Job:
    optim: Rates = field(default_factory=Rates)


@pytest.mark.parametrize("arguments", [["--batch-size", "64"], ["--batch-size=64"], ["a=1", "--batch_size", "64"]])
def test_an_option_with_dashes_is_answered_with_the_setting(arguments: list[str]) -> None:
    with pytest.raises(UserError, match=r"^--batch.size is no option: settings have no dashes; write batch_size=64$"):
        read_layers(arguments, Keys())


@pytest.mark.parametrize("after", [["shards=/x"], ["--lr"], []])
def test_what_follows_an_option_with_dashes_is_not_always_its_value(after: list[str]) -> None:
    with pytest.raises(UserError, match=r"write batch_size=VALUE$"):
        read_layers(["--batch-size", *after], Keys())


@pytest.mark.parametrize(
    ("key", "meant"), [("optim.learning_rate", "optim.lr"), ("learning_rate", "optim.lr"), ("flors", "optim.floors")]
)
def test_an_unknown_key_names_the_setting_that_abbreviates_it_or_is_spelt_like_it_in_a_group(
    key: str, meant: str
) -> None:
    with pytest.raises(UserError, match=rf"Did you mean: '{meant}'\?"):
        merge(Job, read_layers([f"{key}=1"], Keys()))


REMOVED = Keys(removed=INVENTED)


def test_a_removed_setting_with_its_default_is_ignored_in_files_and_arguments(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"name: mine\nlog: {{}}\n{YAML}")
    layers = read_layers([str(file), "colour=red", "garden={fence: [1,2]}", "model.colour=0.5"], REMOVED)
    assert merge(Town, layers) == Town(name="mine")


@pytest.mark.parametrize(
    "item",
    [
        "colour=blue",
        "download.colour=1",
        "garden.trees.number=4",
        "garden={trees: {number: 3}, fence: []}",
        "model.colour=null",
        "garden.trees.number={}",
    ],
)
def test_another_value_of_a_removed_setting_is_an_error_that_names_source_key_and_commit(
    item: str, tmp_path: Path
) -> None:
    key = "garden.fence" if "fence" in item else item.partition("=")[0]
    with pytest.raises(UserError, match=rf"^{re.escape(item)}: {re.escape(key)} was removed .*{LAST_COMMIT}"):
        read_layers([item], REMOVED)
    file = tmp_path / "config.yaml"
    file.write_text(yaml_of(item))
    with pytest.raises(UserError, match=rf"config\.yaml: {re.escape(key)} was removed .*{LAST_COMMIT}"):
        read_layers([str(file)], REMOVED)


def yaml_of(item: str) -> str:
    key, _, value = item.partition("=")
    *groups, name = key.split(".")
    return "".join(f"{{{group}: " for group in groups) + f"{{{name}: {value}}}" + "}" * len(groups)


def test_a_group_in_which_a_removed_setting_is_not_is_as_unknown_as_any_other() -> None:
    for item in ("garden.trees.kind=oak", "garden={}", "garden.trees=3"):
        with pytest.raises(UserError, match="there is no key garden"):
            merge(Town, read_layers([item], REMOVED))


@pytest.mark.parametrize(
    "text", ["9" * 300_000 + "x", "7" + ":5" * 200_000, "1_" * 150_000 + "e", "+." + "0" * 300_000]
)
def test_texts_that_nearly_are_numbers_take_no_square_of_the_time(text: str) -> None:
    assert type(parse_yaml(f"a: {text}")["a"]) is str  # with a square, hours
