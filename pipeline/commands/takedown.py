"""Command line of takedown: remove rows that a list names from a finished output."""

import dataclasses
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import Any, Final

import pyarrow as pa

from hypergrit_common.arrow_sizes import MOST, read_arrow_file, read_parquet
from hypergrit_common.cli import EXIT_CODES, INCOMPLETE
from hypergrit_common.config_help import print_lines, print_text
from hypergrit_common.errors import UserError
from hypergrit_common.near_duplicates import normal_url
from hypergrit_common.tar import reader_of
from hypergrit_common.text import counted
from pipeline.commands.frame import TakedownOptions, check_keys, derive_command, take_options, take_output, take_path
from pipeline.config import PipelineConfig
from pipeline.explore.index import remove_cached
from pipeline.explore.rows import rows_by_name, spellings
from pipeline.faults import shard_errors
from pipeline.output.commit import (
    Staging,
    check_committed,
    exclusive,
    finish_replacements,
    open_output,
    read_places,
    replace,
    restore_index,
)
from pipeline.output.contents import file_problem
from pipeline.output.ledger import check_finished, read_manifests, read_rows, write_summary
from pipeline.output.lock import fenced
from pipeline.output.record import read_command, read_record, write_record
from pipeline.output.source import read_config
from pipeline.output.store import Store, remove_abandoned_folders, temporary_folder_prefix
from pipeline.output.takedowns import FoundRows, find_rows, listed_strangers, read_errors, remove_leftovers, unreadable
from pipeline.output.write.arrow import write_arrow
from pipeline.output.write.grit import write_grit_parquet
from pipeline.output.write.samples import count_kept, count_removed
from pipeline.output.write.tar import SamplePlace, TarWriter, write_index
from pipeline.read.takedown import (
    ROW,
    STAGE_OF,
    TAKEN_DOWN,
    Digests,
    Kind,
    TakedownList,
    parse_takedown,
    read_lines,
    taken_down,
)
from pipeline.report.summary import report
from pipeline.run.loop import Run, tasks_of
from pipeline.run.provenance import check_writable
from pipeline.run.steps import Recipe
from schemas.files import DROPPED_FILE, FILES, INDEX, INDEX_FILE, REPORT_FILE, STATS_FILE, SUMMARY_FILE, grit_schema
from schemas.manifest import Counts, Manifest
from schemas.rows import SCORED
from schemas.status import KEPT

logger = logging.getLogger("hypergrit")

# The counts of a shard without the rows that go.


def without(manifest: Manifest, found: FoundRows) -> Manifest:
    """Return a manifest whose counts have these rows as taken down; its files are still those with the rows."""
    rows = [row for _, row in found.values()]
    less, removed, before = count_kept(rows), count_removed(rows), manifest["removed"]
    changed: Manifest = {
        **manifest,
        "counts": counts_without(manifest["counts"], found),
        "boxes": manifest["boxes"] - less["boxes"],
        "phrases": manifest["phrases"] - less["phrases"],
        "asked": manifest["asked"] - less["asked"],
        "removed": {
            "phrases": subtract(before["phrases"], removed["phrases"]),
            "boxes": subtract(before["boxes"], removed["boxes"]),
        },
    }
    if n_unconfirmed := changed.pop("unconfirmed", 0) - less["unconfirmed"]:
        changed["unconfirmed"] = n_unconfirmed
    n_pairs = changed.pop("pairs", 0) - less["pairs"]
    return {**changed, "pairs": n_pairs} if n_pairs else changed


def counts_without(counts: Counts, found: FoundRows) -> Counts:
    """Return the counts of a shard in which these rows are taken down."""
    dropped = {stage: Counter(reasons) for stage, reasons in counts["dropped"].items()}
    n_kept = counts["kept"]
    for kind, row in found.values():
        if row["status"] == KEPT:
            n_kept -= 1
        else:
            dropped[row["stage"]][row["reason"]] -= 1
        dropped.setdefault(STAGE_OF[kind], Counter())[TAKEN_DOWN] += 1
    left = {stage: subtract(reasons, {}) for stage, reasons in dropped.items()}
    return {"read": counts["read"], "kept": n_kept, "dropped": {stage: n for stage, n in left.items() if n}}


def subtract(counts: Mapping[str, int], less: Mapping[str, int]) -> dict[str, int]:
    """Return the positive differences of two counts."""
    return {name: n - less.get(name, 0) for name, n in counts.items() if n > less.get(name, 0)}


# Remove rows from the files of a finished shard, without decoding or encoding an image.

SIMILARITY: Final = grit_schema("").names.index("")
"""Place of the column of grit/ whose name ends with the scorer."""

Kinds = Mapping[str, Any]
"""Key of a row to remove -> kind of the entry that names it, or what else `Blank` needs."""
Blank = Callable[[Mapping[str, Any], Any], dict[str, Any]]


def remove_rows(store: Store, manifest: Manifest, found: FoundRows, lease: str) -> None:
    """Replace a shard by one without these rows.

    Raises UserError for a file that is not that of the manifest, whose damage a copy would hide, and if the lease with
    the token `lease` does not hold the output any more.
    """
    index, kinds = manifest["shard"], {key: kind for key, (kind, _) in found.items()}
    with Staging(store) as staging, tempfile.TemporaryDirectory(prefix=temporary_folder_prefix()) as folder:
        for name, facts in manifest["files"].items():
            problem = file_problem(store, name, facts, folder)
            if problem and name == INDEX_FILE.path(index):
                orders = permutations(kind for kind in manifest["formats"] if kind != "arrow")
                problem = "" if any(restore_index(store, manifest, order) for order in orders) else problem
            if problem:
                raise unreadable(store, index, ValueError(f"{name}: {problem}"))
        try:
            stage_files(store, staging, manifest, kinds)
        except read_errors() as error:
            raise unreadable(store, index, error) from error
        new: Manifest = {**without(manifest, found), "files": dict(staging.files)}
        with exclusive(store, index):
            replace(store, staging, new, lease, [kind.path(index) for kind in (DROPPED_FILE, SUMMARY_FILE)])
        check_committed(store, new)
    write_summary(store, new)


def stage_files(store: Store, staging: Staging, manifest: Manifest, kinds: Kinds, blank: Blank | None = None) -> None:
    """Write the new files of a shard under temporary names; `blank` returns the columns of grit/ of a row that goes."""
    index, names = manifest["shard"], manifest["files"]
    places: dict[str, list[SamplePlace]] = {}
    order, metadata = read_index(store, index) if INDEX_FILE.path(index) in names else ([], {})
    for kind in sorted(FILES, key=lambda kind: order.index(kind) if kind in order else len(order)):
        name = FILES[kind][0].path(index)
        if name in names and name.endswith(".tar"):
            places[kind] = copy_tar(store, staging, name, kinds)
    table, rows = FILES["grit"][1].path(index), FILES["arrow"][0].path(index)
    if table in names:
        copy_parquet(store, staging, table, kinds, blank or taken_down_columns)
    if rows in names:
        copy_arrow(store, staging, manifest, kinds)
    if INDEX_FILE.path(index) in names:
        with staging.open(INDEX_FILE.path(index), rows=sum(map(len, places.values()))) as file:
            write_index(file, places, metadata)


def read_index(store: Store, index: int) -> tuple[list[str], dict[str, str]]:
    """Return the formats in the index of a shard, in their order, and its metadata."""
    table = read_arrow_file(store.read(INDEX_FILE.path(index)) or b"", INDEX)
    return table["format"].cast(pa.string()).unique().to_pylist(), text_of(table.schema.metadata)


def text_of(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """Return the metadata of a schema as text."""
    return {name.decode(): value.decode() for name, value in (metadata or {}).items()}


def copy_tar(store: Store, staging: Staging, name: str, kinds: Kinds) -> list[SamplePlace]:
    """Write a tar without the samples of these rows; return the places of the others."""
    samples = [sample for sample in read_places(store, name) if sample.key not in kinds]
    with store.open(name) as source, staging.open(name, rows=len(samples)) as file, TarWriter(file) as tar:
        read_at = reader_of(source)
        for sample in samples:
            tar.add_sample(sample.key, ((part.name, read_at(part.offset, part.size)) for part in sample.members))
    return tar.samples


def copy_parquet(store: Store, staging: Staging, name: str, kinds: Kinds, blank: Blank) -> None:
    """Write the parquet of grit/ with nothing but key and status in these rows."""
    table = read_parquet(store.read(name, MOST) or b"")
    rows = [blank(row, kinds[row["key"]]) if row["key"] in kinds else row for row in table.to_pylist()]
    with staging.open(name, rows=len(rows)) as file:
        write_grit_parquet(file, rows, table.schema.names[SIMILARITY], text_of(table.schema.metadata))


def taken_down_columns(row: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """Return the columns of grit/ of a row that is taken down, as `grit_columns` gives them."""
    status = {"status": "failed_to_download"} if STAGE_OF[kind] == "download" else {}
    return {**dropped_columns(row, f"{STAGE_OF[kind]}: {TAKEN_DOWN}: {kind}"), **status}


def dropped_columns(row: Mapping[str, Any], error: str) -> dict[str, Any]:
    """Return the columns of grit/ of a row of which nothing else stays."""
    return {**dict.fromkeys(row), "key": row["key"], "status": "dropped", "error_message": error}


def copy_arrow(store: Store, staging: Staging, manifest: Manifest, kinds: Kinds) -> None:
    """Write the file of arrow/ with nothing but key, place and drop in these rows."""
    name = FILES["arrow"][0].path(manifest["shard"])
    rows = [
        taken_down(row, kind) if (kind := kinds.get(row["key"])) else row
        for row in read_rows(store, [manifest], SCORED.names)
    ]
    with store.open(name) as file:
        metadata = text_of(pa.ipc.open_file(file).schema.metadata)
    with staging.open(name, rows=len(rows)) as file:
        write_arrow(file, rows, with_images=True, metadata=metadata)


# Take rows down: remove what a list names from all formats of a finished output, in place.


@dataclasses.dataclass(frozen=True)
class Found:
    """The rows of a shard that a list names: text of each for the listing."""

    shard: int
    lines: tuple[str, ...]


def takedown(arguments: Sequence[str]) -> int:
    """Remove the rows, or list them with `dry_run=true`; return the exit code. Raises UserError."""
    output, rest = take_output(arguments, "hypergrit takedown OUT list=FILE")
    path, rest = take_path(rest, "list")
    options, changes = take_options(rest, TakedownOptions)
    store = Store(output)
    entries = read_entries(store, path)
    check_keys(changes, (), "takedown", own=("list", "dry_run"))
    config = dataclasses.replace(read_config(store, changes), output=output)
    work = list_rows if options.dry_run else remove_all
    return INCOMPLETE if work(store, config, entries) else 0


def read_entries(store: Store, path: str) -> TakedownList:
    """Read a list; for row:KEY and row:ID, it has the URL and the SHA-256 of the row of the output with this key or id.

    A name that was taken down is not looked for as a key: its row may have lost the id by which it was found. Raises
    UserError like `read_takedown`, for a list without entries, and for a name of no row, of several, or of one with neither.
    """
    lines = read_lines(path)
    names = {i: name for i, line in enumerate(lines) if (name := name_in(line))}
    entries = parse_takedown(["" if i in names else line for i, line in enumerate(lines)], path)
    if not names and not len(entries):
        raise UserError(f"list={path} has no entries; give one URL, host, SHA-256 or row:KEY a line")
    manifests = [manifest for manifest in read_manifests(store) if "arrow" in manifest["formats"]] if names else []
    found = rows_by_name(store, manifests, names.values())
    is_joined = bool(names) and len(sources_of(store)) > 1
    for i, name in names.items():
        rows = [row for _, row in found[name]]
        if name.strip() in store.takedowns.rows and not has_id(rows, name):
            logger.info("%s, line %d: %r was taken down before", path, i + 1, name)
            continue
        if problem := why_refused(rows, name, is_joined) if rows else f"has no row in arrow/ of {store.root}":
            raise UserError(
                f"{path}, line {i + 1}: {name!r} {problem}; correct the line, or give the URL or the SHA-256 of the row"
            )
        entries |= parse_takedown(sorted(set[str]().union(*map(texts_of, in_force(rows)))), path)
    return dataclasses.replace(entries, rows=Digests.of(name.strip() for name in names.values()))


def has_id(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Return True if a name is the id or URL of one of its rows, and not only a key."""
    return any({row["id"], row["url"]} & {*spellings(name)} for row in rows)


def in_force(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows that are not taken down; the others have neither URL nor SHA-256, but the output has their entries."""
    return [row for row in rows if row["reason"] != TAKEN_DOWN]


def why_refused(rows: Sequence[Mapping[str, Any]], name: str, is_joined: bool) -> str:
    """Return why the name of these rows does not stand for one picture; "" if it does.

    `is_joined` tells that the output was made from several.
    """
    left = in_force(rows)
    if not has_id(rows, name) and name.strip() != rows[0]["key"]:
        return f"is no id; the row at this position has the key {rows[0]['key']}"
    if not has_id(rows, name) and is_joined:
        return "is a key here, and may be that of another row in the outputs that were joined to this one"
    if len({row["url"] or row["sha256"] for row in left}) > 1:
        return f"names the rows {', '.join(row['key'] for row in left)}"
    return "" if all(map(texts_of, left)) else "has neither a URL nor a SHA-256"


def sources_of(store: Store) -> Sequence[str]:
    """Return the outputs that an output was made from; none for that of a job. Raises UserError."""
    record = read_command(store)
    return () if record is None else record.get("sources", ())


def name_in(line: str) -> str | None:
    """Return the key or id after `row:`, with the blanks around it, which may belong to an id; None for another line."""
    text = line.lstrip()
    return text.removeprefix(ROW) if text.startswith(ROW) else None


def texts_of(row: Mapping[str, Any]) -> set[str]:
    """Return the URL and the SHA-256 of a row, those that it has."""
    return {row["sha256"], row["url"] if normal_url(row["url"] or "") else None} - {None}


def list_rows(store: Store, config: PipelineConfig, entries: TakedownList) -> int:
    """Print the rows that would go, in the order of their shards; nothing is written. Returns the number of failures."""
    manifests = read_manifests(store)
    check_finished(store, manifests)
    entries = entries.without_queries(config.write.strip_url_queries)
    step = partial(find_in, config.output, entries, None)
    run = Run(config)
    found = list(found_by(run, step, manifests))
    listing = [line for shard in sorted(found, key=lambda shard: shard.shard) for line in shard.lines]
    n_rows, n_shards = sum(len(shard.lines) for shard in found), sum(bool(shard.lines) for shard in found)
    shards = f"{n_shards} of {counted(len(manifests), 'shard')}"
    print_lines([*listing, f"{counted(n_rows, 'row')} in {shards} would be taken down; nothing was changed"])
    return len(run.failed)


def remove_all(store: Store, config: PipelineConfig, entries: TakedownList) -> int:
    """Remove the rows shard by shard, then write the report; return the number of shards and files that may have some.

    The entries are recorded first: whatever happens then, no command writes their rows again. Those of earlier lists
    are looked for too, since their run may have been interrupted. The report of a shard that failed would show its rows,
    so there is none until all have succeeded, nor for an output without a finished shard.
    """
    check_writable(store)
    with open_output(store) as lease:
        manifests = read_manifests(store)
        store.record_takedowns(entries.without_queries(config.write.strip_url_queries))
        store.remove([REPORT_FILE, STATS_FILE])
        if record := read_record(store):
            write_record(store, record)
        remove_cached(store)
        remove_leftovers(store, manifests)
        remove_abandoned_folders(tempfile.gettempdir())  # of verbs that were killed, whose rows are listed too
        step = partial(find_in, config.output, None, lease.token)
        run = Run(config, lease)
        found = list(found_by(run, step, manifests))
        lease.check()
        finish_replacements(store, lease)  # of workers that failed or died
        remove_leftovers(store, read_manifests(store))
        if run.failed or not manifests:
            store.remove([STATS_FILE, REPORT_FILE])
        else:
            report(config, store, [manifest["shard"] for manifest in manifests])
        remove_cached(store)  # which an explorer has built meanwhile
    n_rows, n_shards = sum(len(shard.lines) for shard in found), sum(bool(shard.lines) for shard in found)
    print_text(f"{counted(n_rows, 'row')} in {n_shards} of {counted(len(manifests), 'shard')} taken down")
    if sources := sources_of(store):
        print_text(
            f"the outputs that it was made from keep the rows unless they are taken down there too: {', '.join(sources)}"
        )
    others = list(listed_strangers(store))
    for name, text in others:
        logger.warning("%s: %s, and run the same command again", store.url(name), text)
    return len(run.failed) + len(others)


def found_by(run: Run, step: Callable[[Manifest], Found], manifests: Sequence[Manifest]) -> Iterator[Found]:
    """Yield the rows found in each shard that does not fail."""
    return run.results(Recipe.calling(step, "searched"), tasks_of(manifests))


def find_in(output: str, entries: TakedownList | None, lease: str | None, manifest: Manifest) -> Found:
    """Find the rows of a shard that `entries` name, without any those of the output's record; remove them if a lease is given.

    Raises ShardError for a damaged shard.
    """
    store = fenced(output, lease)
    with shard_errors():
        found = find_rows(store, manifest, store.takedowns if entries is None else entries)
        if found and lease is not None:
            remove_rows(store, manifest, found, lease)
    lines = (f"shard {manifest['shard']} row {key} {kind}: {' '.join(filter(None, (row['url'], row['sha256'])))}"
             for key, (kind, row) in found.items())  # fmt: skip
    return Found(manifest["shard"], tuple(lines))


USAGE: Final = f"""\
usage: hypergrit takedown OUT list=FILE [dry_run=true] [key=value ...]

Removes rows from all formats of a finished output, in place, and writes the report again. A row stays in the ledger as
taken_down with its key and its place in the input; image, caption, phrases, boxes, URL and hash are removed. Shards
without such rows are left as they are. The output keeps digests of the entries (_takedowns.json): neither the job nor
another command writes their rows to it again, or to outputs made from it.

  hypergrit takedown out/demo list=takedown.txt dry_run=true       which rows the list names
  hypergrit takedown out/demo list=takedown.txt                    remove them
  hypergrit takedown out/demo list=takedown.txt ray.runner=local   without Ray
  hypergrit takedown s3://data/coyo list=s3://data/takedown.txt ray.address=auto
  hypergrit run ... read.takedown=takedown.txt                     a new job that leaves them out

  OUT                  output folder or URL of a job
  list                 text file: one http(s) URL, host name (with its subdomains) or SHA-256 of received image bytes a
                       line, or row:ID or row:KEY for the URL and the SHA-256 of a row of OUT, as `explore row=` shows
                       them; a key has all its digits, since a shorter number is an id; lines with # are left out.
                       For other outputs give the URLs and SHA-256 hashes, which dry_run=true prints
  ray.*, report.*      as in the job; ray.runner=local: processes of this machine

{EXIT_CODES}
0 the rows are in no file of the output; other rows keep the same picture unless the list has its SHA-256.
3 some shards are damaged, and still have listed rows: the log has their errors; `hypergrit verify OUT requeue=true`, then
  the same command again. Or foreign files, which the log names, are below the output: remove them, then the same command.
"""


main = derive_command(USAGE, takedown, TakedownOptions)
