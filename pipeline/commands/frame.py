"""The frame of the commands that make an output from finished outputs."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from hypergrit_common.cli import EXIT_CODES, FAILED_SHARDS, command, set_up_logging
from hypergrit_common.config import Keys, merge, read_layers
from hypergrit_common.config_help import describe, print_text
from pipeline.config import LogConfig

Main = Callable[[Sequence[str]], int]
"""Runs a command with its `key=value` arguments; returns the number of shards that failed."""

CODES: Final = f"""\
{EXIT_CODES}
3 done, but some shards failed: NEW/_failed/ has their errors, and the same command tries them again.
"""


@dataclass(frozen=True, kw_only=True)
class Messages:
    """The settings of a job that the log needs before the configuration of the source can be read."""

    quiet: bool = False
    log: LogConfig = field(default_factory=LogConfig)


def is_about_messages(argument: str) -> bool:
    """Return True for an argument that sets one of `Messages`."""
    return argument.startswith(("quiet=", "log.", "log="))


def derive_command(usage: str, load: Callable[[], Main], options: type | None = None) -> Callable[[Sequence[str]], int]:
    """Return the `main` of a command, which takes its arguments and returns the exit code.

    `load` imports the command, which takes seconds and is not needed for `--help`. The fields of `options` are the keys
    of the command besides those that `usage` names.
    """

    @command("finished shards are kept; run the same command again to resume")
    def main(arguments: Sequence[str]) -> int:
        if "-h" in arguments or "--help" in arguments:
            print_text(usage if options is None else describe(usage, options, {}))
            return 0
        messages = merge(Messages, read_layers([item for item in arguments if is_about_messages(item)], Keys()))
        set_up_logging(logging.WARNING if messages.quiet else logging.INFO, is_json=messages.log.format == "json")
        return FAILED_SHARDS if load()(arguments) else 0

    return main


@dataclass(frozen=True, kw_only=True)
class TakedownOptions:
    """The options of takedown."""

    # print the rows that would be removed, and change nothing
    dry_run: bool = False
