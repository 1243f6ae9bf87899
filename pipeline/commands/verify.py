"""The command `verify`: check the shards of an output by their hashes, manifests, keys, index, images and summaries."""

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, Final

import cv2
import pyarrow as pa
from tqdm import tqdm

from hypergrit_common.arrow_sizes import MOST, read_arrow_file, read_parquet
from hypergrit_common.cli import EXIT_CODES, INCOMPLETE
from hypergrit_common.config import check_range
from hypergrit_common.config_help import print_text
from hypergrit_common.errors import UserError, is_machine_error
from hypergrit_common.image_server import MEMORY_ERROR
from hypergrit_common.images import STORED_IMAGE_LIMITS, ImageRejected, decode
from hypergrit_common.tar import TarError, reader_of
from hypergrit_common.text import counted, message, one_line, shortened
from pipeline.commands.frame import output_command
from pipeline.config import PipelineConfig, RayConfig
from pipeline.faults import describe as describe_error
from pipeline.output.commit import open_output, read_places
from pipeline.output.contents import Finding, Problem, Repeats, Sums, file_problem, list_contents, requeue
from pipeline.output.ledger import count_shard, read_batches, stamp_of
from pipeline.output.manifest import checked_counts, parse_manifest
from pipeline.output.record import again, describe_left_out
from pipeline.output.store import Store, remove_abandoned_folders, temporary_folder_prefix
from pipeline.output.takedowns import (
    find_rows,
    has_taken_down,
    listed_leftovers,
    listed_strangers,
    listed_unread,
    old_report,
    taken_down_keys,
)
from pipeline.output.write.tar import Place, SamplePlace
from pipeline.read.types import Task
from pipeline.report.cards import read_dropped
from pipeline.report.stats import bytes_text
from pipeline.run.local import limited_memory
from pipeline.run.loop import Run
from pipeline.run.steps import Recipe
from pipeline.summary.totals import Summary, Totals, parse_summary
from schemas.files import (
    DROPPED_FILE,
    FILES,
    INDEX,
    INDEX_FILE,
    MANIFEST_FILE,
    ROLLUP_FILE,
    SUMMARY_FILE,
    TARS,
    rollup_of,
)
from schemas.manifest import Manifest, PlanJson
from schemas.rows import SCORED, VERSION
from schemas.status import GIVEN_REMOVALS, KEPT, ROW_DROPPED, check_reason, further_reasons

# Check a manifest by itself: its sums, its files, and its rows in the plan of the job.

DAMAGE: Final = (ValueError, LookupError, TypeError, AttributeError)
"""Exceptions of reading a manifest with missing fields or wrong types."""


def manifest_problems(manifest: Manifest, index: int, plan: PlanJson | None) -> Iterator[str]:
    """Describe what is wrong with the manifest of shard `index`.

    `plan` is its plan in the record of the job, if any.
    """
    try:
        yield from _problems(manifest, index, plan)
    except DAMAGE as error:
        yield f"a field is missing or damaged ({type(error).__name__}: {error})"


def _problems(manifest: Manifest, index: int, plan: PlanJson | None) -> Iterator[str]:
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
    yield from _file_problems(manifest, index)


def _file_problems(manifest: Manifest, index: int) -> Iterator[str]:
    """Describe the files that are missing, unknown, or have another number of rows than the counts."""
    expected = expected_rows(manifest, index)
    files: dict[str, Any] = dict(manifest["files"])
    for name in sorted(expected.keys() - files.keys()):
        yield f"it does not list {name}, although it lists its format"
    for name in sorted(files.keys() - expected.keys()):
        yield f"it lists {name}, which is no file of its formats {', '.join(manifest['formats'])}"
    for name in sorted(files.keys() & expected.keys()):
        if files[name]["rows"] != expected[name]:
            yield f"{name} has {files[name]['rows']} rows by its entry, but {expected[name]} by the counts"


def expected_rows(manifest: Manifest, index: int) -> dict[str, int]:
    """Return the files of a shard by the formats of its manifest, each with its number of rows or samples."""
    counts, formats = manifest["counts"], manifest["formats"]
    rows = {
        file.path(index): counts["kept"] if file.suffix == ".tar" else counts["read"]
        for kind in formats
        for file in FILES[kind]
    }
    n_tars = len(TARS.keys() & set(formats))
    return rows | ({INDEX_FILE.path(index): n_tars * counts["kept"]} if n_tars else {})


# Compare the manifest of a shard, and its summary, which the report adds up, with the rows of the shard.


def sums_problems(manifest: Manifest, found: Summary) -> Iterator[str]:
    """Describe the numbers of phrases and boxes in a manifest that are not those of its rows."""
    stated = Totals()
    stated.add_manifest(manifest)
    totals = found.totals
    uncounted = {ROW_DROPPED} if GIVEN_REMOVALS.keys() & stated.boxes else {ROW_DROPPED, *GIVEN_REMOVALS}
    boxes = Counter({reason: n for reason, n in totals.boxes.items() if reason not in uncounted})
    for name, ours, theirs in (
        ("phrases with a box", totals.n_grounded, stated.n_grounded),
        ("noun chunks by removal reason", +totals.chunks, +stated.chunks),
        ("boxes by removal reason", +boxes, +stated.boxes),
    ):
        if ours != theirs:
            yield f"{name}: {ours} in its rows, but {theirs} in the manifest"


def thumbnail_problem(store: Store, rows: Store, manifest: Manifest) -> Problem | None:
    """Return the first thumbnail of a row that was taken down, which a late request to a store can bring back."""
    if not (has_taken_down(manifest) and (shown := read_dropped(store, manifest["shard"]))):
        return None
    if not (gone := shown.keys() & taken_down_keys(rows, manifest)):
        return None
    text = f"row {min(gone)} was taken down, but its thumbnail is here; run hypergrit takedown again"
    return Problem(DROPPED_FILE.path(manifest["shard"]), text)


def summary_problem(store: Store, manifest: Manifest, found: Summary) -> Problem | None:
    """Return how the summary of a shard differs from its rows; None if it agrees, or the report would not read it.

    One of an earlier version of the shard, which a late request to a store can bring back, may have rows taken down.
    """
    index = manifest["shard"]
    name, rollup = SUMMARY_FILE.path(index), ROLLUP_FILE.path(rollup_of(index))
    stamp = stamp_of(store.read(MANIFEST_FILE.path(index)) or b"")
    content = store.read(name)
    summary = parse_summary(content, {index: stamp})
    if summary is None and len(store.takedowns) and parse_summary(content, None) is not None:
        return Problem(
            name,
            "of an earlier version of the shard, may have rows that were taken down; run "
            f"`hypergrit explore {store.url('').rstrip('/')} report=true`, which writes it again",
        )
    if summary is None or (stated := summary.to_json()) == (expected := found.to_json()):
        return None
    differing = ", ".join(key for key, value in expected.items() if stated[key] != value)
    return Problem(
        name,
        f"its {differing} are not those of the rows; remove it and {rollup}, if it exists, and run "
        f"`hypergrit explore {store.url('').rstrip('/')} report=true`, which counts the rows again",
    )


# Read the samples of a tar, and the index of a shard.

Sample = tuple[str, dict[str, bytes]]
"""Key and members of a sample."""


def read_samples(store: Store, name: str, places: Iterable[SamplePlace]) -> Iterator[Sample]:
    """Yield the samples of a tar with the contents of their members. Raises ValueError if a member occurs twice."""
    with store.open(name) as file:
        read_at = reader_of(file)
        for sample in places:
            if len({member.name for member in sample.members}) != len(sample.members):
                raise ValueError(f"a member of sample {sample.key} occurs twice")
            yield sample.key, {member.name: read_at(member.offset, member.size) for member in sample.members}


def indexed_places(path: str) -> dict[str, list[SamplePlace]]:
    """Read `_index/` of a shard: format -> places.

    Raises ValueError if it has another schema, and errors of Arrow if it is damaged.
    """
    found: dict[str, list[SamplePlace]] = {}
    with pa.memory_map(path) as source:
        for row in read_arrow_file(source, INDEX).to_pylist():
            members = [Place(member["name"], member["offset"], member["size"]) for member in row["members"]]
            place = SamplePlace(row["key"], row["offset"], row["offset"] + row["size"], members)
            found.setdefault(row["format"], []).append(place)
    return found


# Check the files of a shard: their hashes, then the content of those whose hash is right.

UNREADABLE: Final = (*DAMAGE, OSError, ArithmeticError, RecursionError, pa.ArrowException, TarError, UserError)
"""Exceptions of reading a file whose hash is right and whose content is not that of its format, unless `is_lack`."""
KILLED: Final = "SIGKILL"
"""The signal with which Linux ends a process when memory is short; no damaged file does so."""


def is_lack(error: BaseException | None) -> bool:
    """True if the machine lacked memory, or something else, which tells nothing of the file."""
    while error is not None:
        is_of_opencv = isinstance(error, cv2.error) and error.code == MEMORY_ERROR
        if isinstance(error, MemoryError) or is_of_opencv or is_machine_error(error):
            return True
        error = error.__cause__
    return False


class Checker:
    """Checks shards of an output one at a time; the object of a child process."""

    def __init__(self, output: str, n_processes: int = 1) -> None:
        cv2.setNumThreads(1)  # there is one process per core
        self.store, self.n_processes = Store(output), n_processes

    def compute(self, task: Task) -> Finding:
        """Check the shard of a task, whose subject is its plan in the record of the job, in its share of the memory."""
        with limited_memory(self.n_processes) as n_bytes:
            try:
                return self.check(task.index, task.subject)
            except Exception as error:
                if not is_lack(error):
                    raise
                text = f"could not be checked with {bytes_text(n_bytes)} of memory ({describe_error(error)})"
        return Finding(task.index, lack=text)

    def check(self, index: int, plan: PlanJson | None = None) -> Finding:
        """Check a shard; `plan` is its plan in the record of the job. Raises UserError if the store does not answer."""
        name, finding = MANIFEST_FILE.path(index), Finding(index)
        content = self.store.read(name)
        manifest = None if content is None else parse_manifest(content)
        if manifest is None:
            finding.add(name, "missing" if content is None else "damaged: it is no manifest")
            return finding
        for text in manifest_problems(manifest, index, plan):
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
            Content(rows, manifest, intact, finding).check()
            for key in () if finding.problems else find_rows(rows, manifest, self.store.takedowns):
                finding.add(name, f"row {key} was taken down, but is here; run hypergrit takedown again")
            if not finding.is_computed_again:
                self.check_sums(rows, manifest, finding)
        return finding

    def check_sums(self, rows: Store, manifest: Manifest, finding: Finding) -> None:
        """Compare the manifest and the summary of a shard with its rows, whose files are in `rows`."""
        name = MANIFEST_FILE.path(finding.shard)
        try:
            found = count_shard(rows, manifest)
        except UNREADABLE as error:
            if is_lack(error):
                raise
            finding.add(name, f"its rows cannot be counted: {one_line(error)}")
            return
        for text in sums_problems(manifest, found):
            finding.add(name, text)
        problems = summary_problem(self.store, manifest, found), thumbnail_problem(self.store, rows, manifest)
        for problem in filter(None, problems):
            finding.add(*problem)


class Content:
    """The content of those files of a shard whose hashes are right; `store` is local."""

    def __init__(self, store: Store, manifest: Manifest, intact: set[str], finding: Finding) -> None:
        self.store, self.manifest, self.finding = store, manifest, finding
        index = manifest["shard"]
        self.names = {kind: kind.path(index) for kinds in FILES.values() for kind in kinds}
        self.intact = {kind for kind, name in self.names.items() if name in intact}
        self.index = INDEX_FILE.path(index)
        self.has_index = self.index in intact
        self.places: dict[str, list[SamplePlace]] = {}
        self.file = ""  # the one that is read, for the message

    def check(self) -> None:
        """Check the index, the keys, and the images."""
        try:
            self.check_index()
            self.check_keys(self.read_ledgers())
            for kind in self.places:
                self.file = self.names[TARS[kind]]
                for key, members in read_samples(self.store, self.file, self.places[kind]):
                    self.decode(key, {name: data for name, data in members.items() if name.endswith("jpg")})
        except UNREADABLE as error:
            if is_lack(error):
                raise
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

    def read_ledgers(self) -> dict[str, list[tuple[str, bool]]]:
        """Return the keys of arrow/ and of the parquet by file, and whether each row is kept; decode the images of arrow/."""
        found: dict[str, list[tuple[str, bool]]] = {}
        arrow, parquet = FILES["arrow"][0], FILES["grit"][1]
        if arrow in self.intact:
            self.file = self.names[arrow]
            found[self.file] = []
            for batch in read_batches(self.store, self.manifest, SCORED.names):
                keys, images = batch["key"].to_pylist(), batch["image"]
                found[self.file] += zip(keys, (status == KEPT for status in batch["status"].to_pylist()), strict=True)
                for key, image in zip(keys, images, strict=True):
                    if image.is_valid:
                        self.decode(key, {"image": image.as_py()})
        if parquet in self.intact:
            self.file = self.names[parquet]
            table = read_parquet(self.store.read(self.file, MOST) or b"", ["key", "status"])
            statuses = (status in (KEPT, "success") for status in table["status"].to_pylist())
            found[self.file] = list(zip(table["key"].to_pylist(), statuses, strict=True))
        return found

    def check_keys(self, ledgers: dict[str, list[tuple[str, bool]]]) -> None:
        """Compare the keys of all formats: each row has one of its own, and each kept one a sample at its place."""
        samples = {self.names[TARS[kind]]: [place.key for place in places] for kind, places in self.places.items()}
        of_samples = {name: [(key, True) for key in keys] for name, keys in samples.items()}  # without a ledger
        file, rows = next(iter((ledgers or of_samples).items()), ("", []))
        for key, n in Counter(key for key, _ in rows).items():
            self.finding.keys.add(key)
            if n > 1:
                self.finding.add(file, f"row {key}: its key occurs twice")
        for name, ledger in ledgers.items():
            if ledger != rows:
                self.finding.add(name, "its rows are not those of arrow/")
        kept = [key for key, is_kept in rows if is_kept]
        for name, keys in samples.items():
            if keys != kept:
                first = next(pair for pair in zip_longest(keys, kept, fillvalue="none") if pair[0] != pair[1])
                text = f"its samples are not those of the kept rows; the first: {first[0]} in place of {first[1]}"
                self.finding.add(name, text)

    def decode(self, key: str, images: Mapping[str, bytes]) -> None:
        """Decode the images of a row or sample."""
        for name, data in images.items():
            if self.finding.is_full:
                return
            self.finding.n_images += 1
            try:
                decode(data, STORED_IMAGE_LIMITS)
            except ImageRejected as error:
                if is_lack(error):
                    raise
                self.finding.add(self.file, f"sample {key}: {name} cannot be decoded ({error})")


# Check the shards of a finished output, and name those that are broken, each with its defects. Of the output itself: keys
# in several shards, missing shards of a command, rows that were taken down, and stats.json. Nothing is written, unless
# requeue=true is given.

BROKEN = 1
TIMEOUT_S: Final = 3600.0
"""Longest time for a shard."""
SHOWN = 5
FINDERS: Final = (listed_leftovers, listed_unread, listed_strangers, old_report)
UNCHECKED: Final = "3 shards could not be checked, because memory is short"
USAGE: Final = f"""\
usage: hypergrit verify OUT [requeue=true] [processes=N] [quiet=true]

Checks every finished shard of an output: hashes and sizes of the files, keys, index, every image, rows that were taken
down, and the sums of the report. Nothing is changed without requeue=true.

  hypergrit verify out/mine                                        what is broken; exit code 1 if anything is
  hypergrit verify s3://bucket/shards processes=16                 an output in a store
  hypergrit verify out/strict                                      an output of rewrite, takedown or retry: the same
  hypergrit verify out/mine requeue=true                           then `hypergrit run` computes broken shards again
  hypergrit verify out/mine && hypergrit train shards=out/mine/train output=out/model

  OUT                  output folder or URL of a job

{EXIT_CODES.replace("1 a bug", "1 something is broken, or a bug").replace("130", f"{UNCHECKED}; 130")}
"""


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """The options of verify."""

    # child processes; null: one for each core
    processes: int | None = None
    # remove the manifests of broken shards, so that the next run of the job computes these shards again; a broken index
    # or summary alone is removed instead, and restored by that run
    requeue: bool = False
    # print only what is broken: no progress, no summary
    quiet: bool = False

    def __post_init__(self) -> None:
        check_range(self, "processes", least=1)


def verify(output: str, options: VerifyOptions) -> int:
    """Check an output, print what is broken, and requeue it if asked for; return the exit code.

    Raises UserError if there is no finished shard, the store does not answer, or a job that runs holds the output.
    """
    store, broken, unchecked, sums, n_bytes, n_images = Store(output), list[Finding](), list[int](), Sums(), 0, 0
    repeats, n_processes = Repeats(), options.processes or len(os.sched_getaffinity(0))
    list_contents(store)  # raises before the lease creates the folder of a mistyped path
    with open_output(store) if options.requeue else nullcontext() as lease:
        contents = list_contents(store)
        for finding in check_shards(store, contents.plans, n_processes, options.quiet):
            sums.add(finding)
            repeats.add(finding)
            n_bytes, n_images = n_bytes + finding.n_bytes, n_images + finding.n_images
            if finding.lack:
                unchecked.append(finding.shard)
            elif finding.problems:
                broken.append(finding)
            if finding.lack or finding.problems:
                tqdm.write(describe(finding), file=sys.stdout)
        remove_abandoned_folders(tempfile.gettempdir())
        others = [
            *contents.problems,
            *(Problem(*item) for find in FINDERS for item in find(store)),
            *filter(None, [repeats.problem(), None if broken else sums.problem(store)]),
        ]
        for problem in others:
            print_text(message(str(problem)))
        if lease is not None and broken:
            requeue(store, broken, lease)
    unfinished = f", {contents.n_unfinished} more not finished" if contents.n_unfinished else ""
    show = (lambda _: None) if options.quiet else print_text
    show(
        f"{counted(len(contents.plans), 'finished shard')}{unfinished}: {counted(sums.rows['read'], 'row')} read, "
        f"{sums.rows['kept']:,} kept, {bytes_text(n_bytes)} with the right hashes, {counted(n_images, 'image')} decoded"
    )
    for left in contents.left_out:
        show(message(f"left out, since not finished (incomplete=true): {describe_left_out(left)}"))
    if unchecked:
        shards, numbers = counted(len(unchecked), "shard"), shortened([str(i) for i in sorted(unchecked)], 20, ", ")
        print_text(f"{shards} could not be checked: {numbers}; give processes=1, or more memory")
    if broken or not (unchecked or options.quiet):
        print_text(message(verdict(broken, len(others), options.requeue, contents.command)))
    return BROKEN if broken or others else INCOMPLETE if unchecked else 0


def check_shards(
    store: Store, plans: Mapping[int, PlanJson | None], n_processes: int, quiet: bool = False
) -> Iterator[Finding]:
    """Check the shards in `plans`, index -> plan in the record of the job; yield findings in the order of completion.

    A file that crashes a reader is a problem of its shard, which comes last. Raises UserError if the store does not answer.
    """
    ray, output = RayConfig(runner="local", cpu_workers=n_processes, retries=0, step_timeout_s=TIMEOUT_S), store.url("")
    run = Run(PipelineConfig(input=output, output=output, ray=ray, quiet=quiet))
    tasks = [Task(index, 0, plan) for index, plan in plans.items()]
    yield from run.results(Recipe(partial(Checker, output, n_processes), text="checked"), tasks)
    for index, record in run.failed.items():
        finding, error = Finding(index), record["error"]
        if KILLED in error:
            finding.lack = f"could not be checked: {error}, as the system does for a lack of memory"
        else:
            finding.add(MANIFEST_FILE.path(index), f"the shard cannot be checked: {error}")
        yield finding


def describe(finding: Finding) -> str:
    """Return one line for each of the first problems of a shard, safe for a terminal."""
    texts = [finding.lack] if finding.lack else finding.problems[:SHOWN]
    lines = [message(f"shard {finding.shard}: {text}") for text in texts]
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
