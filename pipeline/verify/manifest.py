"""Check a manifest by itself: its sums, its files, and its rows in the plan of the job."""

from collections.abc import Iterator
from typing import Any, Final

from pipeline.write.attempts import net_counts
from schemas.attempts import attempt_of, shard_of
from schemas.files import FILES, INDEX_FILE
from schemas.layout import FLAT, Layout
from schemas.manifest import Manifest, PlanJson
from schemas.rows import VERSION
from schemas.status import check_reason

DAMAGE: Final = (ValueError, LookupError, TypeError, AttributeError)
"""Exceptions of reading a manifest with missing fields or wrong types."""
TARS: Final = {kind: files[0] for kind, files in FILES.items() if files[0].suffix == ".tar"}
"""Format -> its tar."""


def manifest_problems(manifest: Manifest, index: int, plan: PlanJson | None, layout: Layout = FLAT) -> Iterator[str]:
    """Describe what is wrong with the manifest of shard `index` of an output with this layout.

    `plan` is its plan in the record of the job, if any; for a shard of pipeline.retry, that of the shard which it tried
    again.
    """
    try:
        yield from _problems(manifest, index, plan, layout)
    except DAMAGE as error:
        yield f"a field is missing or damaged ({type(error).__name__}: {error})"


def _problems(manifest: Manifest, index: int, plan: PlanJson | None, layout: Layout) -> Iterator[str]:
    if manifest["schema"].partition(".")[0] != VERSION.partition(".")[0]:
        yield f"it has schema {manifest['schema']}, but this version of HyperGRIT reads {VERSION}"
    place = attempt_of(index), shard_of(index)
    if manifest["shard"] != index:
        yield f"it is the manifest of shard {manifest['shard']}"
    counts = manifest["counts"]
    n_dropped = sum(sum(reasons.values()) for reasons in counts["dropped"].values())
    if counts["read"] != counts["kept"] + n_dropped:
        yield f"{counts['read']} rows read are not {counts['kept']} kept and {n_dropped} dropped"
    else:
        net_counts(manifest)  # raises if the rows that it replaces are not as many
    if "retry" in manifest and (manifest["retry"]["attempt"], manifest["retry"]["shard"]) != place:
        yield f"it is of attempt {manifest['retry']['attempt']} at shard {manifest['retry']['shard']}"
    for stage, reasons in counts["dropped"].items():
        for reason in reasons:
            check_reason(stage, reason)
    if manifest["plan"]["n_rows"] != counts["read"]:
        yield f"{counts['read']} rows read, but {manifest['plan']['n_rows']} planned"
    if plan is not None and "retry" in manifest:
        plan = {**plan, "index": index, "n_rows": counts["read"]}
    if plan is not None and manifest["plan"] != plan:
        yield "its input rows are not those that _job.json plans for this shard"
    yield from _file_problems(manifest, index, layout)


def _file_problems(manifest: Manifest, index: int, layout: Layout) -> Iterator[str]:
    """Describe the files that are missing, unknown, or have another number of rows than the counts."""
    expected = expected_rows(manifest, index, layout)
    optional = {layout.path(INDEX_FILE, index)}  # earlier versions wrote none
    files: dict[str, Any] = dict(manifest["files"])
    for name in sorted(expected.keys() - optional - files.keys()):
        yield f"it does not list {name}, although it lists its format"
    for name in sorted(files.keys() - expected.keys()):
        yield f"it lists {name}, which is no file of its formats {', '.join(manifest['formats'])}"
    for name in sorted(files.keys() & expected.keys()):
        if files[name]["rows"] != expected[name]:
            yield f"{name} has {files[name]['rows']} rows by its entry, but {expected[name]} by the counts"


def expected_rows(manifest: Manifest, index: int, layout: Layout) -> dict[str, int]:
    """Return the files of a shard by the formats of its manifest, each with its number of rows or samples."""
    counts, formats = manifest["counts"], manifest["formats"]
    rows = {
        layout.path(file, index): counts["kept"] if file.suffix == ".tar" else counts["read"]
        for kind in formats
        for file in FILES[kind]
    }
    n_tars = len(TARS.keys() & set(formats))
    return rows | ({layout.path(INDEX_FILE, index): n_tars * counts["kept"]} if n_tars else {})
