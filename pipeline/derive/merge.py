"""Join several outputs into one, as if their inputs had been concatenated."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa

from common.errors import UserError
from pipeline.config import PipelineConfig
from pipeline.derive.combine import differences, format_key, key_end, key_number, new_provenance
from pipeline.derive.options import MergeOptions
from pipeline.derive.output import NewShard, write_output
from pipeline.derive.settings import new_config, take_options, take_path, take_paths
from pipeline.derive.source import Source, read_table
from pipeline.paths import place_of
from pipeline.read.types import ShardPlan
from pipeline.write.attempts import group_attempts
from pipeline.write.manifest import plan_from_json
from schemas.attempts import RETRY_STEP, index_of
from schemas.status import KEY_REASONS
from schemas.table import set_column

logger = logging.getLogger("hypergrit")


def merge_outputs(arguments: Sequence[str]) -> int:
    """Write the output; return the number of shards that failed. Raises UserError."""
    output, rest = take_path(arguments, "output")
    folders, rest = take_paths(rest, "source")
    options, changes = take_options(rest, MergeOptions)
    sources = [Source(folder, options.incomplete) for folder in folders]
    places = [place_of(source.store) for source in sources]
    if twice := next((folders[i] for i, place in enumerate(places) if place in places[:i]), None):
        raise UserError(f"source={twice} is given twice; every row would be in the output twice")
    configs = [source.config for source in sources]
    new = new_config(sources[0].store, changes, output, "merge")
    if (found := differences(sources, configs)) and not options.mixed:
        raise UserError(f"the sources differ in {'; '.join(found)}. Give mixed=true to join them all the same")
    new = joint_config(configs, new)
    left_out = [left for source in sources for left in source.left_out]
    return write_output(make_table, list(plan_merge(sources, configs, new)), new, left_out)


def joint_config(configs: Sequence[PipelineConfig], new: PipelineConfig) -> PipelineConfig:
    """Return the configuration of a merge with settings that hold for the rows of all sources.

    Scores of removed boxes are there only if all sources have them; URLs have no queries if those of one source have none.
    """
    keep_all = all(config.score.keep_all for config in configs)
    strips = new.write.strip_url_queries or any(config.write.strip_url_queries for config in configs)
    if strips and not new.write.strip_url_queries:
        logger.warning("the URLs of a source have no queries any more: write.strip_url_queries=true for all rows")
    return dataclasses.replace(
        new,
        score=dataclasses.replace(new.score, keep_all=keep_all),
        write=dataclasses.replace(new.write, strip_url_queries=strips),
    )


def plan_merge(sources: Sequence[Source], configs: Sequence[PipelineConfig], new: PipelineConfig) -> Iterator[NewShard]:
    """Yield one shard for each shard of the sources, one source after the other.

    Rows, keys and indices of a source are shifted by those of the sources before it; attempts of pipeline.retry follow
    the shard whose rows they tried again. Raises UserError for more shards than indices.
    """
    index = offset = 0
    for source, config in zip(sources, configs, strict=True):
        for attempts in group_attempts(source.manifests.values()):
            for manifest in attempts:
                retry = manifest.get("retry")
                new_index = index if retry is None else index_of(retry["attempt"], index)
                yield NewShard(
                    shifted(plan_from_json(manifest["plan"]), new_index, offset),
                    new_provenance(manifest, source, config, new),
                    {
                        "command": "merge",
                        "sources": [source.shard(manifest["shard"])],
                        "settings": {"key_offset": offset},
                    },
                    retry=None if retry is None else {**retry, "shard": index},
                )
            index += 1
        offset += key_end(source)
    if index > RETRY_STEP:
        raise UserError(f"the sources have {index} shards; an output holds {RETRY_STEP}: reshard them first")


def shifted(plan: ShardPlan, index: int, offset: int) -> ShardPlan:
    """Return a plan with another index, and its rows shifted by `offset`."""
    appends = tuple(row + offset for row in plan.appends)
    return dataclasses.replace(plan, index=index, first_row=plan.first_row + offset, appends=appends)


def make_table(shard: NewShard) -> pa.Table:
    """Return the rows of a source shard with shifted keys."""
    (source,) = shard.origin["sources"]
    return shift_keys(read_table(source["output"], source), shard.origin["settings"]["key_offset"], source["output"])


def shift_keys(table: pa.Table, offset: int, source: str) -> pa.Table:
    """Return a table with all keys shifted: those of the rows, and those that name the row of which one is a duplicate.

    Raises UserError for a key that is no row number of `source`.
    """

    def shift(key: str) -> str:
        return format_key(key_number(key, source) + offset)

    keys, reasons, details = (table[name].to_pylist() for name in ("key", "reason", "detail"))
    pairs = zip(reasons, details, strict=True)
    details = [shift(detail) if detail and reason in KEY_REASONS else detail for reason, detail in pairs]
    table = set_column(table, "key", pa.array([shift(key) for key in keys], pa.string()))
    return set_column(table, "detail", pa.array(details, pa.string()))
