"""Drop the rows whose image is in an evaluation set."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from common.errors import UserError
from common.images import ImageRejected
from common.paths import absolute, check_output_is_absolute
from common.urls import check_no_user
from pipeline.derive.evaluation import MAX_RADIUS, EvaluationSet, read_evaluation_set
from pipeline.derive.output import NewShard, write_output
from pipeline.derive.settings import check_changes, read_config, take_argument
from pipeline.derive.source import Source, read_table
from pipeline.write.manifest import plan_from_json
from schemas.rows import DOWNLOADED, HEAVY, SCORED
from schemas.status import KEPT
from schemas.table import Drop, drop_rows

RADIUS: Final = 6
"""Default radius in bits: copies with another size, quality or brightness differ in fewer."""
LATER: Final = tuple(name for name in SCORED.names if name not in DOWNLOADED.names)
"""Columns of the stages after `download`, which are null in a row that it drops."""


def decontaminate(arguments: Sequence[str]) -> int:
    """Write the output; return the number of shards that failed. Raises UserError."""
    output, changes = take_argument(arguments, "output")
    folder, changes = take_argument(changes, "source")
    paths = [item.partition("=")[2] for item in changes if item.startswith("against=")]
    _, changes = take_argument(changes, "against")
    radius, changes = take_radius(changes)
    check_output_is_absolute(output, "an absolute path or a URL")
    for name, value in (("output", output), ("source", folder), *(("against", path) for path in paths)):
        check_no_user(name, value)
    source = Source(absolute(folder))
    old = source.config
    new = dataclasses.replace(read_config(source.store, changes), output=absolute(output))
    check_changes(old, new, (), "decontaminate")
    found = read_evaluation_set([absolute(path) for path in paths], radius, new.write.strip_url_queries)
    settings = {"against": found.digest, "radius": radius}
    shards = [
        NewShard(
            plan_from_json(manifest["plan"]),
            manifest["provenance"],
            {"command": "decontaminate", "sources": [source.shard(index)], "settings": settings},
            retry=manifest.get("retry"),
        )
        for index, manifest in source.manifests.items()
    ]
    return write_output(partial(make_table, found=found), shards, new)


def take_radius(arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Return the value of `radius=`, and the other arguments. Raises UserError."""
    values = [item.partition("=")[2] for item in arguments if item.startswith("radius=")] or [str(RADIUS)]
    if not (values[-1].isascii() and values[-1].isdecimal() and int(values[-1]) <= MAX_RADIUS):
        raise UserError(f"radius={values[-1]}; give a number of bits from 0 to {MAX_RADIUS}")
    return int(values[-1]), [item for item in arguments if not item.startswith("radius=")]


def make_table(shard: NewShard, found: EvaluationSet) -> pa.Table:
    """Return the rows of a source shard without the images of the evaluation set."""
    (source,) = shard.origin["sources"]
    return drop_found(read_table(source["output"], source), found)


def drop_found(table: pa.Table, found: EvaluationSet) -> pa.Table:
    """Drop the rows of a SCORED table whose image is in the set.

    Rows that `score` dropped are compared too, since refilter may keep them. Raises UserError for an image that cannot
    be decoded.
    """
    drops: dict[int, Drop] = {}
    columns = (table[name].to_pylist() for name in ("key", "status", "stage", "url", "sha256", "image"))
    for i, (key, status, stage, *facts) in enumerate(zip(*columns, strict=True)):
        if status != KEPT and stage not in ("score", "write"):
            continue
        try:
            kind = found.match(*facts)
        except ImageRejected as error:
            raise UserError(f"row {key}: its stored image cannot be decoded ({error}); see pipeline.verify") from error
        if kind:
            drops[i] = Drop("in_evaluation_set", kind)
    return drop_rows(table, "download", drops, (*HEAVY, *LATER))
