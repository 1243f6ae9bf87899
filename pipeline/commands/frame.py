"""The frame of the commands on finished outputs: their `main`, and their arguments."""

import dataclasses
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, TypeVar

from hypergrit_common.cli import command, set_up_logging
from hypergrit_common.config import Keys, flatten, merge, read_layers
from hypergrit_common.config_help import Key, describe, help_topic, list_keys, print_text
from hypergrit_common.errors import UserError
from hypergrit_common.paths import absolute, check_output_is_absolute, set_variables
from hypergrit_common.urls import check_no_user
from pipeline.config import KEYS, Messages, PipelineConfig
from pipeline.output.source import Source, read_config

Options = TypeVar("Options")

RUNNING: Final = ("log", "quiet", "ray", "report")
"""Settings that every command takes: they do not decide the content."""

Main = Callable[[Sequence[str]], int]
"""Runs a command with its `key=value` arguments; returns the exit code."""


def derive_command(usage: str, run: Main, options: type, settings: Sequence[str] = ()) -> Main:
    """Return the `main` of a command, which takes its arguments and returns the exit code.

    The fields of `options` are the keys of the command besides those that `usage` names, and those of a job: `settings`
    and RUNNING.
    """

    @command("finished shards are kept; run the same command again to resume")
    def main(arguments: Sequence[str]) -> int:
        if (topic := help_topic(arguments)) is not None:
            print_text(describe(usage, options, KEYS.short, topic=topic, more=keys_of_job((*settings, *RUNNING))))
            return 0
        early = [item for item in arguments if item.startswith(("quiet=", "log.", "log=", "ray.env"))]
        messages = merge(Messages, read_layers(early, KEYS))
        set_variables(messages.ray.variables())
        set_up_logging(messages.level, is_json=messages.log.format == "json")
        return run(arguments)

    return main


def output_command(
    usage: str, example: str, options: type[Options], run: Callable[[str, Options], int], kept: str = ""
) -> Main:
    """Return the `main` of a command like `example`, about one output, which has no keys but the fields of `options`.

    `run` takes the output and the options, and returns the exit code; `kept` as in `command`.
    """

    @command(kept)
    def main(arguments: Sequence[str]) -> int:
        if (topic := help_topic(arguments or ["--help"])) is not None:
            print_text(describe(usage, options, topic=topic))
            return 0 if arguments else 2
        set_up_logging()
        output, rest = take_output(arguments, example)
        return run(output, take_options(rest, options, alone=True)[0])

    return main


def keys_of_job(names: Sequence[str]) -> list[Key]:
    """Return the keys of a job with these names or in these groups, for `--help KEY`."""
    return [key for key in list_keys(PipelineConfig) if any(f"{key.name}.".startswith(f"{name}.") for name in names)]


@dataclass(frozen=True, kw_only=True)
class TakedownOptions:
    """The options of takedown."""

    # print the rows that would be removed, and change nothing
    dry_run: bool = False


# The arguments of a command: outputs, its own options, and settings of the job that wrote its source.


def check_keys(
    changes: Sequence[str], taken: Collection[str], command: str, same: Collection[str] = (), own: Collection[str] = ()
) -> set[str]:
    """Return the full keys that `key=value` arguments set.

    Raises UserError like `read_config`, and for a key that the command would ignore, since it is not among `taken` and
    RUNNING. The name of a group allows all settings of the group. The `same` keys have their values in the job. `own` are
    the other keys of the command; without them, the keys are known to be settings of the job.
    """
    given = {key for layer, _ in read_layers(changes, KEYS) for key in flatten(layer)}
    names = sorted({*taken, *RUNNING, *own})
    for key in sorted(given.difference(same)):
        if not any(f"{key}.".startswith(f"{name}.") for name in (*taken, *RUNNING)):
            problem = f"cannot change {key}, a setting of the job"
            if own and not keys_of_job([key]):
                near = get_close_matches(key, names, n=1)
                problem = f"has no key {key}{f' (did you mean {near[0]}?)' if near else ''}"
            raise UserError(f"{command} {problem}; it takes {', '.join(names)}")
    return given


def take_paths(arguments: Sequence[str], name: str) -> tuple[list[str], list[str]]:
    """Return the absolute values of all `name=PATH`, and the other arguments.

    Raises UserError if the argument is missing or empty, and for a URL with a user name or a password.
    """
    paths = [item.partition("=")[2] for item in arguments if item.startswith(f"{name}=")]
    if not paths or not all(paths):
        raise UserError(f"{name} is not set; give {name}=...")
    for path in paths:
        check_no_user(name, path)
    return [absolute(path) for path in paths], [item for item in arguments if not item.startswith(f"{name}=")]


def take_path(arguments: Sequence[str], name: str) -> tuple[str, list[str]]:
    """Return the absolute value of `name=PATH`, and the other arguments. Raises UserError like `take_paths`.

    Also raises it if there are several, and for a relative output of a Ray job.
    """
    paths, others = take_paths(arguments, name)
    if len(paths) > 1:
        raise UserError(f"{name} is given {len(paths)} times; give one")
    if name == "output":
        given = next(item.partition("=")[2] for item in arguments if item.startswith(f"{name}="))
        check_output_is_absolute(given, "an absolute path or a URL")
    return paths[0], others


def is_option(argument: str) -> bool:
    """Return True for key=value; False for paths, also such as data/date=2026."""
    name, sign, _ = argument.partition("=")
    return bool(sign) and "/" not in name and not os.path.exists(argument)


def take_output(arguments: Sequence[str], usage: str) -> tuple[str, list[str]]:
    """Return the absolute output that a command changes in place, and the `key=value` arguments.

    Raises UserError unless there is one, and for a URL with a user name or a password.
    """
    outputs = [item for item in arguments if not is_option(item)]
    if len(outputs) != 1:
        raise UserError(f"{len(outputs)} outputs are given; give one: {usage}")
    check_no_user("OUT", outputs[0])
    return absolute(outputs[0]), [item for item in arguments if is_option(item)]


def take_options(arguments: Sequence[str], cls: type[Options], alone: bool = False) -> tuple[Options, list[str]]:
    """Return the options of a command, whose keys are the fields of `cls`, and the other arguments.

    Raises UserError for a value of the wrong type, for an argument that is no `key=value`, and for others if these are `alone`.
    """
    names = {item.name for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
    mine = [item for item in arguments if item.partition("=")[0] in names]
    if plain := [item for item in arguments if "=" not in item]:
        raise UserError(f"{plain[0]!r} is not key=value; see --help for the keys")
    options = merge(cls, read_layers(mine, Keys()))
    assert isinstance(options, cls)
    others = [item for item in arguments if item not in mine]
    if alone and others:
        keys = ", ".join(item.name for item in dataclasses.fields(cls))  # type: ignore[arg-type]
        raise UserError(f"{others[0].partition('=')[0]!r} is not a key of this command; it takes {keys}")
    return options, others


def new_config(source: Source, changes: Sequence[str], output: str) -> PipelineConfig:
    """Return the configuration of a rewritten output: that of the source with the `key=value` arguments `changes`.

    Raises UserError if they bring back the queries of URLs.
    """
    new = read_config(source.store, changes)
    if source.config.write.strip_url_queries and not new.write.strip_url_queries:
        raise UserError("write.strip_url_queries=false: the source has no queries any more; leave it true")
    return dataclasses.replace(new, output=output)
