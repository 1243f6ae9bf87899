"""Make the shards that the job would have made with other thresholds or formats."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Final, cast

import pyarrow as pa

from common.errors import UserError
from pipeline.config import PipelineConfig, content_hash
from pipeline.derive.filters import check_thresholds, refilter_table
from pipeline.derive.output import NewShard, write_output
from pipeline.derive.settings import new_config, take_path
from pipeline.derive.source import Source, read_table
from pipeline.resume.record import read_record, settings_of
from pipeline.score.thresholds import Thresholds, resolve_thresholds
from pipeline.write.manifest import plan_from_json
from schemas.manifest import Manifest, Provenance, ThresholdValues

ALLOWED: Final = (
    *(f"score.{name}" for name in ("min_score", "min_clip_score", "min_side_px", "size_rule", "keep_all")),
    "write",
)
"""Settings that may differ from those of the source."""


def refilter(arguments: Sequence[str]) -> int:
    """Write the output; return the number of shards that failed. Raises UserError."""
    output, rest = take_path(arguments, "output")
    folder, changes = take_path(rest, "source")
    source = Source(folder)
    old = source.config
    new = new_config(source.store, changes, output, "refilter", ALLOWED)
    shards = [
        NewShard(
            plan_from_json(manifest["plan"]),
            new_provenance(manifest, old, new),
            {"command": "refilter", "sources": [source.shard(index)], "settings": {}},
            retry=manifest.get("retry"),
        )
        for index, manifest in source.manifests.items()
    ]
    record = read_record(source.store)
    if record is not None:
        record = {**record, "settings": settings_of(new), "provenance": shards[0].provenance}
    return write_output(partial(make_table, keep_all=new.score.keep_all), shards, new, record)


def new_provenance(manifest: Manifest, old: PipelineConfig, new: PipelineConfig) -> Provenance:
    """Return the provenance of a shard with the new thresholds. Raises UserError if they cannot be applied.

    A threshold that is not set remains that of the source: its model may not be here.
    """
    before = Thresholds(**manifest["provenance"]["thresholds"])
    changed = {
        name: getattr(resolve_thresholds(new.score, new.ground.grounder), name)
        for name in ("min_score", "min_clip_score", "min_side_px", "size_rule")
        if getattr(new.score, name) != getattr(old.score, name)
    }
    after = dataclasses.replace(before, **changed)
    check_thresholds(before, after, old.score.keep_all)
    if new.score.keep_all and not old.score.keep_all:
        raise UserError("score.keep_all=true: the source has no scores of removed boxes; run the job with this setting")
    thresholds = cast(ThresholdValues, dataclasses.asdict(after))
    return {**manifest["provenance"], "config_hash": content_hash(new), "thresholds": thresholds}


def make_table(shard: NewShard, keep_all: bool) -> pa.Table:
    """Return the rows of a source shard with the thresholds of the new one."""
    (source,) = shard.origin["sources"]
    thresholds = Thresholds(**shard.provenance["thresholds"])
    return refilter_table(read_table(source["output"], source), thresholds, keep_all)
