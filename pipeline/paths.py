"""Checks of the input and output paths of a job, before anything is computed."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from common.errors import UserError
from common.paths import absolute, check_output_is_absolute
from common.remote import open_store
from pipeline.config import PipelineConfig
from pipeline.read.types import ShardPlan
from pipeline.write.store import Store
from schemas.files import FILES, MANIFEST_FOLDER


def with_absolute_paths(config: PipelineConfig) -> PipelineConfig:
    """Make input and output absolute, since workers run in other folders.

    Raises UserError for a relative output of a Ray job, which would be lost.
    """
    check_output_is_absolute(config.output, "an absolute path or a URL")
    return dataclasses.replace(config, input=absolute(config.input), output=absolute(config.output))


def check_output_outside_input(config: PipelineConfig, plans: Sequence[ShardPlan]) -> None:
    """Raise UserError if the output is inside the input: the next run would read the shards of this one."""
    filesystem, folder = open_store(config.input)
    output_store, output = open_store(config.output)
    inside = f"{output}/".startswith(f"{folder.rstrip('/')}/") and filesystem.isdir(folder)
    roots = (output_store.unstrip_protocol(output), output)
    shard_folders = tuple(f"{root}/{kind}/" for root in roots for kind in FILES)
    if inside or any(piece.path.startswith(shard_folders) for plan in plans for piece in plan.pieces):
        raise UserError(
            f"output {config.output!r} is within the input {config.input!r}: the next run would read the shards of "
            "this one; give an output= outside the input"
        )


def check_no_foreign_shards(store: Store, output: str, n_shards: int) -> None:
    """Raise UserError if `output` holds shards beyond the `n_shards` of this run: readers would mix two runs."""
    names = [name for name in store.names(MANIFEST_FOLDER) if name.endswith(".json")]
    foreign = sorted(name for name in names if int(Path(name).stem) >= n_shards)
    if foreign:
        raise UserError(
            f"{output} holds {len(foreign)} shards beyond this run's {n_shards} (first: {Path(foreign[0]).stem}), "
            "written by an earlier run with more rows or smaller shards; give another output=, or remove that folder"
        )


def check_writable(output: Store) -> None:
    """Raise UserError unless a file can be created in `output`."""
    try:
        output.write(".writable", "")
        output.remove([".writable"])
    except OSError as error:
        raise UserError(
            f"output {output.root!r} is not writable: {error}; give another output=, or change the permissions"
        ) from None
