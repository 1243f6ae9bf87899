"""Where a job reads and writes: the same places on every machine, and outputs that would mix two runs refused."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from common.errors import UserError
from common.paths import absolute, check_output_is_absolute
from common.remote import open_store
from pipeline.config import PipelineConfig
from pipeline.read.types import ShardPlan
from pipeline.write.store import Store
from schemas.files import FILES


def with_absolute_places(config: PipelineConfig) -> PipelineConfig:
    """`config` with input and output independent of the folder a worker happens to run in."""
    check_output_is_absolute(config.output, "an absolute path or a URL")
    return dataclasses.replace(config, input=absolute(config.input), output=absolute(config.output))


def refuse_output_in_input(config: PipelineConfig, plans: Sequence[ShardPlan]) -> None:
    """Raise UserError if the output is, or would become, a part of the input: the next run would read its own shards."""
    filesystem, folder = open_store(config.input)
    output_store, output = open_store(config.output)
    inside = f"{output}/".startswith(f"{folder.rstrip('/')}/") and filesystem.isdir(folder)
    own = tuple(f"{place}/{kind}/" for place in (output_store.unstrip_protocol(output), output) for kind in FILES)
    if inside or any(piece.path.startswith(own) for plan in plans for piece in plan.pieces):
        raise UserError(
            f"output {config.output!r} lies within the input {config.input!r}: a second run would read the shards of the first; "
            f"give an output= outside"
        )


def refuse_foreign_shards(store: Store, output: str, n_shards: int) -> None:
    """Raise UserError if `output` holds shards that this run would not make: readers would mix two runs."""
    names = [name for name in store.names("_manifests") if name.endswith(".json")]
    foreign = sorted(name for name in names if int(Path(name).stem) >= n_shards)
    if foreign:
        raise UserError(
            f"{output} holds {len(foreign)} shards beyond this run's {n_shards} (first: {Path(foreign[0]).stem}), "
            f"from an earlier run with more rows or smaller shards; give another output=, or remove that folder"
        )


def check_writable(output: Store) -> None:
    """Raise UserError unless a file can be made in `output`."""
    try:
        output.write(".writable", "")
        output.remove([".writable"])
    except OSError as error:
        raise UserError(
            f"output {output.root!r} is not writable: {error}. Give another output= or mend its permissions."
        ) from None
