"""Outputs to which steps happen, and a simple model that says what must hold after each."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from pipeline.explore.index import digest as cache_name
from pipeline.output.store import Store
from tests.pipeline.output.write.crashes import KILLED
from tests.soak.sequences.findings import Shard, read_json, shards_of, traces
from tests.soak.sequences.input import (
    HOSTS,
    LOST,
    N_ROWS,
    OUTAGES,
    ROWS_PER_SHARD,
    SECOND_HOST,
    TWINS,
    row_of,
    serve,
    serving,
    sha256_of,
    word,
    write_input,
)
from tests.soak.sequences.processes import BLOCKED_S, Disturbance, ParsedOnce, Running, ask, start
from tests.soak.sequences.steps import Step
from tests.soak.sequences.store import AtRequests, Bucket

PLUGINS = tuple(
    f"{key}=tests.soak.sequences.models:{name}" for key, name in (("grounder", "Boxes"), ("scorer", "Cosines"))
)
N_SHARDS = -(-N_ROWS // ROWS_PER_SHARD)
NEEDED = ("train", "grit", "arrow", "_index", "_manifests")
"""Folders whose files a shard needs."""
EVALUATED = 7
"""Row whose picture is in the evaluation set."""


@dataclass
class Base:
    """Shared by the sequences of a process: the input, its server, and jobs without faults while the web was up and down."""

    folder: Path
    port: int
    jobs: dict[str, dict[int, Shard]] = field(default_factory=dict)

    def arguments(self, output: Path | str) -> list[str]:
        """The arguments of the job."""
        return [
            "run", f"input={self.folder / 'pairs.jsonl'}", f"output={output}", f"rows_per_shard={ROWS_PER_SHARD}",
            *PLUGINS, f"download.allowed_private_hosts=[{','.join(HOSTS)}]", "download.retries=0", "download.timeout_s=600", *LOCAL,
        ]  # fmt: skip

    def fresh(self, web: str) -> dict[int, Shard]:
        """The shards of a job that ran undisturbed in a state of the web."""
        if web not in self.jobs:
            state = "down" if self.down.exists() else "up"
            set_web(self, web)
            world = World(self, self.folder / f"fresh-{web}")
            code = world.call(self.arguments(world.path("a")))
            assert code == 0, world.last_log()
            self.jobs[web] = shards = ask(partial(shards_of, world.path("a")))
            reasons = Counter(row["reason"] for shard in shards.values() for row in shard.rows.values())
            assert reasons["http_error"] == len(LOST) + (len(OUTAGES) if web == "down" else 0), reasons
            assert {*reasons} == {None, "http_error", "low_score"}, reasons
            set_web(self, state)
        return self.jobs[web]

    @property
    def down(self) -> Path:
        """The file that takes the pictures of OUTAGES from the web."""
        return self.folder / "down"


LOCAL = ("ray.runner=local", "ray.cpu_workers=1", "ray.retries=0")


@contextmanager
def started(folder: Path) -> Iterator[Base]:
    """Start the server."""
    folder.mkdir(parents=True, exist_ok=True)
    with serving(partial(serve, folder)) as port:
        base = Base(folder, port)
        write_input(folder / "pairs.jsonl", port)
        ParsedOnce()
        yield base


def set_web(base: Base, state: str) -> None:
    """Take pictures from the web, or bring them back."""
    if state == "down":
        base.down.touch()
    else:
        base.down.unlink(missing_ok=True)


@dataclass
class Model:
    """The expected state of an output."""

    gone: set[int] = field(default_factory=set)  # rows that a takedown removed, which ended with 0
    going: set[int] = field(default_factory=set)  # rows of all takedowns that were begun
    entries: set[str] = field(default_factory=set)  # of all takedowns that were begun
    webs: set[str] = field(default_factory=set)  # states of the web in which shards may have been computed
    damaged: set[int] = field(default_factory=set)  # shards whose files were damaged, and not made again since
    is_disturbed: bool = False  # a verb was disturbed since the last one that ended with 0
    has_old_report: bool = False  # stats.json was damaged, so that nobody knows whether the report is that of its rows
    options: tuple[str, ...] | None = None  # of the last rewrite that was begun
    own: set[str] = field(default_factory=set)  # entries of takedowns that were begun on this output itself
    is_late: bool = False  # the request that a verb was about to send arrived after another one had taken over


class World:
    """A folder with outputs a and b, folders for temporary files and caches, and logs.

    With a client of a store, the outputs are in a bucket; those of the folder are their copies.
    """

    def __init__(self, base: Base, folder: Path, objects: Any = None) -> None:
        self.base, self.folder, self.n_logs = base, folder, 0
        self.bucket = None if objects is None else Bucket(objects, folder)
        for name in ("tmp/0", "tmp/1", "cache", "logs", "lists", "pages"):
            (folder / name).mkdir(parents=True)
        self.models = {"a": Model(), "b": Model()}

    def path(self, name: str) -> Path:
        return self.folder / name

    def url(self, name: str) -> str:
        """The path of an output, or its URL in the store, as it is given to verbs."""
        return str(self.path(name)) if self.bucket is None else f"s3://{self.folder.name}/{name}"

    def copy(self) -> None:
        """Let the folder have what is in the bucket."""
        if self.bucket is not None:
            self.bucket.copy()

    def last_log(self) -> str:
        return (self.folder / "logs" / str(self.n_logs)).read_text("utf-8")[-6000:]

    def begin(self, arguments: Sequence[str], machine: int = 0, kind: str = "", at: int = 0) -> Running:
        """Start a verb, whose log is the next one."""
        self.n_logs += 1
        log = self.folder / "logs" / str(self.n_logs)
        disturbance = (Disturbance if self.bucket is None else AtRequests)(kind, at, self.folder) if kind else None
        return start(arguments, self.folder, log, machine, disturbance)

    def call(self, arguments: Sequence[str], machine: int = 0) -> int:
        """Run a verb undisturbed; return its exit code."""
        code = self.begin(arguments, machine).end()
        self.copy()
        return code

    # The steps.

    def play(self, steps: Sequence[Step]) -> None:
        """Make the steps, and check the world after each; at the end, lead all outputs out of what was done to them."""
        left = list(steps)
        while left:
            step = left.pop(0)
            match step.verb:
                case "web":
                    set_web(self.base, step.options[0])
                case "damage":
                    self.damage(step)
                case _:
                    self.run(step, left)
                    self.check(f"after {step}")
        self.finish()

    def run(self, step: Step, left: list[Step]) -> None:
        """Run a verb; while it stands still, the next one runs on another machine."""
        arguments = self.arguments(step)
        if arguments is None:
            return
        self.begun(step)
        running, other = self.begin(arguments, step.machine, step.kind, step.at), None
        if step.kind == "stop":
            running.wait(BLOCKED_S * 10, stops=True)
            if running.status is None:
                other = self.run_beside(running, step, left)
        code = running.end()
        self.copy()
        if other is not None and self.bucket is not None:
            model = self.models[step.output]
            model.is_late, model.damaged = True, model.damaged | ask(partial(wrong, self.path(step.output)))
        if other is not None:
            self.ended(*other, is_undisturbed=False)
        self.ended(step, code, running.log, is_undisturbed=not step.kind)

    def run_beside(self, running: Running, step: Step, left: list[Step]) -> tuple[Step, int, Path] | None:
        """Run the next verb on the other machine until it ends, or waits for the process that stands still."""
        while left and left[0].verb in ("web", "damage"):
            return None
        if not left:
            return None
        self.copy()
        second = replace(left.pop(0), machine=1 - step.machine, kind="")
        arguments = self.arguments(second)
        if arguments is None:
            return None
        self.begun(second)
        other = self.begin(arguments, second.machine)
        other.wait(BLOCKED_S)
        running.end()
        return second, other.end(), other.log

    def arguments(self, step: Step) -> list[str] | None:
        """The command line of a step; None if there is nothing to which it could happen."""
        output, rng = self.url(step.output), Random(step.seed)
        if step.verb != "run" and not self.path("a" if step.verb == "rewrite" else step.output).exists():
            return None
        match step.verb:
            case "run":
                return [*self.base.arguments(output), *step.options]
            case "retry":
                return [*self.base.arguments(output), "retry=true"]
            case "rewrite":
                evaluation = self.folder / "lists" / "evaluation"
                evaluation.write_text(sha256_of(EVALUATED) + "\n")
                options = [option.format(evaluation=evaluation) for option in step.options]
                return ["rewrite", f"source={self.url('a')}", f"output={self.url('b')}", *options, *LOCAL]
            case "takedown":
                path = self.folder / "lists" / f"{self.n_logs}.txt"
                path.write_text(self.entry(step)[0] + "\n")
                return ["takedown", output, f"list={path}", *step.options[1:], *LOCAL]
            case "verify" | "requeue":
                return ["verify", output, "processes=1", *(["requeue=true"] if step.verb == "requeue" else [])]
            case "explore":
                page = self.folder / "pages" / str(self.n_logs)
                row = f"row={rng.randrange(N_ROWS):012d}"
                options = {
                    "report": "report=true",
                    "row": row,
                    "static": f"static={page}",
                }
                return ["explore", output, options[step.options[0]]]
            case "export":
                return ["export", output, f"output={self.folder}/pages/{self.n_logs}", f"format={step.options[0]}"]
        raise ValueError(step)

    def entry(self, step: Step) -> tuple[str, set[int]]:
        """The entry of the list of a takedown, and the rows that it names."""
        row, port = Random(step.seed).randrange(N_ROWS), self.base.port
        match step.options[0]:
            case "host":
                return HOSTS[1], set(SECOND_HOST)
            case "sha256" if row not in (*LOST, *OUTAGES):
                return sha256_of(row), set(TWINS) if row in TWINS else {row}
        return row_of(row, port).url, {row}

    def damage(self, step: Step) -> None:
        """Flip a byte of a file, cut it off in the middle, or remove it."""
        output, (how, place), rng = self.path(step.output), step.options, Random(step.seed)
        paths = sorted(path for path in output.glob(f"{place}/**/*" if "." not in place else place) if path.is_file())
        paths = [path for path in paths if not path.name.endswith(".tmp")]
        if not paths:
            return
        path = rng.choice(paths)
        data = bytearray(path.read_bytes())
        if how == "flip" and data and place != "_manifests":
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
        elif how == "truncate":
            path.write_bytes(data[: rng.randrange(len(data) + 1) // 2])
        else:
            path.unlink()
        if self.bucket is not None:
            self.bucket.put(path)
        if place in NEEDED:
            self.models[step.output].damaged.add(int(path.name.partition(".")[0]))
        self.models[step.output].has_old_report |= place == "stats.json"

    # The model: what a step may change, and what holds after it.

    def begun(self, step: Step) -> None:
        """Note what a verb may do from its start on."""
        model = self.models[step.output]
        match step.verb:
            case "run" | "retry":
                model.webs.add("down" if self.base.down.exists() else "up")
            case "takedown" if "dry_run=true" not in step.options and (self.path(step.output) / "config.yaml").exists():
                entry, rows = self.entry(step)
                model.going |= rows
                model.entries.add(entry)
                model.own.add(entry)
            case "rewrite":
                source = self.models["a"]
                model.options = step.options
                model.going |= source.going
                model.entries |= source.entries

    def ended(self, step: Step, code: int, log: Path, is_undisturbed: bool) -> None:
        """Check how a verb ended, and note what holds from now on."""
        model, text = self.models[step.output], log.read_text("utf-8")
        about = f"{step} ended with {code}:\n{text[-5000:]}"
        is_checked = step.kind != "broken" or self.bucket is not None
        assert not is_checked or "Traceback" not in text, about
        assert code in (0, 1, 2, 3, 4, KILLED), about
        is_dry = "dry_run=true" in step.options
        source = self.models["a"] if step.verb == "rewrite" else model
        is_whole = not (model.damaged or source.damaged or source.is_disturbed or model.is_disturbed)
        if is_undisturbed:
            allowed = {
                "run": {0, 4}, "retry": {0}, "rewrite": {0, 2, 4}, "takedown": {0}, "verify": {0}, "requeue": {0}, "explore": {0},
                "export": {0},
            }[step.verb]  # fmt: skip
            if not is_whole or model.going - model.gone:
                allowed = allowed | ({1, 2} if step.verb in ("verify", "requeue") else {0, 2, 3, 4})
            if step.verb == "verify" and model.has_old_report and model.going:
                allowed = allowed | {1}
            if step.verb == "export" and step.output == "b":
                allowed = {0, 2}  # b may lack the columns
            assert code in allowed, about
        if is_dry:
            return
        done = code in (0, 4)
        gone = source.gone & model.gone
        told = [row for row in gone if word(row) in text]
        assert not told, f"rows {told} were taken down, but the log has them: {about}"
        if done and step.verb in ("explore", "export") and (step.kind != "stop" or step.verb == "export"):
            page = self.folder / "pages" / str(int(log.name) - 1)
            found = ask(partial(traces, [page], gone))
            assert not found, f"after {step}, its pages have rows that were taken down: {found[:5]}"
        if done and (step.verb in ("run", "retry", "rewrite", "takedown") or "report" in step.options):
            model.has_old_report = False
        match step.verb:
            case "takedown" if done:
                model.gone |= self.entry(step)[1]
                found = ask(partial(traces, [self.folder / "tmp" / str(step.machine)], self.entry(step)[1]))
                assert not found, f"after {step}, TMPDIR has {found}"
            case "rewrite" if done:
                model.gone |= self.models["a"].gone
                model.is_disturbed = False
            case "run":
                model.is_disturbed = not done
            case "retry" if done and not model.damaged and not model.is_disturbed:
                model.webs = {"down" if self.base.down.exists() else "up"} | (model.webs - {"down"})
        if not done and step.verb in ("run", "rewrite", "takedown", "retry", "requeue") and code != 2:
            model.is_disturbed = True
        if step.kind and not done:
            model.is_disturbed = True
        if step.verb == "requeue" and not step.kind and code == 1:
            model.is_disturbed = True  # shards are in the queue

    def check(self, when: str) -> None:
        """Check what holds at any time. Raises AssertionError."""
        for name, model in self.models.items():
            for web in model.webs:
                self.base.fresh(web)
            if self.path(name).exists():
                try:
                    model.damaged -= ask(partial(self.check_output, name, when))
                except AssertionError:  # no lease stops a late request to a store, but verify finds what it did
                    if not model.is_late or self.call(["verify", self.url(name), "processes=1"]) not in (1, 2):
                        raise

    def check_output(self, name: str, when: str) -> set[int]:
        """Check the shards of an output: files, rows, and keys; and that what was taken down is nowhere.

        Returns the indices of the intact shards.
        """
        model, shards = self.models[name], shards_of(self.path(name))
        seen: set[str] = set()
        for index, shard in shards.items():
            if shard.wrong:
                assert index in model.damaged, f"{when}: shard {index} of {name} has wrong files {shard.wrong}"
                continue
            assert not seen & {*shard.rows}, f"{when}: keys of shard {index} of {name} are in another one too"
            seen |= {*shard.rows}
            for row in shard.rows.values():
                self.check_row(name, row, when)
            if name == "a" and not model.going & rows_in(shard):
                fresh = [self.base.fresh(web)[index] for web in sorted(model.webs)]
                assert shard.digests in [other.digests for other in fresh], f"{when}: shard {index} has other bytes"
                manifests = [plain(other.manifest) for other in fresh]
                assert plain(shard.manifest) in manifests, f"{when}: shard {index} has another manifest"
        cache = self.folder / "cache" / "hypergrit" / "explore" / cache_name(Store(self.url(name)).url(""))
        found = traces([self.path(name), cache], model.gone) if model.gone else []
        assert not found, f"{when}: taken down from {name}, but there:\n" + "\n".join(found[:20])
        return {index for index, shard in shards.items() if not shard.wrong}

    def check_row(self, name: str, row: Any, when: str) -> None:
        """Check a row against those of the jobs that were not disturbed."""
        model, number, about = self.models[name], row["source_row"], f"{when}: row {row['key']} of {name}"
        if row["reason"] == "taken_down":
            assert number in model.going, f"{about} was taken down, but nobody asked for it"
            assert all(row.get(column) is None for column in ("url", "caption", "sha256", "image", "noun_chunks")), (
                about
            )
            return
        assert number not in model.gone, f"{about} was taken down, but is there"
        webs = self.models["a"].webs
        fresh = [self.base.fresh(web)[number // ROWS_PER_SHARD].rows[f"{number:012d}"] for web in sorted(webs)]
        if number in TWINS and model.going & {*TWINS}:
            return  # which of them is the duplicate depends on when the other one was taken down
        for column in ("caption_original", "id", "url"):
            assert row[column] == fresh[0][column], f"{about}: {column} is {row[column]!r}"
        if row["status"] == "kept":
            images = row.get("images", {}).items()
            same = [other for other in fresh if other["status"] == "kept" and images <= other["images"].items()]
            assert same, f"{about} has another picture than in a fresh job"
            assert row["noun_chunks"] == same[0]["noun_chunks"], about
        elif name == "a":
            assert row["reason"] in {other["reason"] for other in fresh}, f"{about}: {row['reason']}"

    def finish(self) -> None:
        """Lead all outputs out of what was done to them: all verbs end well, and the bytes are those of a fresh job."""
        set_web(self.base, "up")
        model = self.models["a"]
        if self.path("a").exists():
            self.lead_out("a", self.base.arguments(self.url("a")))
            self.expect(0, [*self.base.arguments(self.url("a")), "retry=true"])
            model.webs, model.damaged = {"up"}, set()
            self.check("after the end")
            self.expect(0, ["verify", self.url("a"), "processes=1"])
            ask(partial(self.check_whole, "a"))
        if self.path("b").exists():
            options = (self.models["b"].options or ()) + ("overwrite=true",)
            step = Step(verb="rewrite", output="b", options=tuple(dict.fromkeys(options)))
            arguments = self.arguments(step)
            assert arguments is not None
            self.models["b"].going |= model.going
            self.models["b"].entries |= model.entries
            self.lead_out("b", arguments)
            self.check("after the end")
            self.expect(0, ["verify", self.url("b"), "processes=1"])
            ask(partial(self.check_whole, "b"))
            self.check_fresh_rewrite(arguments)

    def lead_out(self, name: str, arguments: list[str]) -> None:
        """Take broken shards out of an output, take down again what was to be taken down, and go on with its command."""
        model, output = self.models[name], self.url(name)
        self.expect((0, 1, 2), ["verify", output, "processes=1", "requeue=true"])
        model.damaged = ask(partial(unindexed, self.path(name)))
        path = self.folder / "lists" / "all"
        if model.entries:
            if not (self.path(name) / "config.yaml").exists():
                self.expect((0, 4), arguments)
            path.write_text("".join(f"{entry}\n" for entry in sorted(model.entries)))
            self.expect(0, ["takedown", output, f"list={path}", *LOCAL])
            model.gone |= model.going
            model.is_late = False
            self.check("after the takedowns at the end")
        self.expect((0, 4), arguments)

    def expect(self, codes: int | Sequence[int], arguments: Sequence[str]) -> None:
        """Run a verb, and check its exit code."""
        code = self.call(arguments)
        allowed = (codes,) if isinstance(codes, int) else codes
        assert code in allowed, f"at the end, {arguments[:4]} ended with {code}:\n{self.last_log()}"
        assert "Traceback" not in self.last_log(), self.last_log()

    def check_whole(self, name: str) -> None:
        """Check the sums of a finished output."""
        shards = shards_of(self.path(name))
        keys = [key for shard in shards.values() for key in shard.rows]
        stats = read_json(self.path(name) / "stats.json")
        assert not [index for index, shard in shards.items() if shard.wrong], f"{name} has wrong files"
        assert stats is not None, f"{name} has no statistics"
        kept = sum(shard.manifest["counts"]["kept"] for shard in shards.values())
        assert (stats["rows"]["read"], stats["rows"]["kept"]) == (N_ROWS, kept), f"{name}: {stats['rows']}"
        assert len(keys) in (0, N_ROWS), f"{name} has {len(keys)} rows"
        if name == "a":
            found = (len(keys), {*shards})
            assert found == (N_ROWS, {*range(N_SHARDS)}), f"a has {found[0]} rows in the shards {sorted(shards)}"

    def check_fresh_rewrite(self, arguments: list[str]) -> None:
        """Check that a rewrite has the bytes of one into a new folder, unless rows were taken down from it in place."""
        if self.models["b"].own:
            return
        fresh = self.path("fresh")
        self.expect((0, 4), [item if not item.startswith("output=") else f"output={fresh}" for item in arguments])
        ours, theirs = (ask(partial(digests_of, path)) for path in (self.path("b"), fresh))
        assert ours == theirs, f"b has other bytes than a fresh rewrite: {sorted({*ours.items()} ^ {*theirs.items()})}"


def wrong(output: Path) -> set[int]:
    """The shards that have other files than their manifests name."""
    return {index for index, shard in shards_of(output).items() if shard.wrong}


def unindexed(output: Path) -> set[int]:
    """The shards whose index was broken alone: verify has removed it, and the next run of the job restores it."""
    return {index for index, shard in shards_of(output).items() if [name for name in shard.wrong if "_index" in name]}


def digests_of(output: Path) -> dict[str, str]:
    """SHA-256 of the files of the finished shards."""
    files = [(index, *item) for index, shard in shards_of(output).items() for item in shard.digests.items()]
    return {f"{name.partition('/')[0]}/{index}{Path(name).suffix}": value for index, name, value in files}


def rows_in(shard: Shard) -> set[int]:
    """The numbers of the rows of a shard."""
    first = shard.manifest["plan"]["first_row"]
    return set(range(first, first + shard.manifest["plan"]["n_rows"]))


def plain(manifest: Any) -> Any:
    """A manifest without what tells how its shard came about."""
    return {name: value for name, value in manifest.items() if name not in ("retry", "runtime")}
