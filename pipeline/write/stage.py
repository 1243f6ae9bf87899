"""One shard from table to disk: its files, then the manifest that commits them."""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, cast

import pyarrow as pa

from pipeline.read.types import ShardPlan
from pipeline.write.arrow import write_arrow
from pipeline.write.config import WriteConfig
from pipeline.write.grit import grit_columns, grit_sample, similarity_column, write_grit_parquet
from pipeline.write.samples import Row, kept_boxes, to_json
from pipeline.write.store import Staging, Store
from pipeline.write.tar import TarWriter
from pipeline.write.train import train_sample
from schemas.files import FILES, MANIFEST_FILE
from schemas.manifest import Manifest, Provenance
from schemas.rows import SCORED, VERSION
from schemas.status import DROPPED, KEPT, check_reason
from schemas.table import conform

KEY: Final = re.compile(r"[0-9A-Za-z_-]+")  # webdataset cuts a member's name at its first dot and slashes make folders


def write_shard(
    table: pa.Table,
    plan: ShardPlan,
    config: WriteConfig,
    output: str,
    provenance: Provenance,
    runtime: Mapping[str, Any] = MappingProxyType({}),
) -> Manifest:
    """Write the files of one shard below `output` and commit them; returns the manifest (schemas.files.MANIFEST).

    `provenance` holds `config_hash` and `models.scorer.name`; `runtime` the settings that may differ between shards of one output.
    Raises ValueError, before anything is written, if rows are missing or unaccounted for; UserError if the disk is full or not
    writable, leaving no file of this shard.
    """
    rows = conform(table, SCORED).to_pylist()
    counts = count_rows(rows, plan)
    kept = kept_rows(rows)
    store, index = Store(output), plan.index
    manifest_file = MANIFEST_FILE.format(index)
    # The old manifest goes first: from here to its return the shard does not exist. Files of formats not asked for go too.
    store.remove([manifest_file, *(name.format(index) for names in FILES.values() for name in names)])
    with Staging(store) as staging:
        for name in dict.fromkeys(config.formats):
            STAGE[name](staging, [file.format(index) for file in FILES[name]], rows, config, provenance)
        manifest = {
            "schema": VERSION,
            "shard": index,
            "plan": plain(plan),
            "formats": sorted(set(config.formats)),
            "files": dict(staging.files),
            "counts": counts,
            "boxes": sum(len(kept_boxes(row)) for row in kept),
            "phrases": sum(len({row["boxes"][i]["phrase"] for i in kept_boxes(row)}) for row in kept),
            **count_removed(rows),
            "provenance": provenance,
            "runtime": dict(runtime),
        }
        staging.publish()
        with staging.open(manifest_file, rows=len(rows)) as file:
            file.write(json.dumps(manifest, sort_keys=True, ensure_ascii=False, indent=1).encode())
        staging.publish()
    return cast(Manifest, manifest)


def stage_train(
    staging: Staging, files: Sequence[str], rows: Sequence[Row], config: WriteConfig, provenance: Provenance
) -> None:
    kept = kept_rows(rows)
    with staging.open(files[0], rows=len(kept)) as file, TarWriter(file) as tar:
        for row in kept:
            tar.add_sample(row["key"], train_sample(row, config, provenance["config_hash"]))


def stage_grit(
    staging: Staging, files: Sequence[str], rows: Sequence[Row], config: WriteConfig, provenance: Provenance
) -> None:
    similarity = similarity_column(provenance["models"]["scorer"]["name"])
    columns = [grit_columns(row, config.ref_exps, similarity) for row in rows]
    with staging.open(files[0], rows=len(kept_rows(rows))) as file, TarWriter(file) as tar:
        for row, values in zip(rows, columns, strict=True):
            if row["status"] == KEPT:
                tar.add_sample(row["key"], grit_sample(row, values))
    with staging.open(files[1], rows=len(rows)) as file:
        write_grit_parquet(file, columns, similarity, file_metadata(provenance))


def stage_arrow(
    staging: Staging, files: Sequence[str], rows: Sequence[Row], config: WriteConfig, provenance: Provenance
) -> None:
    with staging.open(files[0], rows=len(rows)) as file:
        write_arrow(file, rows, config.image_bytes, file_metadata(provenance))


STAGE: Final = {"train": stage_train, "grit": stage_grit, "arrow": stage_arrow}
"""Format -> what stages its files, which are named in schemas.files.FILES."""


def kept_rows(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["status"] == KEPT]


def file_metadata(provenance: Provenance) -> dict[str, str]:
    """What parquet and Arrow files say of themselves."""
    return {"hypergrit_schema": VERSION, "hypergrit_provenance": to_json(provenance).decode()}


def count_rows(rows: Sequence[Row], plan: ShardPlan) -> dict[str, Any]:
    """`{"read", "kept", "dropped": {stage: {reason: n}}}` of a shard.

    Raises ValueError unless every row of the plan is there once, and each can be written (`check_row`).
    """
    if len(rows) != plan.n_rows or len({row["key"] for row in rows}) != plan.n_rows:
        raise ValueError(
            f"shard {plan.index} was planned with {plan.n_rows} rows; {len(rows)} arrived, or a key came twice"
        )
    dropped: dict[str, Counter[str]] = {}
    for row in rows:
        check_row(row)
        if row["status"] == DROPPED:
            dropped.setdefault(row["stage"], Counter())[row["reason"]] += 1
    n_dropped = sum(reasons.total() for reasons in dropped.values())
    counts = {stage: dict(reasons) for stage, reasons in dropped.items()}
    return {"read": len(rows), "kept": len(rows) - n_dropped, "dropped": counts}


def check_row(row: Row) -> None:
    """Raise ValueError unless the row is kept with an image or dropped for a listed reason, and its key can name a tar member."""
    status, stage, reason = row["status"], row["stage"], row["reason"]
    if not KEY.fullmatch(row["key"]):
        raise ValueError(f"key {row['key']!r} cannot name a tar member; use letters, digits, - and _")
    if status == DROPPED and stage is not None and reason is not None:
        check_reason(stage, reason)
    elif status != KEPT or stage is not None or reason is not None:
        raise ValueError(f"row {row['key']} is unaccounted for: status {status!r}, stage {stage!r}, reason {reason!r}")
    elif row["image"] is None:
        raise ValueError(f"row {row['key']} is kept without an image")


def count_removed(rows: Sequence[Row]) -> dict[str, Any]:
    """`{"asked": n, "removed": {"phrases": {why: n}, "boxes": {why: n}}}` over all rows, dropped ones included."""
    phrases = Counter(chunk["removed"] for row in rows for chunk in row["noun_chunks"] or ())
    boxes = Counter(verdict["removed"] for row in rows for verdict in row["box_scores"] or ())
    removed = {"phrases": phrases, "boxes": boxes}
    return {
        "asked": phrases[None],
        "removed": {name: {why: n for why, n in counts.items() if why} for name, counts in removed.items()},
    }


def plain(plan: ShardPlan) -> dict[str, Any]:
    """The plan as JSON gives it back."""
    return dict(json.loads(json.dumps(dataclasses.asdict(plan))))


def read_manifest(output: str, index: int) -> dict[str, Any] | None:
    """The manifest of a shard, None if it was never committed or something damaged it since."""
    content = Store(output).read(MANIFEST_FILE.format(index))
    try:
        return None if content is None else dict(json.loads(content))
    except ValueError:
        return None


def is_finished(output: str, plan: ShardPlan, provenance: Provenance) -> bool:
    """Whether the shard is committed, was made from the same rows by the same configuration, and its files have their sizes."""
    manifest = read_manifest(output, plan.index)
    expected = {"schema": VERSION, "plan": plain(plan), "provenance": json.loads(to_json(provenance))}
    if manifest is None or any(manifest.get(name) != value for name, value in expected.items()):
        return False
    store = Store(output)
    return all(store.size(name) == facts["bytes"] for name, facts in manifest["files"].items())
