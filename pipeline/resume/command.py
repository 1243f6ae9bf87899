"""The record of a command that made the shards of an output from finished shards, `_command.json`.

It tells which shards belong to the output, and not how to make them: neither the job nor another command resumes from it.
"""

import json
from collections.abc import Sequence

from common.errors import UserError
from common.text import counted, one_line
from pipeline.write.store import Store
from schemas.files import COMMAND_FILE
from schemas.job import CommandRecord, LeftOut
from schemas.rows import VERSION


def write_command(store: Store, command: str, shards: Sequence[int], left_out: Sequence[LeftOut] = ()) -> None:
    """Write the record. Raises UserError if the output cannot be written."""
    record: CommandRecord = {"schema": VERSION, "command": command, "shards": sorted(shards)}
    if left_out:
        record["left_out"] = list(left_out)
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
        if "left_out" in value:
            record["left_out"] = [
                {
                    "output": str(left["output"]),
                    "shards": [int(index) for index in left["shards"]],
                    "rows": None if left["rows"] is None else int(left["rows"]),
                }
                for left in value["left_out"]
            ]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(
            f"{store.url(COMMAND_FILE)} is damaged ({one_line(error)}); run the command that made the output again, with "
            "the same arguments: it writes the file anew"
        ) from error
    return record


def again(command: str) -> str:
    """Return how to make the shards of an output again: by their command, or "" by the job."""
    return f"pipeline.{command} again with the same arguments" if command else "the job again with the same settings"


def describe_left_out(left: LeftOut) -> str:
    """Return the number of shards and rows that a source lacked, with its name."""
    rows = "" if left["rows"] is None else f" ({counted(left['rows'], 'row')})"
    return f"{counted(len(left['shards']), 'shard')}{rows} of {left['output']}"
