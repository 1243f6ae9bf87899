"""Make the shards that the job would have made with other thresholds or formats."""

import dataclasses
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final, cast

import pyarrow as pa

from common.errors import UserError
from pipeline.config import PipelineConfig, content_hash
from pipeline.derive.combine import hash_with
from pipeline.derive.filters import check_thresholds, refilter_table
from pipeline.derive.options import DeriveOptions
from pipeline.derive.output import NewShard, write_output
from pipeline.derive.settings import given_keys, new_config, take_options, take_path
from pipeline.derive.source import Source, read_table
from pipeline.resume.finished import formats_by_hash
from pipeline.resume.record import read_record, settings_of
from pipeline.score.thresholds import Thresholds, resolve_thresholds
from pipeline.write.manifest import plan_from_json
from schemas.manifest import Manifest, Provenance, ThresholdValues

ALLOWED: Final = (
    *(f"score.{field.name}" for field in dataclasses.fields(Thresholds)),
    "score.keep_all",
    "write",
)
"""Settings that may differ from those of the source."""


def refilter(arguments: Sequence[str]) -> int:
    """Write the output; return the number of shards that failed. Raises UserError."""
    output, rest = take_path(arguments, "output")
    folder, rest = take_path(rest, "source")
    options, changes = take_options(rest, DeriveOptions)
    source = Source(folder, options.incomplete)
    old = source.config
    new = new_config(source.store, changes, output, "refilter", ALLOWED)
    given = given_keys(changes)
    shards = [
        NewShard(
            plan_from_json(manifest["plan"]),
            new_provenance(manifest, old, new, given, source.is_mixed),
            {"command": "refilter", "sources": [source.shard(index)], "settings": {}},
            retry=manifest.get("retry"),
        )
        for index, manifest in source.manifests.items()
    ]
    record = read_record(source.store)
    if record is not None:
        record = {**record, "settings": settings_of(new), "provenance": shards[0].provenance}
    return write_output(partial(make_table, keep_all=new.score.keep_all), shards, new, source.left_out, record)


def new_provenance(
    manifest: Manifest, old: PipelineConfig, new: PipelineConfig, given: Collection[str], is_mixed: bool
) -> Provenance:
    """Return the provenance of a shard with the new thresholds. Raises UserError if they cannot be applied.

    A threshold that is not among the keys `given` remains that of the shard: its model may not be here, and the shards
    of a mixed output have thresholds that its configuration does not tell. So have their other settings, which their
    hash therefore keeps apart.
    """
    before, models = Thresholds(**manifest["provenance"]["thresholds"]), manifest["provenance"]["models"]
    names = [field.name for field in dataclasses.fields(Thresholds) if f"score.{field.name}" in given]
    names = [name for name in names if is_mixed or getattr(new.score, name) != getattr(old.score, name)]
    changed = {name: getattr(new.score, name) for name in names}
    if None in changed.values():
        score = dataclasses.replace(new.score, scorer=models["scorer"]["name"])
        calibrated = resolve_thresholds(score, models["grounder"]["name"])
        changed = {name: getattr(calibrated, name) for name in names}
    after = dataclasses.replace(before, **changed)
    check_thresholds(before, after, old.score.keep_all)
    if new.score.keep_all and not old.score.keep_all:
        raise UserError("score.keep_all=true: the source has no scores of removed boxes; run the job with this setting")
    thresholds = cast(ThresholdValues, dataclasses.asdict(after))
    values = settings_of(new)
    changes = {key for key, value in settings_of(old).items() if values[key] != value}
    changes |= {f"score.{name}" for name in names}
    old_hash = manifest["provenance"]["config_hash"]
    config_hash = content_hash(new)
    if (is_mixed or "retry" in manifest) and old_hash not in formats_by_hash(old):  # other settings than in config.yaml
        config_hash = hash_with(old_hash, {key: values[key] for key in changes})
    return {**manifest["provenance"], "config_hash": config_hash, "thresholds": thresholds}


def make_table(shard: NewShard, keep_all: bool) -> pa.Table:
    """Return the rows of a source shard with the thresholds of the new one."""
    (source,) = shard.origin["sources"]
    thresholds = Thresholds(**shard.provenance["thresholds"])
    return refilter_table(read_table(source["output"], source), thresholds, keep_all)
