"""Stage `write`: write the output files of a shard, and commit them with a manifest."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from pipeline.config import WriteConfig
from pipeline.output.commit import Staging, check_committed, exclusive, is_intact, publish, replace
from pipeline.output.ledger import batches_of, summarize
from pipeline.output.lock import check_lease
from pipeline.output.manifest import is_same, manifest_hash, parse_manifest, plan_json
from pipeline.output.store import Store
from pipeline.output.write.arrow import write_arrow
from pipeline.output.write.grit import grit_columns, grit_sample, similarity_column, write_grit_parquet
from pipeline.output.write.samples import Row, count_kept, count_removed, count_rows, kept_rows, remove_url_secrets
from pipeline.output.write.tar import SamplePlace, TarWriter, file_metadata, write_index
from pipeline.output.write.train import read_subreddit, train_sample
from pipeline.read.takedown import refuse_row
from pipeline.read.types import ShardPlan
from pipeline.summary.totals import SummaryFile
from schemas.files import DROPPED_FILE, FAILED_FILE, FILES, INDEX_FILE, INDEX_SUBREDDITS, MANIFEST_FILE, SUMMARY_FILE
from schemas.manifest import Manifest, Origin, Provenance
from schemas.rows import SCORED, VERSION
from schemas.status import KEPT
from schemas.table import conform


def write_shard(
    table: pa.Table,
    plan: ShardPlan,
    config: WriteConfig,
    output: str | Store,
    provenance: Provenance,
    runtime: Mapping[str, Any] = MappingProxyType({}),
    origin: Origin | None = None,
    lease: str | None = None,
    replaces: bool = False,
    thumbnails: bytes = b"",
) -> Manifest:
    """Write the files of one shard and commit them with a manifest. Takes a SCORED table and returns the manifest.

    The files (schemas.files.FILES) are written to `output`, a folder, a URL or a Store. The files of an earlier run are
    replaced; if they have this plan, provenance and these formats and are intact, they are kept, and their manifest is
    returned. `replaces`: they are replaced in any case, under a journal, so that a kill leaves the old shard or the new
    one (pipeline.output.commit). A summary and the file of `thumbnails` of dropped rows, if it is not empty, are written for
    the report before the manifest, which does not name them. Rows that were taken down from the output are dropped again.

    `provenance` identifies the models and settings that determine the content; `runtime` are settings that may differ
    between the shards of an output, and `origin` names the finished shards from which a command made this one. `lease`
    is the token of the lease that the output must have (pipeline.output.lock); None: it is not checked.

    Raises ValueError if rows of the plan are missing or invalid, such as a kept row without an image. Raises UserError
    if the output cannot be written or has another lease, and ShardError if it has none, or if only this machine or this
    upload failed. After an error while writing, no manifest is published, and that of an earlier run is kept.

    >>> from tempfile import TemporaryDirectory
    >>> import pyarrow as pa
    >>> from pipeline import ShardPlan, WriteConfig, write_shard
    >>> from schemas.rows import SCORED
    >>> row = {"key": "0", "source": "pairs.csv", "source_row": 0, "status": "dropped"}
    >>> row |= {"stage": "download", "reason": "http_error", "detail": "404"}
    >>> table = pa.Table.from_pylist([row], schema=SCORED)
    >>> plan = ShardPlan(index=0, first_row=0, n_rows=1, pieces=())
    >>> provenance = {"config_hash": "0", "models": {"scorer": {"name": "miniature"}}}
    >>> with TemporaryDirectory() as output:
    ...     manifest = write_shard(table, plan, WriteConfig(), output, provenance)
    >>> sorted(manifest["files"])
    ['_index/00000.arrow', 'arrow/00000.arrow', 'grit/00000.parquet', 'grit/00000.tar', 'train/00000.tar']
    >>> manifest["counts"]
    {'read': 1, 'kept': 0, 'dropped': {'download': {'http_error': 1}}}
    """
    found = conform(table, SCORED).to_pylist()
    store, index = output if isinstance(output, Store) else Store(output), plan.index
    takedowns = store.takedowns.without_queries(origin is not None or config.strip_url_queries)
    rows = [refuse_row(remove_url_secrets(row, strip_query=config.strip_url_queries), takedowns) for row in found]
    counts, numbers = count_rows(rows, plan, provenance), count_kept(rows)
    with Staging(store) as staging:
        places: dict[str, list[SamplePlace]] = {}
        for name in dict.fromkeys(config.formats):
            found = WRITERS[name](staging, [kind.path(index) for kind in FILES[name]], rows, config, provenance)
            if found is not None:
                places[name] = found
        if places:
            with staging.open(INDEX_FILE.path(index), rows=sum(map(len, places.values()))) as file:
                has_subreddits = any(read_subreddit(row["extra"]) for row in kept_rows(rows))
                found_in_json = {INDEX_SUBREDDITS: "true"} if has_subreddits else {}
                write_index(file, places, file_metadata(provenance) | found_in_json)
        manifest: Manifest = {
            "schema": VERSION,
            "shard": index,
            "plan": plan_json(plan),
            "formats": sorted(set(config.formats)),
            "files": dict(staging.files),
            "counts": counts,
            "boxes": numbers["boxes"],
            "phrases": numbers["phrases"],
            "asked": numbers["asked"],
            "removed": count_removed(rows),
            "provenance": provenance,
            "runtime": dict(runtime),
        }
        if numbers["pairs"]:
            manifest["pairs"] = numbers["pairs"]
        if numbers["unconfirmed"]:
            manifest["unconfirmed"] = numbers["unconfirmed"]
        if origin is not None:
            manifest["origin"] = origin
        summary = summarize(manifest, batches_of(rows))
        with exclusive(store, index):
            # Another attempt at this shard, on a machine that was believed dead, may have committed it meanwhile.
            content = store.read(MANIFEST_FILE.path(index))
            other = None if content is None else parse_manifest(content)
            if not replaces and other and is_same(other, plan, [provenance]) and is_intact(store, other, manifest):
                check_lease(store, lease)
                return other
            unused = [kind for name in sorted(FILES.keys() - set(config.formats)) for kind in FILES[name]]
            unused += ([] if places else [INDEX_FILE]) + ([] if thumbnails else [DROPPED_FILE])
            unused_files = [kind.path(index) for kind in unused]
            if thumbnails:
                with staging.open(DROPPED_FILE.path(index), rows=len(rows)) as file:
                    file.write(thumbnails)
            with staging.open(SUMMARY_FILE.path(index), rows=len(rows)) as file:
                file.write(SummaryFile({index: manifest_hash(manifest)}, summary).to_bytes())
            if replaces:
                replace(store, staging, manifest, lease, unused_files)
            else:
                publish(store, staging, manifest, lease, unused_files, replaces=content is not None)
        check_committed(store, manifest)
    store.remove([FAILED_FILE.path(index)])  # of an earlier attempt
    return manifest


def _write_train(
    staging: Staging, files: Sequence[str], rows: Sequence[Row], config: WriteConfig, provenance: Provenance
) -> list[SamplePlace]:
    kept = kept_rows(rows)
    with staging.open(files[0], rows=len(kept)) as file, TarWriter(file) as tar:
        for row in kept:
            tar.add_sample(row["key"], train_sample(row, config, provenance["config_hash"]))
    return tar.samples


def _write_grit(
    staging: Staging, files: Sequence[str], rows: Sequence[Row], config: WriteConfig, provenance: Provenance
) -> list[SamplePlace]:
    similarity = similarity_column(provenance["models"]["scorer"]["name"])
    columns = [grit_columns(row, similarity) for row in rows]
    with staging.open(files[0], rows=len(kept_rows(rows))) as file, TarWriter(file) as tar:
        for row, values in zip(rows, columns, strict=True):
            if row["status"] == KEPT:
                tar.add_sample(row["key"], grit_sample(row, values))
    with staging.open(files[1], rows=len(rows)) as file:
        write_grit_parquet(file, columns, similarity, file_metadata(provenance))
    return tar.samples


def _write_arrow(
    staging: Staging, files: Sequence[str], rows: Sequence[Row], config: WriteConfig, provenance: Provenance
) -> None:
    with staging.open(files[0], rows=len(rows)) as file:
        write_arrow(file, rows, config.image_bytes, file_metadata(provenance))


Writer = Callable[[Staging, Sequence[str], Sequence[Row], WriteConfig, Provenance], list[SamplePlace] | None]
WRITERS: Final[Mapping[str, Writer]] = {"train": _write_train, "grit": _write_grit, "arrow": _write_arrow}
"""Format -> function that writes its files (schemas.files.FILES), and returns the places of the samples in a tar."""
