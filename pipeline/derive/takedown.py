"""Take rows down: remove what a list names from all formats of a finished output, in place."""

import dataclasses
import logging
from collections.abc import Sequence
from functools import partial

from tqdm import tqdm

from common.config_help import print_text
from common.errors import UserError
from common.paths import absolute
from common.text import counted, one_line
from common.urls import check_no_user
from pipeline.config import PipelineConfig
from pipeline.derive.matches import find_rows, without
from pipeline.derive.options import TakedownOptions
from pipeline.derive.removal import remove_rows
from pipeline.derive.settings import check_changes, read_config, take_options, take_path
from pipeline.derive.source import may_lack_queries
from pipeline.derive.workers import map_shards
from pipeline.job import remove_drafts, report_shards
from pipeline.lease import hold_lease
from pipeline.paths import check_writable
from pipeline.read.takedown import TakedownList, read_takedown
from pipeline.report.shards import check_finished, read_manifests
from pipeline.write.pending import read_pending
from pipeline.write.store import Store
from schemas.manifest import Manifest, PendingTakedown

logger = logging.getLogger("hypergrit")


@dataclasses.dataclass(frozen=True)
class Found:
    """The rows of a shard that a list names: text of each for the listing."""

    shard: int
    lines: tuple[str, ...]


def takedown(arguments: Sequence[str]) -> int:
    """Remove the rows, or list them with `dry_run=true`; return the number of shards that failed. Raises UserError."""
    outputs = [item for item in arguments if "=" not in item]
    if len(outputs) != 1:
        raise UserError(f"{len(outputs)} outputs are given; give one: python -m pipeline.takedown OUT list=FILE")
    check_no_user("OUT", outputs[0])
    output = absolute(outputs[0])
    path, rest = take_path([item for item in arguments if "=" in item], "list")
    options, changes = take_options(rest, TakedownOptions)
    entries = read_takedown(path)
    if not len(entries):
        raise UserError(f"list={path} has no entries; give one URL, host or SHA-256 a line")
    store = Store(output)
    old = read_config(store)
    config = dataclasses.replace(read_config(store, changes), output=output)
    check_changes(old, config, (), "takedown")
    return list_rows(store, config, entries) if options.dry_run else remove_all(store, config, entries)


def list_rows(store: Store, config: PipelineConfig, entries: TakedownList) -> int:
    """Print the rows that would go, in the order of their shards; nothing is written. Returns the number of failures."""
    manifests = read_manifests(store)
    check_finished(store, manifests)
    entries = entries.without_queries() if may_lack_queries(config, manifests) else entries
    results = map_shards(
        partial(find_in, store.root if store.is_local else config.output, entries), manifests, config.ray
    )
    found, n_failed = list[Found](), 0
    for manifest, result in results:
        if isinstance(result, Exception):
            n_failed += 1
            log_failure(manifest, result)
        else:
            found.append(result)
    for shard in sorted(found, key=lambda shard: shard.shard):
        for line in shard.lines:
            print_text(line)
    n_rows, n_shards = sum(len(shard.lines) for shard in found), sum(bool(shard.lines) for shard in found)
    print_text(
        f"{counted(n_rows, 'row')} in {n_shards} of {counted(len(manifests), 'shard')} would be taken down; nothing was changed"
    )
    return n_failed


def remove_all(store: Store, config: PipelineConfig, entries: TakedownList) -> int:
    """Remove the rows shard by shard, then write the report; return the number of shards that failed."""
    check_writable(store)
    with hold_lease(store) as lease:
        remove_drafts(store)
        for pending in read_pending(store):
            logger.info("shard %d: finishing an interrupted takedown", pending["manifest"]["shard"])
            remove_rows(store, pending, lease.token)
        manifests = read_manifests(store)
        check_finished(store, manifests)
        entries = entries.without_queries() if may_lack_queries(config, manifests) else entries
        n_rows, n_shards, n_failed = 0, 0, 0
        results = lease.guard(
            map_shards(partial(remove_in, config.output, entries, lease.token), manifests, config.ray)
        )
        with tqdm(total=len(manifests), unit=" shards", disable=None) as bar:
            for manifest, result in results:
                if isinstance(result, Exception):
                    n_failed += 1
                    log_failure(manifest, result)
                else:
                    n_rows, n_shards = n_rows + len(result.lines), n_shards + bool(result.lines)
                bar.update()
        lease.check()
        remove_drafts(store)
        report_shards(config, [manifest["shard"] for manifest in manifests])
    print_text(f"{counted(n_rows, 'row')} in {n_shards} of {counted(len(manifests), 'shard')} taken down")
    return n_failed


def log_failure(manifest: Manifest, error: Exception) -> None:
    """Log the failure of a shard in one line."""
    logger.warning(
        "shard %d failed, the others go on: %s: %s", manifest["shard"], type(error).__name__, one_line(error)
    )


def find_in(output: str, entries: TakedownList, manifest: Manifest) -> Found:
    """Find the rows of a shard."""
    found = find_rows(Store(output), manifest, entries)
    lines = (f"shard {manifest['shard']} row {key} {kind}: {row['url'] or '-'} {row['sha256'] or '-'}"
             for key, (kind, row) in found.items())  # fmt: skip
    return Found(manifest["shard"], tuple(lines))


def remove_in(output: str, entries: TakedownList, lease: str, manifest: Manifest) -> Found:
    """Remove the rows of a shard; one without such rows is not written."""
    store = Store(output)
    found = find_rows(store, manifest, entries)
    if found:
        rows: PendingTakedown = {
            "manifest": without(manifest, found),
            "rows": {k: kind for k, (kind, _) in found.items()},
        }
        remove_rows(store, rows, lease)
    return Found(manifest["shard"], tuple(found))
