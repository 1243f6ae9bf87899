"""Drop the rows whose image is in an evaluation set."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from common.errors import UserError
from common.images import ImageRejected
from pipeline.derive.evaluation import EvaluationSet, read_evaluation_set
from pipeline.derive.options import DecontaminateOptions
from pipeline.derive.output import NewShard, write_output
from pipeline.derive.settings import new_config, take_options, take_path, take_paths
from pipeline.derive.source import Source, may_lack_queries, read_table
from pipeline.write.manifest import plan_from_json
from schemas.rows import DOWNLOADED, HEAVY, SCORED
from schemas.status import KEPT
from schemas.table import Drop, drop_rows

LATER: Final = tuple(name for name in SCORED.names if name not in DOWNLOADED.names)
"""Columns of the stages after `download`, which are null in a row that it drops."""


def decontaminate(arguments: Sequence[str]) -> int:
    """Write the output; return the number of shards that failed. Raises UserError."""
    output, rest = take_path(arguments, "output")
    folder, rest = take_path(rest, "source")
    against, rest = take_paths(rest, "against")
    options, changes = take_options(rest, DecontaminateOptions)
    source = Source(folder, options.incomplete)
    new = new_config(source.store, changes, output, "decontaminate", allowed=())
    lacks_queries = may_lack_queries(new, source.manifests.values())
    found = read_evaluation_set(against, options.radius, lacks_queries)
    settings = {"against": found.digest, "radius": options.radius}
    shards = [
        NewShard(
            plan_from_json(manifest["plan"]),
            manifest["provenance"],
            {"command": "decontaminate", "sources": [source.shard(index)], "settings": settings},
            retry=manifest.get("retry"),
        )
        for index, manifest in source.manifests.items()
    ]
    return write_output(partial(make_table, found=found), shards, new, source.left_out)


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
