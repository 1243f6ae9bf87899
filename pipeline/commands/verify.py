"""Check one shard: its manifest, its files, its index, its rows in all formats side by side, and its summary."""

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, Final, get_args, get_type_hints

import cv2
import pyarrow as pa
from tqdm import tqdm

from hypergrit_common.cli import EXIT_CODES
from hypergrit_common.config import check_range
from hypergrit_common.config_help import print_text
from hypergrit_common.errors import UserError
from hypergrit_common.images import STORED_IMAGE_LIMITS, ImageRejected, decode
from hypergrit_common.tar import TarError
from hypergrit_common.text import counted, message, one_line
from pipeline.commands.frame import output_command
from pipeline.config import PipelineConfig, RayConfig, WriteConfig
from pipeline.output.commit import open_output, read_places
from pipeline.output.contents import Finding, Problem, Repeats, Sums, file_problem, list_contents, requeue
from pipeline.output.ledger import (
    Row,
    Sample,
    arrow_rows,
    count_shard,
    indexed_places,
    parquet_rows,
    read_samples,
    stamp_of,
)
from pipeline.output.manifest import checked_counts, parse_manifest
from pipeline.output.record import again, describe_left_out
from pipeline.output.store import Store, remove_abandoned_folders, temporary_folder_prefix
from pipeline.output.takedowns import find_rows, listed_leftovers, listed_strangers, old_report
from pipeline.output.write.grit import grit_columns, grit_sample, similarity_column
from pipeline.output.write.samples import GroundedPhrase, check_row, count_removed, kept_boxes, shortest_float, to_json
from pipeline.output.write.samples import Row as KeptRow
from pipeline.output.write.tar import SamplePlace
from pipeline.output.write.train import SIDE_PX, annotations, distinct_phrases, grounded_captions
from pipeline.read.types import Task
from pipeline.report.stats import bytes_text
from pipeline.run.loop import Run
from pipeline.run.steps import Recipe
from pipeline.summary.totals import DAMAGE as SUMMARY_DAMAGE
from pipeline.summary.totals import VERSION as SUMMARY_VERSION
from pipeline.summary.totals import decompressed
from schemas.files import (
    FILES,
    GRIT_CAPTION,
    GRIT_IMAGE,
    GRIT_JSON,
    INDEX_FILE,
    MANIFEST_FILE,
    ROLLUP_FILE,
    SUMMARY_FILE,
    TARS,
    TRAIN_ANNOTATIONS,
    TRAIN_BOX_IMAGE,
    TRAIN_BOX_PHRASE,
    TRAIN_CAPTION,
    TRAIN_IMAGE,
    TRAIN_N_PARENTS,
    grit_schema,
    rollup_of,
)
from schemas.layout import FLAT, Layout, ShardFile
from schemas.manifest import Manifest, PlanJson
from schemas.rows import SCORED, VERSION
from schemas.status import KEPT, check_reason, further_reasons

# Compare the samples of train/ and grit/ with the rows that they were written from, with the functions of the writer.

MODES: Final = get_args(get_type_hints(WriteConfig)["ref_exps"])
"""The values of `write.ref_exps`. A manifest does not tell which one was set, so each is accepted."""

Members = Mapping[str, bytes]


def columns_problem(row: Row, columns: Row, similarity: str) -> str:
    """Describe how a row of the parquet differs from its row of arrow/; "" if it does not."""
    found: list[str] = []
    for mode in MODES:
        expected = grit_columns(row, mode, similarity) | {similarity: row["clip_similarity"]}
        differing = [name for name in expected if name in columns and expected[name] != columns[name]]
        if not differing:
            return ""
        found = found if found and len(found) <= len(differing) else differing
    return f"differs from arrow/ in {', '.join(found)}"


def grit_problems(columns: Row, members: Members, similarity: str) -> Iterator[str]:
    """Describe how a sample of grit/ differs from its row of the parquet."""
    values = {**columns, similarity: shortest_float(columns[similarity])}
    expected = dict(grit_sample({**columns, "image": members.get(GRIT_IMAGE, b"")}, values))
    if list(members) != list(expected):
        yield f"its members are {', '.join(members)}, but should be {', '.join(expected)}"
        return
    if members[GRIT_CAPTION] != expected[GRIT_CAPTION]:
        yield f"{GRIT_CAPTION} is not the caption of its row in the parquet"
    if json.loads(members[GRIT_JSON]) != json.loads(expected[GRIT_JSON]):  # parquet has offsets as floats
        yield f"{GRIT_JSON} is not that of its row in the parquet"
    yield from image_problems(GRIT_IMAGE, members[GRIT_IMAGE], columns["width"], columns["height"])


def train_problems(row: Row | None, columns: Row | None, members: Members, config_hash: str) -> Iterator[str]:
    """Describe how a sample of train/ differs from its row of arrow/, or if there is none of the parquet."""
    fields: dict[str, Any] = json.loads(members[TRAIN_ANNOTATIONS])
    captions = [fields, *(c | {"caption": c["text"]} for c in fields.get("captions", ()) if "parents" in c)]
    phrases = [c["caption"][p["start"] : p["end"]] for c in captions for p in c["parents"]]
    if list(members) != (expected := member_names(len(phrases))):
        yield f"its members are {', '.join(members)}, but should be {', '.join(expected)}"
        return
    texts = {TRAIN_CAPTION: fields["caption"], TRAIN_N_PARENTS: str(len(fields["parents"]))}
    texts |= {TRAIN_BOX_PHRASE.format(i): phrase for i, phrase in enumerate(phrases)}
    for name, text in texts.items():
        if members[name] != text.encode():
            yield f"{name} is not that of its JSON"
    if row is not None:
        yield from annotation_problems(row, captions, members[TRAIN_ANNOTATIONS], config_hash)
    elif columns is not None:
        values = {**fields, **fields["provenance"]}
        names = ("key", "caption", "width", "height", "id", "url", "sha256")
        if differing := [name for name in names if values[name] != columns[name]]:
            yield f"differs from grit/ in {', '.join(differing)}"
    for name in (TRAIN_IMAGE, *(TRAIN_BOX_IMAGE.format(i) for i in range(len(phrases)))):
        yield from image_problems(name, members[name], SIDE_PX, SIDE_PX)


def member_names(n_parents: int) -> list[str]:
    """Return the members of a sample with this number of boxes and phrases, in their order."""
    pairs = (name.format(i) for i in range(n_parents) for name in (TRAIN_BOX_IMAGE, TRAIN_BOX_PHRASE))
    return [TRAIN_IMAGE, TRAIN_CAPTION, TRAIN_N_PARENTS, *pairs, TRAIN_ANNOTATIONS]


def annotation_problems(row: Row, captions: list[dict[str, Any]], content: bytes, config_hash: str) -> Iterator[str]:
    """Describe how the JSON of a sample, with its grounded `captions`, differs from what the writer makes of its row."""
    found, fields = grounded_captions(row), captions[0]
    if len(found) != len(captions):
        yield "its captions are not those of arrow/"
        return
    kept = [kept_boxes(caption) for caption in found]
    phrases = [
        [GroundedPhrase(p["kind"], p["start"], p["end"], boxes[p["box"]]) for p in caption["parents"]]
        for boxes, caption in zip(kept, captions, strict=True)
    ]
    if not any([distinct_phrases(caption, mode) for caption in found] == phrases for mode in MODES):
        yield "its phrases are not those of arrow/"
    expected = annotations(row, phrases, config_hash)
    if to_json(expected) == content:
        return
    plain = json.loads(to_json(expected))
    if differing := [name for name in plain if plain[name] != fields.get(name)]:
        yield f"differs from arrow/ in {', '.join(differing)}"


def image_problems(name: str, data: bytes, width: int, height: int) -> Iterator[str]:
    """Describe an image that cannot be decoded or does not have this size in pixels."""
    try:
        pixels = decode(data, STORED_IMAGE_LIMITS)
    except ImageRejected as error:
        yield f"{name} cannot be decoded ({error})"
        return
    if pixels.shape != (height, width, 3):
        yield f"{name} has {pixels.shape[1]} x {pixels.shape[0]} px, but should have {width} x {height}"


# Check a manifest by itself: its sums, its files, and its rows in the plan of the job.

DAMAGE: Final = (ValueError, LookupError, TypeError, AttributeError)
"""Exceptions of reading a manifest with missing fields or wrong types."""


def manifest_problems(manifest: Manifest, index: int, plan: PlanJson | None, layout: Layout = FLAT) -> Iterator[str]:
    """Describe what is wrong with the manifest of shard `index` of an output with this layout.

    `plan` is its plan in the record of the job, if any.
    """
    try:
        yield from _problems(manifest, index, plan, layout)
    except DAMAGE as error:
        yield f"a field is missing or damaged ({type(error).__name__}: {error})"


def _problems(manifest: Manifest, index: int, plan: PlanJson | None, layout: Layout) -> Iterator[str]:
    if manifest["schema"] != VERSION:
        yield f"it has schema {manifest['schema']}, but this version of HyperGRIT reads {VERSION}"
    if manifest["shard"] != index:
        yield f"it is the manifest of shard {manifest['shard']}"
    counts = manifest["counts"]
    n_dropped = sum(sum(reasons.values()) for reasons in counts["dropped"].values())
    if counts["read"] != counts["kept"] + n_dropped:
        yield f"{counts['read']} rows read are not {counts['kept']} kept and {n_dropped} dropped"
    for stage, reasons in counts["dropped"].items():
        for reason in reasons:
            check_reason(stage, reason, further_reasons(manifest["provenance"]))
    if manifest["plan"]["n_rows"] != counts["read"]:
        yield f"{counts['read']} rows read, but {manifest['plan']['n_rows']} planned"
    if plan is not None and manifest["plan"] != plan:
        yield "its input rows are not those that _job.json plans for this shard"
    yield from _file_problems(manifest, index, layout)


def _file_problems(manifest: Manifest, index: int, layout: Layout) -> Iterator[str]:
    """Describe the files that are missing, unknown, or have another number of rows than the counts."""
    expected = expected_rows(manifest, index, layout)
    files: dict[str, Any] = dict(manifest["files"])
    for name in sorted(expected.keys() - files.keys()):
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


# Compare the summary of a shard, which the report adds up, with the rows of the shard.

TEXT_LENGTH = 60
"""Characters of a value that a message shows."""


def summary_problem(store: Store, rows: Store, manifest: Manifest) -> Problem | None:
    """Return how the summary of a shard differs from its rows; None if the report would not read it, or it agrees.

    The report ignores a summary of other manifests, or of another version of its
    content. `rows` is the output, or a copy of it with arrow/ of this shard. Raises ValueError if rows and manifests
    disagree.
    """
    index = manifest["shard"]
    name, rollup = store.file(SUMMARY_FILE, index), ROLLUP_FILE.format(rollup_of(index))
    fix = (
        f"remove it and {rollup}, if it exists, and run `hypergrit explore {store.url('').rstrip('/')} report=true`, which "
        "counts the rows again"
    )
    try:
        content = store.read(name)
        if content is None:
            return None
        found = json.loads(decompressed(content))
        version, manifests = found.pop("version"), found.pop("manifests")
        found.pop("sha256", None)
    except (*SUMMARY_DAMAGE, pa.ArrowException, OSError, UserError) as error:
        if isinstance(error, UserError) and not store.is_local:
            raise  # the store does not answer
        return Problem(name, f"damaged; {fix}")
    stamp = stamp_of(store.read(store.file(MANIFEST_FILE, index)) or b"")
    if version != SUMMARY_VERSION or manifests != {str(index): stamp}:
        return None
    try:
        expected = json.loads(json.dumps(count_shard(rows, manifest).to_json()))
    except UserError as error:
        return Problem(name, f"it cannot be compared with the rows: {error}")
    text = difference(found, expected)
    return Problem(name, f"{text} in the rows; {fix}") if text else None


def difference(found: Any, expected: Any, key: str = "") -> str:
    """Return the first difference of two JSON values as `key is value, but value`; "" without one.

    >>> difference({"rows": {"kept": 4, "read": 9}}, {"rows": {"kept": 3, "read": 9}})
    'rows.kept is 4, but 3'
    """
    if isinstance(found, dict) and isinstance(expected, dict):
        names = dict.fromkeys([*expected, *found])
        parts = (difference(found.get(name), expected.get(name), f"{key}.{name}" if key else name) for name in names)
        return next(filter(None, parts), "")
    return "" if found == expected else f"{key} is {shown(found)}, but {shown(expected)}"


def shown(value: Any) -> str:
    """Return a JSON value, shortened to TEXT_LENGTH."""
    text = json.dumps(value)
    return text if len(text) <= TEXT_LENGTH else f"{text[:TEXT_LENGTH]}..."


# Count the rows of arrow/ as the manifest does, and compare the counts.


class Tally:
    """Running counts over the rows passed to `add`; `further` are the drop reasons of the user's stages."""

    def __init__(self, further: Mapping[str, Collection[str]]) -> None:
        self.further = further
        self.dropped: dict[str, Counter[str]] = {}
        self.removed: dict[str, Counter[str]] = {"phrases": Counter(), "boxes": Counter()}
        self.totals: Counter[str] = Counter()
        self.keys: set[str] = set()

    def add(self, row: KeptRow) -> None:
        """Count a row. Raises ValueError if it is neither kept nor dropped for a reason, or its key repeats."""
        if row["key"] in self.keys:
            raise ValueError("its key occurs twice")
        self.keys.add(row["key"])
        check_row({**row, "image": row["image"] or b"elsewhere"}, self.further)  # the image may be in grit/ alone
        self.totals["read"] += 1
        self.totals["asked"] += sum(chunk["removed"] is None for chunk in row["noun_chunks"] or ())
        removed = count_removed([row])
        self.removed["phrases"].update(removed["phrases"])
        self.removed["boxes"].update(removed["boxes"])
        if row["status"] != KEPT:
            self.dropped.setdefault(row["stage"], Counter())[row["reason"]] += 1
            return
        boxes = kept_boxes(row)
        self.totals["pairs"] += not boxes
        self.totals["kept"] += 1
        self.totals["boxes"] += len(boxes)
        self.totals["phrases"] += len({row["boxes"][i]["phrase"] for i in boxes})

    def problems(self, manifest: Manifest) -> Iterator[str]:
        """Describe the counts of the manifest that differ."""
        counts: dict[str, Any] = {"pairs": 0, **manifest, **manifest["counts"]}
        for name in ("read", "kept", "pairs", "boxes", "phrases", "asked"):
            if name in counts and counts[name] != self.totals[name]:
                yield f"{self.totals[name]} {name} in its rows, but {counts[name]} in the manifest"
        dropped = {stage: dict(reasons) for stage, reasons in self.dropped.items()}
        recorded = {stage: {r: n for r, n in reasons.items() if n} for stage, reasons in counts["dropped"].items()}
        if dropped != {stage: reasons for stage, reasons in recorded.items() if reasons}:
            yield f"rows dropped: {dropped} in its rows, but {recorded} in the manifest"
        removed = {kind: dict(values) for kind, values in self.removed.items()}
        if "removed" in counts and removed != counts["removed"]:
            yield f"removed: {removed} in its rows, but {counts['removed']} in the manifest"


UNREADABLE: Final = (*DAMAGE, OSError, ArithmeticError, RecursionError, pa.ArrowException, TarError)
"""Exceptions of reading a file whose hash is right and whose content is not that of its format."""


class Checker:
    """Checks shards of an output one at a time; the object of a child process (pipeline.commands.verify)."""

    def __init__(self, output: str) -> None:
        cv2.setNumThreads(1)  # there is one process per core
        self.store = Store(output)

    def compute(self, task: Task) -> Finding:
        """Check the shard of a task, whose subject is its plan in the record of the job."""
        return self.check(task.index, task.subject)

    def check(self, index: int, plan: PlanJson | None = None) -> Finding:
        """Check a shard; `plan` is its plan in the record of the job. Raises UserError if the store does not answer."""
        name, finding = self.store.file(MANIFEST_FILE, index), Finding(index, layout=self.store.layout)
        content = self.store.read(name)
        manifest = None if content is None else parse_manifest(content)
        if manifest is None:
            finding.add(name, "missing" if content is None else "damaged: it is no manifest")
            return finding
        for text in manifest_problems(manifest, index, plan, self.store.layout):
            finding.add(name, text)
        if finding.problems:
            return finding
        finding.command = str(manifest["origin"]["command"]) if "origin" in manifest else ""
        finding.counts, finding.formats = checked_counts(manifest), tuple(manifest["formats"])
        with tempfile.TemporaryDirectory(prefix=temporary_folder_prefix()) as folder:
            intact = set[str]()
            for file, facts in sorted(manifest["files"].items()):
                if text := file_problem(self.store, file, facts, folder):
                    finding.add(file, text)
                else:
                    intact.add(file)
                    finding.n_bytes += facts["bytes"]
            rows = self.store if self.store.is_local else Store(folder)
            if rows is not self.store:
                rows.record_layout(self.store.layout)
            Content(rows, manifest, intact, finding).check()
            for key in () if finding.problems else find_rows(rows, manifest, self.store.takedowns):
                finding.add(name, f"row {key} was taken down, but is here; run hypergrit takedown again")
            if not finding.is_computed_again:
                self.check_summary(rows, manifest, finding)
        return finding

    def check_summary(self, rows: Store, manifest: Manifest, finding: Finding) -> None:
        """Compare the summary of a shard with its rows, whose files are in `rows`."""
        try:
            problem = summary_problem(self.store, rows, manifest)
        except UNREADABLE as error:
            finding.add(self.store.file(MANIFEST_FILE, finding.shard), f"its rows cannot be counted: {one_line(error)}")
            return
        if problem is not None:
            finding.add(*problem)


class Content:
    """The content of those files of a shard whose hashes are right; `store` is local."""

    def __init__(self, store: Store, manifest: Manifest, intact: set[str], finding: Finding) -> None:
        self.store, self.manifest, self.finding = store, manifest, finding
        index = manifest["shard"]
        layout = finding.layout
        self.names = {kind: layout.path(kind, index) for kinds in FILES.values() for kind in kinds}
        self.intact = {kind for kind, name in self.names.items() if name in intact}
        self.index = layout.path(INDEX_FILE, index)
        self.has_index = self.index in intact
        self.similarity = similarity_column(manifest["provenance"]["models"]["scorer"]["name"])
        self.places: dict[str, list[SamplePlace]] = {}
        self.file = ""  # the one that is read, for the message

    def check(self) -> None:
        """Check the index, then the rows."""
        try:
            self.check_index()
            if not self.finding.is_full:
                self.check_rows()
        except UNREADABLE as error:
            self.finding.add(self.file, f"cannot be read ({type(error).__name__}: {one_line(error)[:300]})")

    def check_index(self) -> None:
        """Compare the index with the headers of the tars."""
        for kind, file in TARS.items():
            if file in self.intact:
                self.file = self.names[file]
                self.places[kind] = list(read_places(self.store, self.file))
        if not self.has_index:
            return
        self.file = self.index
        indexed = indexed_places(self.store.path(self.file))
        for kind, places in self.places.items():
            found = indexed.get(kind, [])
            if found != places:
                pairs = zip_longest(found, places)
                key = next((b or a).key for a, b in pairs if a != b and (a or b))
                self.finding.add(self.file, f"it does not name the members of {kind}/; the first sample: {key}")

    def check_rows(self) -> None:
        """Walk through all formats side by side, row by row."""
        tally, last = Tally(further_reasons(self.manifest["provenance"])), None
        rows = self.ledger(FILES["arrow"][0], arrow_rows, SCORED)
        columns = self.ledger(FILES["grit"][1], parquet_rows, grit_schema(self.similarity))
        samples = {kind: self.samples(kind) for kind in self.places}
        for row, values in zip_longest(rows or (), columns or ()):
            ledger, last = (values if rows is None else row), row or values
            if rows is not None and columns is not None and (row is None or values is None):
                self.finding.add(self.names[FILES["grit"][1]], "it has not the number of rows of arrow/")
                return
            self.finding.keys.add(ledger["key"])
            if row is not None:
                self.check_row(row, values, tally)
            is_kept = ledger["status"] in (KEPT, "success")
            found = {kind: next(stream, None) for kind, stream in samples.items()} if is_kept else {}
            if not self.check_samples(ledger["key"], row, values, found) or self.finding.is_full:
                return
        if rows is None and columns is None:
            self.check_alone(samples)
        elif extra := next((kind for kind, stream in samples.items() if next(stream, None) is not None), None):
            key = last["key"] if last else "none"
            self.finding.add(self.names[TARS[extra]], f"it has samples after that of the last kept row, {key}")
        if rows is not None:
            for text in tally.problems(self.manifest):
                self.finding.add(self.finding.layout.path(MANIFEST_FILE, self.manifest["shard"]), text)

    def check_row(self, row: Row, columns: Row | None, tally: Tally) -> None:
        """Check a row of arrow/, and compare it with the parquet."""
        self.file = self.names[FILES["arrow"][0]]
        try:
            tally.add(row)
        except ValueError as error:
            self.finding.add(self.file, f"row {row['key']}: {one_line(error)}")
        if row["image"] is not None:
            self.see(self.file, row["key"], image_problems("image", row["image"], row["width"], row["height"]))
        if columns is not None and (text := columns_problem(row, columns, self.similarity)):
            self.finding.add(self.names[FILES["grit"][1]], f"row {row['key']} {text}")

    def check_samples(self, key: str, row: Row | None, columns: Row | None, found: dict[str, Sample | None]) -> bool:
        """Compare the samples of a kept row with it; return False if the tars are out of step with the rows."""
        for kind, sample in found.items():
            self.file = self.names[TARS[kind]]
            if sample is None or sample[0] != key:
                self.finding.add(self.file, f"kept row {key} has no sample; {sample[0] if sample else 'no'} follows")
                return False
            members = sample[1]
            if kind == "train":
                config_hash = self.manifest["provenance"]["config_hash"]
                self.see(self.file, key, train_problems(row, columns, members, config_hash))
            elif columns is not None:
                self.see(self.file, key, grit_problems(columns, members, self.similarity))
            self.finding.n_images += sum(name.endswith("jpg") for name in members)
            if kind == "grit" and row is not None and row["image"] not in (None, members.get(GRIT_IMAGE)):
                self.finding.add(self.file, f"sample {key}: its image is not that of arrow/")
        return True

    def check_alone(self, samples: dict[str, Iterator[Sample]]) -> None:
        """Check the samples of train/ without rows to compare them with."""
        for key, members in samples.get("train", ()):
            self.finding.keys.add(key)
            self.check_samples(key, None, None, {"train": (key, members)})
            if self.finding.is_full:
                return

    def see(self, file: str, key: str, problems: Iterator[str]) -> None:
        """Add the problems of a sample; an exception while it is compared is one too."""
        try:
            for text in problems:
                self.finding.add(file, f"sample {key}: {text}")
        except DAMAGE as error:
            self.finding.add(file, f"sample {key}: damaged ({type(error).__name__}: {one_line(error)[:200]})")

    def ledger(self, file: ShardFile, read: Any, schema: pa.Schema) -> Iterator[Row] | None:
        """Return the rows of arrow/ or the parquet, None without an intact file."""
        if file not in self.intact:
            return None
        return self._named(self.names[file], read(os.path.abspath(self.store.path(self.names[file])), schema))

    def _named(self, name: str, items: Iterator[Any]) -> Iterator[Any]:
        """Pass on items; an exception while they are read names the file."""
        while True:
            self.file = name
            try:
                item = next(items)
            except StopIteration:
                return
            yield item

    def samples(self, kind: str) -> Iterator[Sample]:
        """Yield the samples of a tar."""
        name = self.names[TARS[kind]]
        return self._named(name, as_by_webdataset(self.store, name, read_samples(self.store, name, self.places[kind])))


def as_by_webdataset(store: Store, name: str, samples: Iterator[Sample]) -> Iterator[Sample]:
    """Pass on the samples of a tar. Raises ValueError at the first that webdataset, a usual reader, reads otherwise."""
    from webdataset.tariterators import group_by_keys, tar_file_expander  # imports torch

    with store.open(name) as file:
        theirs = group_by_keys(tar_file_expander([{"url": name, "stream": file}]))
        for ours, found in zip_longest(samples, theirs):
            if ours is None or found is None or found != {"__key__": ours[0], "__url__": name, **ours[1]}:
                raise ValueError(f"webdataset reads sample {ours[0] if ours else found['__key__']} otherwise")
            yield ours


# Check the shards of a finished output, and name those that are broken, each with its defects.
#
# Of each shard: the manifest and its sums; sizes and SHA-256 of all files; schemas; the members of the tars against
# _index/; each stored image and box crop, which is decoded; the rows of arrow/, grit/ and train/ against each other and
# against the counts of the manifest; its summary, which the report adds up, against its rows. Of the output: keys in
# several shards, missing shards of a command, and stats.json.
# Nothing is written, unless requeue=true is given.

BROKEN = 1
TIMEOUT_S: Final = 3600.0
"""Longest time for a shard."""
SHOWN = 5
USAGE: Final = f"""\
usage: hypergrit verify OUT [requeue=true] [processes=N]

Checks every finished shard of an output: hashes and sizes of the files, the rows of the ledger, the samples of the tars,
every image, and the sums of the report. Nothing is changed without requeue=true.

  hypergrit verify out/mine                                        what is broken; exit code 1 if anything is
  hypergrit verify s3://bucket/shards processes=16                 an output in a store
  hypergrit verify out/strict                                      an output of rewrite, takedown or retry: the same
  hypergrit verify out/mine requeue=true                           then `hypergrit run` computes broken shards again
  hypergrit verify out/mine && hypergrit train shards=out/mine/train output=out/model

  OUT                  output folder or URL of a job

{EXIT_CODES.replace("1 a bug", "1 something is broken, or a bug")}
"""


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """The options of verify."""

    # child processes; null: one for each core
    processes: int | None = None
    # remove the manifests of broken shards, so that the next run of the job computes these shards again; a broken index
    # or summary alone is removed instead, and restored by that run
    requeue: bool = False

    def __post_init__(self) -> None:
        check_range(self, "processes", least=1)


def verify(output: str, options: VerifyOptions) -> int:
    """Check an output, print what is broken, and requeue it if asked for; return the exit code.

    Raises UserError if there is no finished shard, the store does not answer, or a job that runs holds the output.
    """
    store, broken, sums, n_bytes, n_images = Store(output), list[Finding](), Sums(), 0, 0
    repeats, n_processes = Repeats(), options.processes or len(os.sched_getaffinity(0))
    list_contents(store)  # raises before the lease creates the folder of a mistyped path
    with open_output(store) if options.requeue else nullcontext() as lease:
        contents = list_contents(store)
        for finding in check_shards(store, contents.plans, n_processes):
            sums.add(finding)
            repeats.add(finding)
            n_bytes, n_images = n_bytes + finding.n_bytes, n_images + finding.n_images
            if finding.problems:
                broken.append(finding)
                tqdm.write(describe(finding), file=sys.stdout)
        remove_abandoned_folders(tempfile.gettempdir())
        others = [
            *contents.problems,
            *(Problem(*item) for find in (listed_leftovers, listed_strangers, old_report) for item in find(store)),
            *filter(None, [repeats.problem(store), None if broken else sums.problem(store)]),
        ]
        for problem in others:
            print_text(message(str(problem)))
        if lease is not None and broken:
            requeue(store, broken, lease)
    unfinished = f", {contents.n_unfinished} more not finished" if contents.n_unfinished else ""
    print_text(
        f"{counted(len(contents.plans), 'finished shard')}{unfinished}: {counted(sums.rows['read'], 'row')} read, "
        f"{sums.rows['kept']:,} kept, {bytes_text(n_bytes)} with the right hashes, {counted(n_images, 'image')} decoded"
    )
    for left in contents.left_out:
        print_text(message(f"left out, since not finished (incomplete=true): {describe_left_out(left)}"))
    print_text(message(verdict(broken, len(others), options.requeue, contents.command)))
    return BROKEN if broken or others else 0


def check_shards(store: Store, plans: Mapping[int, PlanJson | None], n_processes: int) -> Iterator[Finding]:
    """Check the shards in `plans`, index -> plan in the record of the job; yield findings in the order of completion.

    A file that crashes a reader is a problem of its shard. Raises UserError if the store does not answer.
    """
    ray, output = RayConfig(runner="local", cpu_workers=n_processes, retries=0, step_timeout_s=TIMEOUT_S), store.url("")
    run = Run(PipelineConfig(input=output, output=output, ray=ray))
    tasks = [Task(index, 0, plan) for index, plan in plans.items()]
    for result in run.results(Recipe(partial(Checker, output), text="checked"), tasks):
        finding = result
        if not isinstance(result, Finding):
            finding = Finding(result["shard"], layout=store.layout)
            finding.add(store.file(MANIFEST_FILE, finding.shard), f"the shard cannot be checked: {result['error']}")
        yield finding


def describe(finding: Finding) -> str:
    """Return one line for each of the first problems of a shard, safe for a terminal."""
    lines = [message(f"shard {finding.shard}: {problem}") for problem in finding.problems[:SHOWN]]
    if len(finding.problems) > SHOWN:
        lines.append(f"shard {finding.shard}: {len(finding.problems) - SHOWN} more problems")
    return "\n".join(lines)


def verdict(broken: list[Finding], n_others: int, is_requeued: bool, command: str) -> str:
    """Return the last line; `command` made the output, "" for one of the job."""
    if not broken:
        return "the shards are intact" if n_others else "everything is intact"
    names = ", ".join(str(finding.shard) for finding in sorted(broken, key=lambda finding: finding.shard)[:20])
    text = f"{counted(len(broken), 'shard')} {'is' if len(broken) == 1 else 'are'} broken: {names}{', ...' if len(broken) > 20 else ''}"
    commands = sorted({command if finding.command is None else finding.command for finding in broken})
    if commands != [""]:
        advice = "run " + " and ".join(map(again, commands))
        return (
            f"{text}; {'they are in the queue' if is_requeued else 'requeue=true puts them into the queue'}: {advice}"
        )
    if not is_requeued:
        return f"{text}; requeue=true lets the next run of the job compute them again"
    formats = {",".join(finding.formats) for finding in broken if finding.formats}
    hint = f" (formats=[{formats.pop()}])" if len(formats) == 1 else ""
    return f"{text}; they are in the queue: run {again('')}{hint}"


main = output_command(USAGE, "hypergrit verify OUT", VerifyOptions, verify, "nothing has been changed")
