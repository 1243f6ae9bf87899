"""Files that may keep rows which were taken down: below the output, in pages, and in the explorer's cache."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hypergrit_common.disk import temporary_name
from pipeline.commands import explore, takedown
from pipeline.commands.verify import VerifyOptions, verify
from pipeline.config import ReportConfig
from pipeline.explore.index import cached_index, open_output, place_of
from pipeline.output.commit import open_output as hold_output
from pipeline.output.manifest import failed_shard, read_failed, write_failed
from pipeline.output.record import write_command
from pipeline.output.store import Store
from pipeline.output.takedowns import strangers, unread
from pipeline.read.takedown import read_takedown
from pipeline.read.types import Task
from pipeline.report.cards import pick_pictures
from pipeline.report.stats import add_shards, build_stats, write_rollup
from pipeline.summary.totals import Summary, SummaryFile
from tests.pipeline.commands.derive.outputs import LOCAL, kept, make_output, picture
from tests.pipeline.output.test_lease import dead_process

Printed = pytest.CaptureFixture[str]
DRAFT = "train/00000.tar.other-1-1.abcd.tmp"


@pytest.fixture
def before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An output with a report, and a list of its first row."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = [kept(picture(n), url=f"http://x/{n}") for n in range(2)]
    make_output(tmp_path / "before", {0: rows}, "write.formats=[arrow,grit,train]")
    assert explore.main([str(tmp_path / "before"), "report=true"]) == 0
    (tmp_path / "list.txt").write_text("http://x/0\n")
    return tmp_path / "before"


@pytest.fixture
def after(before: Path) -> Path:
    """The output without the row."""
    output = Path(shutil.copytree(before, before.parent / "after"))
    assert run_takedown(output) == 0
    assert verify(str(output), VerifyOptions(processes=1)) == 0
    return output


def run_takedown(output: Path) -> int:
    list_file = output.parent / "list.txt"
    return takedown.main([str(output), f"list={list_file}", *LOCAL])


def copy_page(before: Path, after: Path) -> None:
    (after / "explorer/data").mkdir(parents=True)
    (after / "explorer/data/rows.json").write_text("http://x/0")


@pytest.mark.parametrize(
    ("inject", "named", "code"),
    [
        (lambda before, after: shutil.copy(before / "train/00000.tar", after / DRAFT), DRAFT, 0),
        (lambda before, after: shutil.copy(before / "report.html", after), "report.html", 0),
        (lambda before, after: shutil.copy(before / "arrow/00000.arrow", after / "extra.arrow"), "extra.arrow", 3),
        (lambda before, after: shutil.copy(before / "arrow/00000.arrow", after / "arrow/0.arrow"), "arrow/0.arrow", 3),
        (copy_page, "explorer/data/rows.json", 3),
    ],
)
def test_verify_names_what_may_have_the_row_and_takedown_removes_it_or_says_so(
    before: Path, after: Path, capsys: Printed, inject: Callable[[Path, Path], object], named: str, code: int
) -> None:
    inject(before, after)
    assert verify(str(after), VerifyOptions(processes=1)) == 1
    assert f"{named}: " in capsys.readouterr().out
    assert run_takedown(after) == code
    assert (after / named).exists() == (code == 3 or named == "report.html")
    assert verify(str(after), VerifyOptions(processes=1)) == (1 if code else 0)


def test_a_takedown_removes_sums_and_answers_with_texts_of_rows(before: Path) -> None:
    names = ["_rollup/00000.json.zst", "_recaptions/000000000000.json"]
    names += [f"{name}.other-1-1.abcd.tmp" for name in names]
    for path in map(before.joinpath, names):
        path.parent.mkdir(exist_ok=True)
        path.write_text("http://x/0")
    (before / "_manifests/00000.json").unlink()  # so that no report replaces them
    assert run_takedown(before) == 0
    assert not any((before / name).exists() for name in names)


def test_a_takedown_removes_the_messages_of_failed_shards_which_may_quote_rows(before: Path) -> None:
    store, text = Store(str(before)), "row 0, http://x/0: no"
    write_command(store, "rewrite", range(3), [], [])
    record = failed_shard(Task(1, 8, None), "prepare", text, f"Traceback\n{text}", attempts=1)
    write_failed(store, record)
    for n, other in ((2, {**record, "rows": text}), (7, {**record, "shard": 7}), (8, record), (9, None)):
        (before / f"_failed/0000{n}.json").write_text(json.dumps(other))
    assert run_takedown(before) == 0
    assert [path.name for path in (before / "_failed").iterdir()] == ["00001.json"]
    (failed,) = read_failed(store)
    assert (failed["rows"], failed["step"], "http://x/0" in str(failed)) == (8, "prepare", False)


def test_locks_of_a_job_are_files_of_the_output(after: Path) -> None:
    for name in ("_manifests/00000.json.lock.tmp", "_lease.json.lock"):
        (after / name).touch()
    assert verify(str(after), VerifyOptions(processes=1)) == 0


EMPTY_ROLLUP = SummaryFile({}, Summary()).to_bytes()


@pytest.mark.parametrize(
    "name",
    ["_failed/00007.json", "_timings/00007.json", "_timings/rollup-00003.json", "_dedupe/00007.drops.arrow",
     "_recaptions/000000000000.json", "_rollup/00000.json.zst", "_rollup/00003.json.zst"],
)  # fmt: skip
def test_verify_names_files_that_no_command_reads_and_takedown_removes_them(
    after: Path, capsys: Printed, name: str
) -> None:
    (after / name).parent.mkdir(exist_ok=True)
    (after / name).write_bytes(EMPTY_ROLLUP if name.startswith("_rollup") else b"http://x/0")
    assert verify(str(after), VerifyOptions(processes=1)) == 1
    assert f"{name}: no command reads it (1 such files)" in capsys.readouterr().out
    assert run_takedown(after) == 0
    assert not (after / name).exists()
    assert verify(str(after), VerifyOptions(processes=1)) == 0


def test_files_of_planned_shards_and_the_rollup_of_the_present_ones_are_left_by_verify(after: Path) -> None:
    store = Store(str(after))
    write_command(store, "rewrite", range(2), [], [])
    for name in ("_failed/00001.json", "_timings/00001.json", "_dedupe/00007.drops.arrow"):
        store.write(name, "{}")
    sums, sizes = add_shards(store, [0], keep=False)
    write_rollup(store, 0, sums, sizes)
    assert unread(store) == []


def test_names_of_others_are_named_and_not_removed(after: Path, capsys: Printed) -> None:
    names = ["_recaptions/00000-0.json", "_rollup/notes.md", "_timings/rollup-x.json", "notes.tmp", "train/a.lock.tmp"]
    for path in map(after.joinpath, names):
        path.parent.mkdir(exist_ok=True)
        path.write_text("http://x/0")
        os.utime(path, (0, 0))
    Store(str(after)).remove_drafts()
    build_stats(str(after), holds_lease=True)
    assert run_takedown(after) == 3
    assert all((after / name).exists() for name in names)
    capsys.readouterr()
    assert verify(str(after), VerifyOptions(processes=1)) == 1
    said = capsys.readouterr().out
    assert all(f"{name}: no file of the output (5 such files)" in said for name in names)


@pytest.mark.parametrize("url", ["{after}", "memory://probes"])
def test_the_probe_of_a_dead_process_is_removed_by_the_next_command(after: Path, url: str) -> None:
    store = Store(url.format(after=after))
    live, dead = temporary_name(".writable"), f".writable.{dead_process()}.0123abcd.tmp"
    for name in (live, dead):
        store.write(name, "")
    with hold_output(store):
        pass
    assert [name for name in (live, dead) if name in store.names("")] == [live]
    store.remove([live])


def test_a_report_beside_an_interrupted_takedown_shows_none_of_its_rows(before: Path) -> None:
    store, manifests = open_output(str(before))
    assert len(pick_pictures(store, manifests, ReportConfig())) == 2
    store.record_takedowns(read_takedown(str(before.parent / "list.txt")))
    assert [picture.row["url"] for picture in pick_pictures(store, manifests, ReportConfig())] == ["http://x/1"]


@pytest.mark.parametrize("setting", ["static={page}", "row=0"])
def test_no_page_shows_rows_of_an_interrupted_takedown(before: Path, capsys: Printed, setting: str) -> None:
    def show(name: str) -> int:
        return int(explore.main([str(before), setting.format(page=before.parent / name)]))

    assert show("first") == 0
    Store(str(before)).record_takedowns(read_takedown(str(before.parent / "list.txt")))
    assert show("second") == 2
    assert "still has rows that were taken down; run hypergrit takedown with" in capsys.readouterr().err
    assert run_takedown(before) == 0
    assert show("third") == 0


def test_other_files_of_an_output_without_takedowns_are_nobodys_business(before: Path) -> None:
    (before / "README.md").write_text("ours")
    assert verify(str(before), VerifyOptions(processes=1)) == 0


def test_files_behind_a_link_to_the_output_itself_are_listed_once(after: Path) -> None:
    (after / "loop").symlink_to(after)
    (after / "extra").write_text("x")
    assert strangers(Store(str(after))) == ["extra", "loop"]


@pytest.mark.parametrize("key", ["static", "marks", "cache"])
def test_no_verb_writes_rows_into_an_output(before: Path, capsys: Printed, key: str) -> None:
    (before.parent / "alias").symlink_to(before)
    path = before.parent / "alias" / "arrow" / "x"
    assert explore.main([str(before), f"{key}={path}"]) == 2
    assert f"{key}={path} is within the output {before}" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_a_takedown_leaves_no_index_of_the_explorer(before: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    (before.parent / "alias").symlink_to(before)
    store, manifests = open_output(str(before.parent / "alias"))

    def explore_it(*_: object) -> None:
        assert cached_index(store, manifests, None).folder.is_relative_to(place_of(store))

    if moment == "before":
        explore_it()
    else:
        monkeypatch.setattr(takedown, "remove_abandoned_folders", explore_it)
    assert run_takedown(before) == 0
    assert not place_of(store).exists()


def test_a_takedown_that_is_killed_leaves_no_report(before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(takedown, "remove_leftovers", kill)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        raise SystemExit(run_takedown(before))
    assert not (before / "report.html").exists()
