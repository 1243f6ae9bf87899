"""The record of a command that made the shards of an output from finished shards, `_command.json`.

It tells which shards belong to the output, and not how to make them: neither the job nor another command resumes from it.
"""

import json
from collections.abc import Collection, Sequence

from common.errors import UserError
from common.text import one_line
from pipeline.write.store import Store
from schemas.files import COMMAND_FILE
from schemas.job import CommandRecord
from schemas.rows import VERSION


def write_command(store: Store, command: str, shards: Sequence[int]) -> None:
    """Write the record. Raises UserError if the output cannot be written."""
    record: CommandRecord = {"schema": VERSION, "command": command, "shards": sorted(shards)}
    store.write(COMMAND_FILE, json.dumps(record, sort_keys=True) + "\n")


def read_command(store: Store) -> CommandRecord | None:
    """Read the record; None for an output of the job, or of version 0.6 or earlier. Raises UserError if it is damaged."""
    content = store.read(COMMAND_FILE)
    if content is None:
        return None
    try:
        value = json.loads(content)
        record: CommandRecord = {
            "schema": str(value["schema"]),
            "command": str(value["command"]),
            "shards": [int(index) for index in value["shards"]],
        }
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(
            f"{store.url(COMMAND_FILE)} is damaged ({one_line(error)}); run the command that made the output again, with "
            "the same arguments: it writes the file anew"
        ) from error
    return record


def check_complete(store: Store, finished: Collection[int]) -> None:
    """Raise UserError if an output of a command lacks shards, whose rows would be lost without a word."""
    record = read_command(store)
    if record is None:
        return
    if missing := sorted(set(record["shards"]) - set(finished)):
        raise UserError(
            f"{store.root} lacks {len(missing)} of the {len(record['shards'])} shards of pipeline.{record['command']}, "
            f"such as shard {missing[0]}; run that command again with the same arguments to finish the output, or remove "
            f"{store.url(COMMAND_FILE)} to go on without their rows"
        )
