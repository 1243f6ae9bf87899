"""The frame of the commands that make an output from finished outputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from hypergrit_common.cli import EXIT_CODES, FAILED_SHARDS, command, set_up_logging
from hypergrit_common.config import Keys, merge, read_layers
from hypergrit_common.config_help import Key, describe, help_topic, list_keys, print_text
from hypergrit_common.errors import UserError
from pipeline.config import KEYS, Messages, PipelineConfig
from pipeline.output.source import RUNNING, Options, take_options, take_output

Main = Callable[[Sequence[str]], int]
"""Runs a command with its `key=value` arguments; returns the number of shards that failed."""

CODES: Final = f"""\
{EXIT_CODES}
3 done, but some shards failed: NEW/_failed/ has their errors, and the same command tries them again.
"""


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
        messages = merge(
            Messages, read_layers([item for item in arguments if item.startswith(("quiet=", "log.", "log="))], Keys())
        )
        set_up_logging(messages.level, is_json=messages.log.format == "json")
        return FAILED_SHARDS if run(arguments) else 0

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
        found, others = take_options(rest, options)
        if others:
            raise UserError(f"{others[0]!r} is not a key of this command; see --help for the keys")
        return run(output, found)

    return main


def keys_of_job(names: Sequence[str]) -> list[Key]:
    """Return the keys of a job with these names or in these groups, for `--help KEY`."""
    return [key for key in list_keys(PipelineConfig) if any(f"{key.name}.".startswith(f"{name}.") for name in names)]


@dataclass(frozen=True, kw_only=True)
class TakedownOptions:
    """The options of takedown."""

    # print the rows that would be removed, and change nothing
    dry_run: bool = False
