"""Check one shard: its manifest, its files, its index, its rows in all formats side by side, and its summary."""

import os
import tempfile
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, Final

import cv2
import pyarrow as pa

from common.tar import TarError
from common.text import one_line
from pipeline.verify.agree import columns_problem, grit_problems, image_problems, train_problems
from pipeline.verify.attempts import attempt_problems
from pipeline.verify.files import file_problem
from pipeline.verify.finding import Finding
from pipeline.verify.manifest import DAMAGE, TARS, manifest_problems
from pipeline.verify.streams import Row, Sample, arrow_rows, indexed_places, parquet_rows, read_samples, tar_places
from pipeline.verify.summary import summary_problem
from pipeline.verify.tally import Tally
from pipeline.write.attempts import net_counts
from pipeline.write.grit import similarity_column
from pipeline.write.manifest import parse_manifest
from pipeline.write.store import Store
from pipeline.write.tar import SamplePlace
from pipeline.write.temporary import temporary_folder_prefix
from schemas.files import FILES, GRIT_IMAGE, INDEX_FILE, MANIFEST_FILE, grit_schema
from schemas.layout import ShardFile
from schemas.manifest import Manifest, PlanJson
from schemas.rows import SCORED
from schemas.status import KEPT

UNREADABLE: Final = (*DAMAGE, OSError, ArithmeticError, RecursionError, pa.ArrowException, TarError)
"""Exceptions of reading a file whose hash is right and whose content is not that of its format."""


class Checker:
    """Checks shards of an output one at a time; the object of a child process (pipeline.verify.pool)."""

    def __init__(self, output: str) -> None:
        cv2.setNumThreads(1)  # there is one process per core
        self.store = Store(output)

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
        finding.counts, finding.formats = net_counts(manifest), tuple(manifest["formats"])
        for text in attempt_problems(self.store, manifest) if "retry" in manifest else ():
            finding.add(name, text)
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
        self.is_attempt = "retry" in manifest  # at rows of another shard, whose keys it has

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
                self.places[kind] = list(tar_places(self.store, self.file))
        if not self.has_index:
            return
        self.file = self.index
        indexed = indexed_places(self.store.path(self.file), self.manifest["schema"])
        for kind, places in self.places.items():
            found = indexed.get(kind, [])
            if found != places:
                pairs = zip_longest(found, places)
                key = next((b or a).key for a, b in pairs if a != b and (a or b))
                self.finding.add(self.file, f"it does not name the members of {kind}/; the first sample: {key}")

    def check_rows(self) -> None:
        """Walk through all formats side by side, row by row."""
        tally, last = Tally(), None
        rows, columns = self.rows(), self.columns()
        samples = {kind: self.samples(kind) for kind in self.places}
        for row, values in zip_longest(rows or (), columns or ()):
            ledger, last = (values if rows is None else row), row or values
            if rows is not None and columns is not None and (row is None or values is None):
                self.finding.add(self.names[FILES["grit"][1]], "it has not the number of rows of arrow/")
                return
            self.add_key(ledger["key"])
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

    def add_key(self, key: str) -> None:
        """Keep a key, to compare it with those of other shards."""
        if not self.is_attempt:
            self.finding.keys.add(key)

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
            self.add_key(key)
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

    def rows(self) -> Iterator[Row] | None:
        """Return the rows of arrow/, None without an intact file."""
        return self._ledger(FILES["arrow"][0], arrow_rows, SCORED)

    def columns(self) -> Iterator[Row] | None:
        """Return the rows of the parquet, None without an intact file."""
        return self._ledger(FILES["grit"][1], parquet_rows, grit_schema(self.similarity))

    def _ledger(self, file: ShardFile, read: Any, schema: pa.Schema) -> Iterator[Row] | None:
        if file not in self.intact:
            return None
        return self._named(self.names[file], read(self._path(file), schema, self.manifest["schema"]))

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
        return self._named(name, read_samples(self.store, name, self.places[kind]))

    def _path(self, file: ShardFile) -> str:
        return os.path.abspath(self.store.path(self.names[file]))
