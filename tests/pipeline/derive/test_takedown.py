"""Takedown: the rows that a list names leave all formats, and nothing else changes."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from common.tar import iter_members, reader_of
from pipeline import load_config, make_provenance, merge, plan_shards, takedown
from pipeline.compare.contents import read_contents
from pipeline.derive import removal
from pipeline.derive import takedown as module
from pipeline.derive.settings import read_config
from pipeline.derive.source import Source, read_table
from pipeline.explore.index import open_output
from pipeline.quality.boxes import read_rows
from pipeline.read.takedown import parse_takedown, refuse
from pipeline.report.__main__ import main as report_main
from pipeline.retry.__main__ import main as retry_main
from pipeline.run import Steps
from pipeline.summary.summary import decompressed
from pipeline.verify.__main__ import verify
from pipeline.verify.output import list_contents
from pipeline.write.manifest import plan_from_json
from pipeline.write.pending import check_nothing_pending
from pipeline.write.stage import write_shard
from pipeline.write.staging import Staging
from pipeline.write.store import Store
from schemas.files import FILES, TAKEDOWN_FOLDER
from schemas.layout import FLAT
from tests.pipeline.derive.rows import manifests_of, rows_of, stats_of
from tests.pipeline.derive.scenes import write_output
from tests.pipeline.jobs import hash_output, run_job

ALL = ("train", "grit", "arrow")
FORMATS = [ALL, ("train",), ("grit", "train"), ("arrow",)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished output in all formats."""
    output = tmp_path_factory.mktemp("takedown") / "out"
    write_output(output)
    return output


def run_takedown(output: Path | str, path: Path, *arguments: str) -> int:
    """Run the command on this machine; return its exit code."""
    return takedown.main([str(output), f"list={path}", "ray.runner=local", "ray.cpu_workers=1", *arguments])


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
        table = read_table(str(source), found.shard(index))
        kinds = [parsed.match(row["url"], row["sha256"]) for row in table.to_pylist()]
        plan = plan_from_json(manifest["plan"])
        write_shard(refuse(table, kinds), plan, config.write, str(output), manifest["provenance"])


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


def test_nothing_of_the_rows_is_left_but_their_keys(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    shutil.copytree(source, output)
    before = {row["key"]: row for row in rows_of(output)}
    assert run_takedown(output, write_list(tmp_path, "example.org", "http://example.com/2.jpg")) == 0
    gone = [row for row in rows_of(output) if row["reason"] == "taken_down"]
    assert {row["key"] for row in gone} == {key for key in before if int(key) % 3 == 0 or int(key) == 2}
    for row in gone:
        left = {"key", "source", "source_row", "status", "stage", "reason", "detail"}
        assert {name for name, value in row.items() if value is not None} == left
    texts = [path.read_bytes() for path in sorted(output.rglob("*")) if path.is_file()]
    summaries = [decompressed(path.read_bytes()) for path in sorted((output / "_summaries").iterdir())]
    assert any(
        b"img.example.org" in decompressed(path.read_bytes()) for path in sorted((source / "_summaries").iterdir())
    )
    texts += summaries
    assert len(summaries) == len(manifests_of(output))
    assert not any(b"img.example.org" in text for text in texts)
    for name in (FILES["train"][0], FILES["grit"][0]):
        with open(output / FLAT.path(name, 0), "rb") as file:
            keys = {member.name.partition(".")[0] for member in iter_members(reader_of(file), 0, file.seek(0, 2))}
        assert not keys & {row["key"] for row in gone}
    stats = stats_of(output)["rows"]
    assert stats["dropped"]["read"]["taken_down"] == len(gone)
    assert stats["read"] == stats["kept"] + sum(sum(n.values()) for n in stats["dropped"].values())


def test_a_shard_without_listed_rows_keeps_its_files_and_a_second_run_changes_nothing(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    shutil.copytree(source, output)
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


class Killed(BaseException):
    """Stands for a kill, which no handler catches."""


@pytest.mark.parametrize("n", range(7))
def test_a_kill_between_two_files_loses_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, capsys: pytest.CaptureFixture[str]
) -> None:
    output, path = tmp_path / "out", write_list(tmp_path, *entries_for(source))
    shutil.copytree(source, output)
    publish, calls = Staging.publish_file, list[str]()

    def killed(staging: Staging, relative: str) -> None:
        if len(calls) == n:
            raise Killed
        calls.append(relative)
        publish(staging, relative)

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "publish_file", killed)
        if n < 6:
            with pytest.raises(Killed):
                run_takedown(output, path)
        else:  # killed when everything but the record is done
            patch.setattr(removal, "check_committed", lambda *_: (_ for _ in ()).throw(Killed))
            with pytest.raises(Killed):
                run_takedown(output, path)
    assert list((output / TAKEDOWN_FOLDER).glob("*.json"))
    assert run_takedown(output, path) == 0
    expected(source, tmp_path / "job", entries_for(source), ALL)
    assert hash_output(output) == hash_output(tmp_path / "job")
    assert not list((output / TAKEDOWN_FOLDER).glob("*"))


@pytest.mark.parametrize("moment", ["before", "between", "report"])
def test_until_a_killed_takedown_has_finished_all_other_commands_refuse_the_output(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], moment: str
) -> None:
    output, path = tmp_path / "out", write_list(tmp_path, *entries_for(source))
    shutil.copytree(source, output)
    store, map_shards = Store(str(output)), module.map_shards

    def killed(*arguments: Any) -> Iterator[Any]:
        yield from itertools.islice(map_shards(*arguments), {"before": 0, "between": 1, "report": 3}[moment])
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, "map_shards", killed)
        with pytest.raises(Killed):
            run_takedown(output, path)
    assert not list((output / TAKEDOWN_FOLDER).glob("*.json"))
    local = ("ray.runner=local", "ray.cpu_workers=1")
    assert merge.main([f"source={output}", f"output={tmp_path / 'new'}", *local]) == 2
    assert merge.main([f"source={source}", f"output={output}", "overwrite=true", *local]) == 2
    assert retry_main([str(output), *local]) == 2
    assert run_takedown(output, path, "dry_run=true") == 2
    monkeypatch.setattr("sys.argv", ["report", str(output)])
    assert report_main() == 2
    assert capsys.readouterr().err.count("_takedown.json: pipeline.takedown was interrupted") == 5
    for read in (read_contents, open_output, lambda name: next(read_rows(name))):
        with pytest.raises(UserError, match="takedown was interrupted"):
            read(str(output))
    assert [problem.file for problem in list_contents(store).problems] == ["_takedown.json"]
    assert run_takedown(output, write_list(tmp_path, "example.com")) == 2
    assert "this list lacks 2 entries" in capsys.readouterr().err
    assert run_takedown(output, write_list(tmp_path, *entries_for(source), "ab" * 32)) == 0
    expected(source, tmp_path / "job", entries_for(source), ALL)
    assert hash_output(output) == hash_output(tmp_path / "job")
    assert stats_of(output)["rows"]["dropped"]["read"] == {"taken_down": 1}
    check_nothing_pending(store)


def test_the_job_refuses_the_rows_and_stops_at_an_interrupted_takedown(
    tars: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    shutil.copytree(finished, output)
    digest = next(row["sha256"] for row in rows_of(output) if row["status"] == "kept")
    path = write_list(tmp_path, digest)
    before = hash_output(output)
    assert run_job(tars, output, f"read.takedown={path}") == 0
    assert hash_output(output) == before  # finished shards stay; the command is for them
    config = load_config([f"input={tars}", f"output={output}", "rows_per_shard=4", f"read.takedown={path}"])
    steps = Steps(config, make_provenance(config))
    plan = plan_shards(config.input, 4, None, config.read)[0]
    table, _ = steps.download(plan, steps.read(plan))
    refused = [row for row in table.to_pylist() if row["status"] == "dropped"]
    assert [(row["stage"], row["reason"], row["detail"]) for row in refused] == [("download", "taken_down", "sha256")]
    assert {refused[0][name] for name in ("image", "sha256", "caption_original", "width")} == {None}
    assert run_takedown(output, path) == 0
    before = hash_output(output)
    assert run_job(tars, output) == 0  # goes on with the output as it is
    assert hash_output(output) == before
    (output / TAKEDOWN_FOLDER).mkdir(exist_ok=True)
    (output / TAKEDOWN_FOLDER / "00000.json").write_text("{}")
    capsys.readouterr()
    assert run_job(tars, output) == 2
    assert "00000.json: pipeline.takedown was interrupted" in capsys.readouterr().err
    assert run_takedown(output, path) == 2
    assert "00000.json is damaged" in capsys.readouterr().err
    assert run_job(tars, tmp_path / "new", "read.takedown=/no/such/list") == 2
    assert "/no/such/list" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["OUT"], "list is not set"),
        (["list=LIST"], "0 outputs are given"),
        (["OUT", "OUT", "list=LIST"], "2 outputs are given"),
        (["OUT", "list=LIST", "dry_run=perhaps"], "dry_run=perhaps: "),
        (["OUT", "list=LIST", "score.min_score=0.9"], "takedown cannot change score.min_score"),
        (["OUT", "list=LIST", "lits=x"], "lits"),
        (["OUT", "list=OUT"], "folder"),
        (["OUT", "list=EMPTY"], "has no entries"),
        (["NOTHING", "list=LIST"], "config.yaml does not exist"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    before, path = hash_output(source), write_list(tmp_path, "example.org")
    (tmp_path / "empty").write_text("# nothing\n")
    values = {"OUT": str(source), "LIST": str(path), "EMPTY": str(tmp_path / "empty"), "NOTHING": str(tmp_path / "no")}
    for name, value in values.items():
        arguments = [item.replace(name, value) for item in arguments]
    assert takedown.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert hash_output(source) == before


def test_a_damaged_shard_fails_alone_and_stays_as_it_is(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    shutil.copytree(source, output)
    (output / "train" / "00000.tar").write_bytes(b"cut off")
    manifest = (output / "_manifests" / "00000.json").read_bytes()
    assert run_takedown(output, write_list(tmp_path, *entries_for(source))) == 3
    assert (output / "_manifests" / "00000.json").read_bytes() == manifest
    assert [row["key"] for row in rows_of(output) if row["reason"] == "taken_down"] == [
        row["key"] for row in rows_of(source) if row["sha256"] == entries_for(source)[1]
    ]
    assert not list((output / TAKEDOWN_FOLDER).glob("*"))
    assert (output / "_takedown.json").exists()  # rows are left
    assert verify(str(output), 1, is_requeued=True) == 1
    assert run_takedown(output, write_list(tmp_path, *entries_for(source))) == 0
    assert not (output / "_takedown.json").exists()
