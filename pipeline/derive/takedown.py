"""Take rows down: remove what a list names from all formats of a finished output, in place."""

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from common.cli import notify
from common.config_help import print_text
from common.errors import UserError
from common.text import counted, one_line
from pipeline.config import PipelineConfig
from pipeline.derive.attempts import find_in_attempts, without_rows
from pipeline.derive.options import TakedownOptions
from pipeline.derive.removal import remove_rows
from pipeline.derive.settings import RUNNING, check_keys, read_config, take_options, take_output, take_path
from pipeline.derive.source import may_lack_queries
from pipeline.derive.workers import map_shards, with_progress
from pipeline.job import remove_drafts, report_shards
from pipeline.lease import hold_lease
from pipeline.paths import check_writable
from pipeline.read.takedown import TakedownList, read_takedown
from pipeline.report.ledger import write_summary
from pipeline.report.shards import check_finished, read_manifests, read_manifests_of
from pipeline.verify.output import list_contents
from pipeline.write.attempts import group_attempts
from pipeline.write.fence import check_lease
from pipeline.write.layout import indices
from pipeline.write.pending import begin_takedown, check_nothing_pending, end_takedown, read_pending, write_pending
from pipeline.write.store import Store
from schemas.files import DROPS_FILE, FACTS_FILE, MANIFEST_FILE, SUMMARY_FILE
from schemas.manifest import Manifest, PendingTakedown

logger = logging.getLogger("hypergrit")


@dataclasses.dataclass(frozen=True)
class Found:
    """The rows of a shard that a list names: text of each for the listing."""

    shard: int
    lines: tuple[str, ...]


def takedown(arguments: Sequence[str]) -> int:
    """Remove the rows, or list them with `dry_run=true`; return the number of shards that failed. Raises UserError."""
    output, rest = take_output(arguments, "python -m pipeline.takedown OUT list=FILE")
    path, rest = take_path(rest, "list")
    options, changes = take_options(rest, TakedownOptions)
    entries = read_takedown(path)
    if not len(entries):
        raise UserError(f"list={path} has no entries; give one URL, host or SHA-256 a line")
    store = Store(output)
    config = dataclasses.replace(read_config(store, changes), output=output)
    check_keys(changes, RUNNING, "takedown")
    return list_rows(store, config, entries) if options.dry_run else remove_all(store, config, entries)


def list_rows(store: Store, config: PipelineConfig, entries: TakedownList) -> int:
    """Print the rows that would go, in the order of their shards; nothing is written. Returns the number of failures.

    Raises UserError if a takedown was interrupted, of which some rows are gone.
    """
    check_nothing_pending(store)
    manifests = read_manifests(store)
    check_finished(store, manifests)
    entries = entries.without_queries() if may_lack_queries(config, manifests) else entries
    groups = group_attempts(manifests)
    step = partial(find_in, store.root if store.is_local else config.output, entries)
    results = list(found_rows(map_shards(step, groups, config.ray), len(groups), config))
    found = [result for result in results if result is not None]
    for shard in sorted(found, key=lambda shard: shard.shard):
        for line in shard.lines:
            print_text(line)
    n_rows, n_shards = sum(len(shard.lines) for shard in found), sum(bool(shard.lines) for shard in found)
    shards = f"{n_shards} of {counted(len(groups), 'shard')}"
    print_text(f"{counted(n_rows, 'row')} in {shards} would be taken down; nothing was changed")
    warn_unfinished(store)
    return len(results) - len(found)


def remove_all(store: Store, config: PipelineConfig, entries: TakedownList) -> int:
    """Remove the rows shard by shard, then write the report; return the number of shards that failed.

    Other commands refuse the output from before the first change until no shard has failed and the report is written.
    """
    check_writable(store)
    with hold_lease(store) as lease:
        left = read_pending(store)
        check_finished(store, left or indices(store, MANIFEST_FILE))
        begin_takedown(store, entries.digests)
        store.remove_many(
            store.file(kind, index) for kind in (FACTS_FILE, DROPS_FILE) for index in indices(store, kind)
        )
        remove_drafts(store)
        for pending in left:
            logger.info("shard %d: finishing an interrupted takedown", pending["manifest"]["shard"])
            remove_rows(store, pending, lease.token)
        manifests = read_manifests(store)
        entries = entries.without_queries() if may_lack_queries(config, manifests) else entries
        n_rows, n_shards, n_failed = 0, 0, 0
        groups = group_attempts(manifests)
        results = lease.guard(map_shards(partial(remove_in, config.output, entries, lease.token), groups, config.ray))
        for result in found_rows(results, len(groups), config):
            if result is None:
                n_failed += 1
            else:
                n_rows, n_shards = n_rows + len(result.lines), n_shards + bool(result.lines)
        lease.check()
        remove_drafts(store)
        report_shards(config, [manifest["shard"] for manifest in manifests])
        if not n_failed:
            end_takedown(store)
    print_text(f"{counted(n_rows, 'row')} in {n_shards} of {counted(len(groups), 'shard')} taken down")
    warn_unfinished(store)
    return n_failed


def warn_unfinished(store: Store) -> None:
    """Warn about shards that the output lacks: their rows are not in it yet, and nothing keeps them out."""
    contents = list_contents(store)
    if n := contents.n_unfinished:
        maker, fix = "the job", "give it read.takedown=FILE with the same list"
        if contents.command:
            maker, fix = f"pipeline.{contents.command}", "when it has finished, run this takedown again"
        are = "is" if n == 1 else "are"
        notify(
            f"warning: {counted(n, 'shard')} {are} not finished, and {maker} can still write rows of the list; {fix}"
        )


def found_rows(
    results: Iterable[tuple[Sequence[Manifest], Found | Exception]], n_shards: int, config: PipelineConfig
) -> Iterator[Found | None]:
    """Yield the rows found in each shard, None for one that failed, after a line in the log."""
    for attempts, result in with_progress(results, n_shards, "searched", config):
        if isinstance(result, Exception):
            shard, text = attempts[0]["shard"], one_line(result)
            logger.warning("shard %d failed, the others go on: %s: %s", shard, type(result).__name__, text)
        yield None if isinstance(result, Exception) else result


def find_in(output: str, entries: TakedownList, attempts: Sequence[Manifest]) -> Found:
    """Find the rows of a shard and of the attempts of pipeline.retry at them."""
    found = find_in_attempts(Store(output), attempts, entries)
    rows = {key: item for rows in found for key, item in rows.items()}
    lines = (f"shard {attempts[0]['shard']} row {key} {kind}: {row['url'] or '-'} {row['sha256'] or '-'}"
             for key, (kind, row) in rows.items())  # fmt: skip
    return Found(attempts[0]["shard"], tuple(lines))


def remove_in(output: str, entries: TakedownList, lease: str, attempts: Sequence[Manifest]) -> Found:
    """Remove the rows of a shard and of the attempts of pipeline.retry at them; shards without such rows are not written."""
    store = Store(output)
    found = find_in_attempts(store, attempts, entries)
    pending = [
        PendingTakedown(manifest=new, rows={key: kind for key, (kind, _) in rows.items()})
        for old, new, rows in zip(attempts, without_rows(store, attempts, found), found, strict=True)
        if new != old
    ]
    if pending:  # the summary of an attempt also holds texts of the rows of earlier ones
        store.remove(store.file(SUMMARY_FILE, manifest["shard"]) for manifest in attempts)
    if len(attempts) > 1:  # a kill between two shards, whose counts depend on each other, must leave a record
        check_lease(store, lease)
        for record in pending:
            write_pending(store, record)
    for record in pending:
        remove_rows(store, record, lease)
    if pending:
        write_summary(store, read_manifests_of(store, [manifest["shard"] for manifest in attempts]))
    return Found(attempts[0]["shard"], tuple({key for rows in found for key in rows}))
