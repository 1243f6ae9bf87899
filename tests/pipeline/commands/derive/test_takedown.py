"""Takedown: the rows that a list names leave all formats, and nothing else changes."""

import base64
import errno
import hashlib
import itertools
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.near_duplicates import normal_url
from hypergrit_common.tar import iter_members, reader_of
from pipeline import load_config, make_provenance, plan_shards
from pipeline.commands import takedown
from pipeline.commands.verify import VerifyOptions, verify
from pipeline.config import content_hash
from pipeline.explore.index import place_of
from pipeline.output.commit import Staging
from pipeline.output.contents import list_contents
from pipeline.output.manifest import plan_from_json
from pipeline.output.source import Source, read_config, read_table
from pipeline.output.store import Store
from pipeline.output.write.stage import write_shard
from pipeline.read.takedown import TAKEN_DOWN, Digests, TakedownList, parse_takedown, read_takedown, refuse
from pipeline.report.cards import DroppedPicture, Thumbnail, dropped_file
from pipeline.run import derived
from pipeline.run.loop import Run
from pipeline.run.steps import Steps
from pipeline.summary.totals import decompressed
from schemas.files import DROPPED_FILE, FILES, JOURNAL_FOLDER
from tests.pipeline.commands.derive.outputs import (
    HOSTS,
    LOCAL,
    kept,
    killed_before_file,
    make_output,
    picture,
    run_rewrite,
    write_output,
)
from tests.pipeline.commands.derive.rows import manifests_of, rows_of, stats_of
from tests.pipeline.commands.verify.damage import flip
from tests.pipeline.here import compute_here
from tests.pipeline.jobs import WITHOUT_MODELS, hash_output, run_job
from tests.pipeline.output.test_lease import dead_process

ALL = ("train", "grit", "arrow")
FORMATS = [ALL, ("train",), ("grit", "train"), ("arrow",)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished output in all formats."""
    output = tmp_path_factory.mktemp("takedown") / "out"
    write_output(output)
    return output


@pytest.fixture
def output(source: Path, tmp_path: Path) -> Path:
    """A copy of the output."""
    return Path(shutil.copytree(source, tmp_path / "out"))


@pytest.fixture(scope="module")
def finished(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a job without models."""
    found = tmp_path_factory.mktemp("finished") / "out"
    assert run_job(tars, found, *WITHOUT_MODELS) == 0
    return found


def run_takedown(output: Path | str, path: Path, *arguments: str) -> int:
    return takedown.main([str(output), f"list={path}", *LOCAL, *arguments])


def check(output: Path) -> int:
    """The exit code of verify."""
    return verify(str(output), VerifyOptions(processes=1))


def write_list(folder: Path, *entries: str) -> Path:
    """Write a takedown list."""
    path = folder / "list.txt"
    path.write_text("\n".join(entries) + "\n")
    return path


def entries_for(source: Path) -> list[str]:
    """A URL of a row of shard 0, and the hash of a kept row of shard 1."""
    kept = [row for row in rows_of(source) if row["status"] == "kept"]
    second = next(row for row in kept if int(row["key"]) in range(4, 8))
    return [str(kept[0]["url"]), str(second["sha256"])]


def expected(source: Path, output: Path, entries: list[str], formats: tuple[str, ...]) -> None:
    """Write the shards that the write stage makes of the rows without what the list names."""
    found, parsed = Source(str(source)), parse_takedown(entries, "list")
    config = read_config(found.store, [f"formats=[{','.join(formats)}]"])
    for index, manifest in found.manifests.items():
        table = read_table(found.store, found.manifests[index])
        kinds = [parsed.match(row["url"], row["sha256"]) for row in table.to_pylist()]
        plan = plan_from_json(manifest["plan"])
        provenance = manifest["provenance"] | {"config_hash": content_hash(config)}
        write_shard(refuse(table, kinds), plan, config.write, str(output), provenance)


@pytest.mark.parametrize("formats", FORMATS, ids="-".join)
def test_all_formats_are_those_of_a_job_without_the_rows(
    source: Path, tmp_path: Path, formats: tuple[str, ...]
) -> None:
    write_output(tmp_path / "out", formats)
    entries = entries_for(source)
    assert run_takedown(tmp_path / "out", write_list(tmp_path, *entries)) == 0
    expected(source, tmp_path / "job", entries, formats)
    found, wanted = hash_output(tmp_path / "out"), hash_output(tmp_path / "job")
    if formats == ALL:
        assert found == wanted
        return
    # train/ and grit/ lack the counts of removed boxes and phrases
    no_manifests = [{k: v for k, v in hashes.items() if not k.startswith("_man")} for hashes in (found, wanted)]
    assert no_manifests[0] == no_manifests[1]
    for ours, theirs in zip(manifests_of(tmp_path / "out"), manifests_of(tmp_path / "job"), strict=True):
        assert (ours["counts"], ours["boxes"], ours["phrases"]) == (
            *(theirs["counts"], theirs["boxes"], theirs["phrases"]),
        )


def test_nothing_of_the_rows_is_left_but_their_keys(source: Path, output: Path, tmp_path: Path) -> None:
    before = {row["key"]: row for row in rows_of(output)}
    assert run_takedown(output, write_list(tmp_path, "example.org", "http://example.com/2.jpg")) == 0
    gone = [row for row in rows_of(output) if row["reason"] == "taken_down"]
    assert {row["key"] for row in gone} == {key for key in before if int(key) % 3 == 0 or int(key) == 2}
    for row in gone:
        left = {"key", "source", "source_row", "status", "stage", "reason", "detail"}
        assert {name for name, value in row.items() if value is not None} == left
    texts = [path.read_bytes() for path in sorted(output.rglob("*")) if path.is_file()]
    originals, summaries = (
        [decompressed(path.read_bytes()) for path in (folder / "_summaries").iterdir()] for folder in (source, output)
    )
    assert any(b"img.example.org" in text for text in originals)
    texts += summaries
    assert len(summaries) == len(manifests_of(output))
    assert not any(b"img.example.org" in text for text in texts)
    for name in (FILES["train"][0], FILES["grit"][0]):
        with open(output / name.path(0), "rb") as file:
            keys = {member.name.partition(".")[0] for member in iter_members(reader_of(file), 0, file.seek(0, 2))}
        assert not keys & {row["key"] for row in gone}
    stats = stats_of(output)["rows"]
    assert stats["dropped"]["read"]["taken_down"] == len(gone)
    assert stats["read"] == stats["kept"] + sum(sum(n.values()) for n in stats["dropped"].values())


def test_another_row_keeps_the_same_picture_and_a_hash_names_all_copies(tmp_path: Path) -> None:
    image, out = picture(1), tmp_path / "out"
    rows = [kept(image, url="http://x/0"), kept(image, url="http://x/1", caption_original="as http://x/0 shows")]
    make_output(out, {0: rows[:1], 1: rows[1:]}, rows_per_shard=1)
    assert run_takedown(out, write_list(tmp_path, "http://x/0")) == 0
    assert [(row["reason"], row["caption_original"]) for row in rows_of(out)] == [
        ("taken_down", None),
        (None, "as http://x/0 shows"),
    ]
    assert run_takedown(out, write_list(tmp_path, rows[0]["sha256"])) == 0
    assert {row["reason"] for row in rows_of(out)} == {"taken_down"}


def test_a_record_of_earlier_versions_is_obeyed_and_written_anew(source: Path, output: Path, tmp_path: Path) -> None:
    entries = entries_for(source)
    digests = [hashlib.sha256((normal_url(entry) or entry).encode()).hexdigest() for entry in entries]
    old = {"urls": digests[:1], "without_queries": digests[:1], "hosts": [], "images": digests[1:]}
    (output / "_takedowns.json").write_text(json.dumps(old))
    assert Store(str(output)).takedowns == parse_takedown(entries, "list")
    assert run_takedown(output, write_list(tmp_path, "example.com")) == 0
    known = json.loads((output / "_takedowns.json").read_text())
    assert {len(base64.b64decode(known[name])) for name in ("urls", "hosts", "images")} == {32}
    assert check(output) == 0


def test_a_record_is_parsed_once_in_a_process_and_again_after_a_change(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed, parse = list[Store](), Store.parse_takedowns

    def counting(store: Store) -> TakedownList:
        parsed.append(store)
        return parse(store)

    monkeypatch.setattr(Store, "parse_takedowns", counting)
    Store(str(output)).record_takedowns(parse_takedown(["a.example"], "list"))
    for host in ("b.example", "c.example"):
        parsed.clear()
        Store(str(output)).record_takedowns(parse_takedown([host], "list"))
        for _ in range(5):
            assert Store(str(output)).takedowns.match_url(f"http://{host}/1") == "host"
        assert len(parsed) <= 2


@pytest.mark.parametrize("seed", range(20))
def test_digests_are_a_set(seed: int) -> None:
    rng = random.Random(seed)
    some, others = ({str(rng.randrange(60)) for _ in range(rng.randrange(40))} for _ in range(2))
    mine, theirs = Digests.of(some), Digests.of(others)
    assert (mine | theirs, mine - theirs) == (Digests.of(some | others), Digests.of(some - others))
    assert len(mine) == len(list(mine)) == len(some)
    assert {text for text in some | others if text in mine} == some


def test_a_shard_without_listed_rows_keeps_its_files_and_a_second_run_changes_nothing(
    output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [{path: path.stat().st_ino for path in output.rglob(f"{i:05d}.*")} for i in range(3)]
    path = write_list(tmp_path, "http://img.example.org/0.jpg")
    assert run_takedown(output, path) == 0
    assert "1 row in 1 of 3 shards taken down" in capsys.readouterr().out
    after = [{path: path.stat().st_ino for path in output.rglob(f"{i:05d}.*")} for i in range(3)]
    assert after[1:] == before[1:]
    hashes = hash_output(output)
    assert run_takedown(output, path) == 0
    assert "0 rows in 0 of 3 shards taken down" in capsys.readouterr().out
    assert hash_output(output) == hashes


def test_a_dry_run_lists_the_rows_and_writes_nothing(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    assert run_takedown(source, write_list(tmp_path, "example.net"), "dry_run=true") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("shard 0 row 000000000001 host: http://cdn.example.net/1.jpg ")
    assert lines[-1] == "3 rows in 2 of 3 shards would be taken down; nothing was changed"
    assert len(lines) == 4
    assert {path: path.stat().st_mtime_ns for path in source.rglob("*")} == before


def test_a_row_is_named_by_its_key_or_id_and_other_rows_of_its_picture_go_too(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run_takedown(source, write_list(tmp_path, "row:000000000001", "# none", "row:000000000002"), "dry_run=true")
        == 0
    )
    listed = capsys.readouterr().out
    assert "row 000000000001 url: http://cdn.example.net/1.jpg" in listed
    assert "row 000000000002 url: " in listed
    assert run_takedown(source, write_list(tmp_path, "# none", ""), "dry_run=true") == 2
    assert "has no entries" in capsys.readouterr().err
    assert run_takedown(source, write_list(tmp_path, "# none", "row:nobody"), "dry_run=true") == 2
    assert "line 2: 'nobody' has no row in arrow/" in capsys.readouterr().err
    with pytest.raises(UserError, match="line 1: 'row:1' is a row of an output; give this list to hypergrit takedown"):
        read_takedown(str(write_list(tmp_path, "row:1")))


IDS = ("3", "1", "000000000001", " A ", "a/b", None)
"""Ids of the rows 0 to 5: numbers that are keys of other rows, and one with blanks."""


@pytest.mark.parametrize(
    ("entry", "gone"),
    [
        ("row:1", [1]),  # an id, and as a key itself
        ("row:3", [0]),  # the id of row 0 comes before the key of row 3
        ("row:4", "line 1: '4' is no id; the row at this position has the key 000000000004"),
        ("row:000000000004", [4]),
        ("row:000000000005 ", [5]),
        ("row: A ", [3]),
        ("row:http://x/2", [2]),
        ("row:000000000001", "line 1: '000000000001' names the rows 000000000001, 000000000002"),
        (" row:000000000001\t", "names the rows 000000000001, 000000000002"),
        ("row:A", "line 1: 'A' has no row"),
    ],
)
def test_an_id_comes_before_a_key_and_what_names_two_rows_removes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], entry: str, gone: list[int] | str
) -> None:
    rows = [kept(picture(n), url=f"http://x/{n}") | {"id": name} for n, name in enumerate(IDS)]
    make_output(tmp_path / "out", {0: rows}, "formats=[arrow]")
    code = run_takedown(tmp_path / "out", write_list(tmp_path, entry), "dry_run=true")
    out, err = capsys.readouterr()
    if isinstance(gone, str):
        assert code == 2
        assert gone in err
    else:
        assert [int(line.split()[3]) for line in out.splitlines()[:-1]] == gone


def test_a_list_of_ids_is_finished_by_the_same_command_and_holds_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, names = tmp_path / "out", ("2", "blue", None, "5")
    rows = [kept(picture(n), url=f"http://x/{n}") | {"id": name} for n, name in enumerate(names)]
    make_output(output, {0: rows[:2], 1: rows[2:]})
    path = write_list(tmp_path, "row:2", "row: blue", "row:5")
    with killed_before_file(7):  # after the first shard, whose ids are gone
        assert run_takedown(output, path) == 130
    assert [row["reason"] for row in rows_of(output)] == [TAKEN_DOWN, TAKEN_DOWN, None, None]
    for _ in range(2):  # row:2 is not taken for the key of the third row now
        assert run_takedown(output, path) == 0
        assert [row["reason"] for row in rows_of(output)] == [TAKEN_DOWN, TAKEN_DOWN, None, TAKEN_DOWN]
    assert run_takedown(output, write_list(tmp_path, "row:brown")) == 2
    assert "'brown' has no row" in capsys.readouterr().err


def test_names_of_rows_hold_for_one_output_and_sources_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, number in (("a", 0), ("b", 2)):
        rows = [kept(picture(n), url=f"http://x/{n}") | {"id": f"{n % 2}"} for n in (number, number + 1)]
        make_output(tmp_path / name, {0: rows})
    joined = tmp_path / "joined"
    assert run_rewrite(tmp_path / "a", joined, f"source={tmp_path / 'b'}") == 0
    for line, text in (("row:1", "names the rows"), ("row:000000000001", "may be that of another row")):
        assert run_takedown(joined, write_list(tmp_path, line)) == 2
        assert text in capsys.readouterr().err
    assert run_takedown(tmp_path / "b", write_list(tmp_path, "row:1"), "dry_run=true") == 0
    address = capsys.readouterr().out.split()[5]
    (cached := place_of(Store(str(joined)))).mkdir(parents=True)  # an index of the explorer
    assert run_takedown(joined, write_list(tmp_path, address)) == 0
    assert f"unless they are taken down there too: {tmp_path / 'a'}, {tmp_path / 'b'}" in capsys.readouterr().out
    assert [row["reason"] for row in rows_of(joined)] == [None, None, None, TAKEN_DOWN]
    assert not cached.exists()


@pytest.mark.parametrize("n", range(6))
def test_a_kill_between_two_files_loses_nothing(source: Path, output: Path, tmp_path: Path, n: int) -> None:
    path = write_list(tmp_path, *entries_for(source))
    with killed_before_file(n):
        assert run_takedown(output, path) == 130
    assert [problem.file for problem in list_contents(Store(str(output))).problems] == [f"{JOURNAL_FOLDER}/00000.json"]
    assert run_takedown(output, path) == 0
    expected(source, tmp_path / "job", entries_for(source), ALL)
    assert hash_output(output) == hash_output(tmp_path / "job")
    assert not list((output / JOURNAL_FOLDER).glob("*"))


def test_a_worker_that_fails_while_it_replaces_a_shard_loses_nothing(
    source: Path, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_list(tmp_path, *entries_for(source))
    publish = Staging.publish_file

    def full(staging: Staging, relative: str) -> None:
        if relative.startswith("_manifests"):
            raise OSError(errno.ENOSPC, "No space left on device")
        publish(staging, relative)

    monkeypatch.setattr(Staging, "publish_file", full)
    assert run_takedown(output, path, "ray.retries=0") == 3
    monkeypatch.undo()
    expected(source, tmp_path / "job", entries_for(source), ALL)
    assert hash_output(output) == hash_output(tmp_path / "job")


@pytest.mark.parametrize("damage", ["journal", "draft", "no draft"])
def test_a_damaged_replacement_locks_nothing(source: Path, output: Path, tmp_path: Path, damage: str) -> None:
    path = write_list(tmp_path, *entries_for(source))
    with killed_before_file(0):
        assert run_takedown(output, path) == 130
    (journal,) = (output / JOURNAL_FOLDER).glob("*.json")
    draft = next((output / "train").glob("*.tmp"))
    if damage == "journal":
        journal.write_text('{"files": {"train/00000.tar": {"draft": "../secret"}}}')
    elif damage == "draft":
        draft.write_bytes(draft.read_bytes()[:-1] + b"x")
    else:
        draft.unlink()
    assert run_takedown(output, path) == 0  # removes what is left of the shard
    assert not list(output.rglob("00000.tar"))
    assert not list(output.rglob("*.tmp"))
    assert len(manifests_of(output)) == 2


@pytest.mark.parametrize("moment", ["before", "between", "report"])
def test_a_killed_takedown_is_finished_by_the_same_command_and_stops_no_other(
    source: Path, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    path = write_list(tmp_path, *entries_for(source))

    def killed(*arguments: Any) -> Iterator[Any]:
        yield from itertools.islice(compute_here(*arguments), {"before": 0, "between": 1, "report": 3}[moment])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pipeline.run.loop.compute_local", killed)
        assert run_takedown(output, path) == 130
    assert check(output) == (0 if moment == "report" else 1)
    assert run_rewrite(output, tmp_path / "new") == 0
    assert check(tmp_path / "new") == 0  # has none of the rows
    assert run_takedown(output, write_list(tmp_path, "example.com")) == 0  # finishes the other list too
    assert check(output) == 0
    gone = [row for row in rows_of(output) if row["reason"] == "taken_down"]
    kept = [row["key"] for row in rows_of(source) if row["url"] == entries_for(source)[0]]
    assert {*kept} <= {row["key"] for row in gone}


def test_a_takedown_is_permanent(tars: Path, finished: Path, tmp_path: Path) -> None:
    output = Path(shutil.copytree(finished, tmp_path / "out"))
    rows = [row for row in rows_of(output) if row["status"] == "kept"]
    digests, before = {row["sha256"] for row in rows[:2]}, hash_output(output)
    assert run_takedown(output, write_list(tmp_path, *digests)) == 0
    assert not any(digest.encode() in (output / "_takedowns.json").read_bytes() for digest in digests)
    after = hash_output(output)
    assert after != before
    for path in (*(output / "_manifests").iterdir(), *(output / "train").iterdir()):
        path.unlink()
    assert run_job(tars, output, *WITHOUT_MODELS) == 0
    assert not digests & {row["sha256"] for row in rows_of(output)}
    assert stats_of(output)["rows"]["dropped"]["download"]["taken_down"] == len(digests)
    assert check(output) == 0
    assert run_rewrite(output, tmp_path / "both", f"source={finished}", "mixed=true") == 0
    assert not digests & {row["sha256"] for row in rows_of(tmp_path / "both")}  # though the second source has them
    assert check(tmp_path / "both") == 0


def test_the_same_rewrite_after_a_takedown_of_its_output_brings_no_text_of_the_first_row(
    finished: Path, tmp_path: Path
) -> None:
    new, caption = tmp_path / "new", str(rows_of(finished)[0]["caption_original"])
    told = ("_job.json", "stats.json", "report.html")
    assert run_rewrite(finished, new) == 0
    assert all(caption in (new / name).read_text() for name in told)
    assert run_takedown(new, write_list(tmp_path, f"row:{rows_of(new)[0]['key']}")) == 0
    for _ in range(2):
        assert not any(caption in (new / name).read_text() for name in told)
        assert run_rewrite(finished, new) == 0


@pytest.mark.parametrize(("owner", "name"), [(Run, "finish"), (derived, "report")])
def test_a_rewrite_obeys_a_takedown_of_its_source_that_ends_before_it(
    source: Path, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    owner: Any, name: str,
) -> None:  # fmt: skip
    new, entries, step = tmp_path / "new", entries_for(source), getattr(owner, name)

    def last(*arguments: Any) -> Any:
        result = step(*arguments)
        assert run_takedown(output, write_list(tmp_path, *entries)) == 0
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, last)
        assert run_rewrite(output, new) == 2
    assert "run the same command again with overwrite=true" in capsys.readouterr().err
    assert not (new / "report.html").exists()
    assert run_rewrite(output, new, "overwrite=true") == 0
    assert not {*entries} & {value for row in rows_of(new) for value in (row["url"], row["sha256"])}
    assert check(new) == 0


def test_a_finished_shard_with_rows_taken_down_since_is_made_again(source: Path, output: Path, tmp_path: Path) -> None:
    new, entries = tmp_path / "new", entries_for(source)
    assert run_rewrite(output, new) == 0
    Store(str(output)).record_takedowns(
        parse_takedown(entries[:1], "list")
    )  # a takedown that was killed, then a whole one
    untouched = {path.name: path.stat().st_mtime_ns for path in (new / "arrow").iterdir()}
    assert run_rewrite(output, new) == 0
    assert entries[0] not in {row["url"] for row in rows_of(new)}
    changed = [path.name for path in (new / "arrow").iterdir() if path.stat().st_mtime_ns != untouched[path.name]]
    assert changed == ["00000.arrow"]
    assert check(new) == 0
    assert run_takedown(output, write_list(tmp_path, entries[0])) == 0
    assert run_rewrite(output, new) == 2
    assert run_rewrite(output, new, "overwrite=true") == 0
    assert check(new) == 0


def test_verify_reports_listed_rows_wherever_they_are(
    source: Path, output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(output / "_manifests/00000.json", tmp_path / "00000.json")
    entries = entries_for(source)
    assert run_takedown(output, write_list(tmp_path, entries[1])) == 0
    Store(str(output)).record_takedowns(parse_takedown(entries, "list"))
    assert check(output) == 1
    assert "was taken down, but is here" in capsys.readouterr().out
    (output / "_manifests/00000.json").unlink()
    assert check(output) == 1
    text = capsys.readouterr().out
    assert "was taken down, but is here; run hypergrit takedown again" in text
    (output / "arrow/00000.arrow").write_bytes(b"damaged")
    assert check(output) == 1
    assert "may have rows that were taken down; run hypergrit takedown again" in capsys.readouterr().out
    assert run_takedown(output, write_list(tmp_path, entries[0])) == 0
    assert check(output) == 0
    assert not list(output.rglob("00000.tar"))


def test_drafts_of_lost_workers_and_files_without_a_manifest_are_removed(
    source: Path, output: Path, tmp_path: Path
) -> None:
    draft = output / "arrow" / "00001.arrow.deadbeef-1-1.0123abcd.tmp"
    shutil.copy(output / "arrow/00001.arrow", draft)
    (output / "_manifests/00001.json").write_text("damaged")
    assert run_takedown(output, write_list(tmp_path, *entries_for(source))) == 0
    assert not draft.exists()
    assert not list(output.rglob("00001.*"))
    assert len(manifests_of(output)) == 2


def test_an_output_whose_shards_are_all_in_the_queue_is_taken_down_too(
    source: Path, output: Path, tmp_path: Path
) -> None:
    path = write_list(tmp_path, *entries_for(source))
    for manifest in (output / "_manifests").iterdir():
        manifest.unlink()
    assert run_takedown(output, path) == 0
    assert not [*(output / "train").iterdir(), *(output / "arrow").iterdir()]
    assert len(Store(str(output)).takedowns) == 2


def test_thumbnails_of_a_shard_that_was_made_again_and_folders_of_killed_verbs_are_removed(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_list(tmp_path, f"http://{HOSTS[0]}/6.jpg")
    assert run_takedown(output, path) == 0
    Store(str(output)).write_bytes(
        DROPPED_FILE.path(1),
        dropped_file([DroppedPicture(f"{6:012d}", "score", "low_score", Thumbnail(b"jpeg", 1, 1))]),
    )
    Store(str(output)).write_bytes(
        DROPPED_FILE.path(0),
        dropped_file([DroppedPicture(f"{1:012d}", "score", "low_score", Thumbnail(b"jpeg", 1, 1))]),
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"hypergrit-{dead_process()}.abcdefgh"
    folder.mkdir()
    assert run_takedown(output, path) == 0
    assert not folder.exists()
    assert [path.name for path in (output / "_dropped").iterdir()] == ["00000.arrow"]


@pytest.mark.parametrize("formats", [("arrow",), ("train", "grit")])
def test_verify_finds_the_thumbnail_of_a_row_that_was_taken_down(
    formats: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, path = tmp_path / "out", write_list(tmp_path, f"http://{HOSTS[0]}/6.jpg")
    write_output(output, formats)
    assert run_takedown(output, path) == 0
    pictures = [DroppedPicture(f"{n:012d}", "score", "low_score", Thumbnail(b"jpeg", 1, 1)) for n in (6, 7)]
    for shown, code in ((pictures[1:], 0), (pictures, 1)):
        Store(str(output)).write_bytes(DROPPED_FILE.path(1), dropped_file(shown))
        assert check(output) == code
    assert "_dropped/00001.arrow: row 000000000006 was taken down" in capsys.readouterr().out


def test_an_output_keeps_the_list_of_its_job(tars: Path, finished: Path, tmp_path: Path) -> None:
    output, row = tmp_path / "out", next(row for row in rows_of(finished) if row["status"] == "kept")
    path = write_list(tmp_path, digest := row["sha256"])
    assert run_job(tars, output, f"read.takedown={path}", *WITHOUT_MODELS) == 0
    assert (output / "_takedowns.json").read_text() == json.dumps(read_takedown(str(path)).to_json()) + "\n"
    assert digest not in {row["sha256"] for row in rows_of(output)}
    before = hash_output(output)
    (output / "_manifests/00000.json").unlink()
    assert run_job(tars, output, *WITHOUT_MODELS) == 0  # without the list
    assert hash_output(output) == before
    write_list(tmp_path, HOSTS[0])  # another list at the same path
    assert run_job(tars, tmp_path / "second", f"read.takedown={path}", *WITHOUT_MODELS) == 0
    assert json.loads((tmp_path / "second" / "_takedowns.json").read_text()) == read_takedown(str(path)).to_json()


def test_thumbnails_of_dropped_rows_that_no_format_has_are_removed(tmp_path: Path) -> None:
    output, path = tmp_path / "out", write_list(tmp_path, f"http://{HOSTS[0]}/6.jpg")
    write_output(output, ("train",))
    Store(str(output)).write_bytes(
        DROPPED_FILE.path(1),
        dropped_file([DroppedPicture(f"{6:012d}", "score", "low_score", Thumbnail(b"jpeg", 1, 1))]),
    )
    assert run_takedown(output, path) == 0
    assert not list((output / "_dropped").iterdir())


def test_the_job_refuses_the_rows_of_its_list(
    tars: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Path(shutil.copytree(finished, tmp_path / "out"))
    digest = next(row["sha256"] for row in rows_of(output) if row["status"] == "kept")
    path = write_list(tmp_path, digest)
    before = hash_output(output)
    assert run_job(tars, output, f"read.takedown={path}", *WITHOUT_MODELS) == 2  # finished shards may have its rows
    assert f"run hypergrit takedown {output} list={path} first" in capsys.readouterr().err
    assert hash_output(output) == before
    config = load_config(
        [f"input={tars}", f"output={output}", "rows_per_shard=4", f"read.takedown={path}", *WITHOUT_MODELS]
    )
    steps = Steps(config, make_provenance(config))
    plan = plan_shards(config.input, 4, None, config.read)[0]
    table, _ = steps.download(plan, steps.read(plan))
    refused = [row for row in table.to_pylist() if row["status"] == "dropped"]
    assert [(row["stage"], row["reason"], row["detail"]) for row in refused] == [("download", "taken_down", "sha256")]
    assert {refused[0][name] for name in ("image", "sha256", "caption_original", "width")} == {None}
    assert run_takedown(output, path) == 0
    before = hash_output(output)
    for more in ([], [f"read.takedown={path}"]):
        assert run_job(tars, output, *more, *WITHOUT_MODELS) == 0  # goes on with the output as it is
        assert hash_output(output) == before
    assert run_job(tars, tmp_path / "new", "read.takedown=/no/such/list", *WITHOUT_MODELS) == 2


@pytest.mark.parametrize(
    "content", ["", "[]", '{"urls": []}', '{"urls": [5], "without_queries": [], "hosts": [], "images": []}']
)
def test_a_damaged_record_is_named_and_nothing_is_written(
    output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (output / "_takedowns.json").write_text(content)
    assert run_rewrite(output, tmp_path / "new") == 2
    assert "_takedowns.json is damaged" in capsys.readouterr().err


def test_a_damaged_shard_fails_alone_and_stays_as_it_is(source: Path, output: Path, tmp_path: Path) -> None:
    entries = entries_for(source)
    flip(output / "train" / "00000.tar")
    manifest = (output / "_manifests" / "00000.json").read_bytes()
    assert run_takedown(output, write_list(tmp_path, *entries)) == 3
    assert (output / "_manifests" / "00000.json").read_bytes() == manifest
    assert [row["key"] for row in rows_of(output) if row["reason"] == "taken_down"] == [
        row["key"] for row in rows_of(source) if row["sha256"] == entries[1]
    ]
    assert not (output / "report.html").exists()  # it would show the rows that are left
    assert verify(str(output), VerifyOptions(processes=1, requeue=True)) == 1
    assert run_takedown(output, write_list(tmp_path, *entries)) == 0
    assert not list(output.rglob("00000.tar"))
    assert check(output) == 0
