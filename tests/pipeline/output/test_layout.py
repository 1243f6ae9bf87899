"""Outputs in folders of 1,000 shards: chosen when they are created, and read by everything that reads a flat one."""

import json
import shutil
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.shards import list_shards
from pipeline.commands import rewrite, takedown
from pipeline.commands.verify import VerifyOptions, verify
from pipeline.explore.index import cached_index, open_output
from pipeline.output.ledger import read_manifests, read_manifests_of
from pipeline.output.listing import list_output
from pipeline.output.store import Store, indices, settle_layout
from schemas import layout
from schemas.files import FILES, LAYOUT_FILE, MANIFEST_FILE
from schemas.layout import FLAT, FOLDERS
from tests.pipeline.commands.derive.outputs import make_output, multiset, random_shards
from tests.pipeline.jobs import run_job
from tests.pipeline.layouts import contents, has_folders, in_folders
from tests.pipeline.output.resume.jobs import configure, overwriting, run, write_rows
from trainer.data.indexing import build_index

LOCAL = ("ray.runner=local", "ray.cpu_workers=1")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """New outputs of more than two shards get folders."""
    monkeypatch.setattr(layout, "MAX_FLAT", 2)


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("flat") / "out"
    make_output(output, random_shards(1, 3))
    return output


def test_a_path_tells_its_shard_and_a_shard_its_path() -> None:
    for made, index in ((FLAT, 7), (FLAT, 123_456), (FOLDERS, 0), (FOLDERS, 1_234_567), (FOLDERS, 20_000_007)):
        path = made.path(MANIFEST_FILE, index)
        assert made.shard(path) == (MANIFEST_FILE, index)
        assert layout.split_path(f"/a/out/{path}").root == "/a/out"
        assert f"{layout.split_path(path).stem}.json" == path.partition("/")[2]
    names = [FOLDERS.path(MANIFEST_FILE, index) for index in (0, 999, 1000, 99_999, 100_000, 9_999_999)]
    assert names == sorted(names)
    assert FOLDERS.path(MANIFEST_FILE, 123_456) == "_manifests/0123/0123456.json"
    for other in ("_manifests/0001/0000001.json", "_manifests/0000/1.json", "_job.json", "_timings/run.json"):
        assert FOLDERS.shard(other) is None


def test_a_job_in_folders_writes_the_bytes_of_a_flat_one(tars: Path, finished: Path, tmp_path: Path, few: None) -> None:
    output = tmp_path / "out"
    assert run_job(tars, output) == 0
    assert has_folders(output)
    assert contents(output) == contents(finished)
    assert verify(str(output), VerifyOptions(processes=1)) == 0
    index, expected = (build_index(list_shards(str(folder))) for folder in (output, finished))
    assert [index.shard(i).starts.tolist() for i in range(3)] == [expected.shard(i).starts.tolist() for i in range(3)]


def test_the_layout_is_that_of_the_first_run(tmp_path: Path, few: None) -> None:
    write_rows(tmp_path / "in/a.jsonl", "a", 6)  # two shards
    small = configure(tmp_path / "in", tmp_path / "small")
    assert run(small) == [0, 1]
    write_rows(tmp_path / "in/b.jsonl", "b", 6)
    large = configure(tmp_path / "in", tmp_path / "large")
    assert run(large) == [0, 1, 2, 3]
    assert run(small) == [2, 3]
    assert not (tmp_path / "small" / LAYOUT_FILE).exists()
    assert has_folders(tmp_path / "large")
    write_rows(tmp_path / "in/c.jsonl", "c", 3)
    assert run(large) == [4]
    assert has_folders(tmp_path / "large")
    (tmp_path / "in/b.jsonl").unlink()
    (tmp_path / "in/c.jsonl").unlink()
    assert run(overwriting(large)) == []  # two shards remain
    assert has_folders(tmp_path / "large")
    assert indices(Store(large.output), MANIFEST_FILE) == [0, 1]
    before = contents(tmp_path / "large")
    (tmp_path / "large/train/0000/0000001.tar").write_bytes(b"")
    assert run(large) == [1]
    assert contents(tmp_path / "large") == before


def test_a_killed_first_run_keeps_its_layout(tmp_path: Path, few: None) -> None:
    write_rows(tmp_path / "in/a.jsonl", "a", 9)
    config = configure(tmp_path / "in", tmp_path / "out")
    settle_layout(Store(config.output), 3)  # and killed before anything else was written
    write_rows(tmp_path / "in/a.jsonl", "a", 3)
    assert run(config) == [0]
    assert has_folders(tmp_path / "out")


def test_commands_read_folders_like_flat_outputs(flat: Path, tmp_path: Path) -> None:
    folders = in_folders(flat, tmp_path / "folders")
    results = list[list[dict[str, bytes]]]()
    for source in (flat, folders):
        made = [tmp_path / f"{source.name}-{name}" for name in ("refilter", "dedupe", "reshard")]
        assert rewrite.main([f"source={source}", f"output={made[0]}", *LOCAL]) == 0
        assert rewrite.main([f"source={source}", f"output={made[1]}", "dedupe=[bytes]", *LOCAL]) == 0
        assert rewrite.main([f"source={source}", f"output={made[2]}", "samples_per_shard=4", *LOCAL]) == 0
        shards = [contents(path) for path in made]  # manifests name their sources, and differ
        results.append([{name: data for name, data in found.items() if name[0] != "_"} for found in shards])
    assert results[0] == results[1]
    store, manifests = open_output(str(folders))
    assert (cached_index(store, manifests, str(tmp_path / "cache")).folder / "meta.json").exists()
    assert len(read_manifests_of(store, [0, 2])) == 2


@pytest.mark.rest
def test_commands_choose_folders_by_the_number_of_their_shards(flat: Path, tmp_path: Path, few: None) -> None:
    assert rewrite.main([f"source={flat}", f"output={tmp_path / 'new'}", "samples_per_shard=4", *LOCAL]) == 0
    assert has_folders(tmp_path / "new")
    assert multiset(tmp_path / "new") == multiset(flat)
    sources = [f"source={flat}", f"source={tmp_path / 'new'}"]
    assert rewrite.main([*sources, f"output={tmp_path / 'both'}", "mixed=true", *LOCAL]) == 0
    assert has_folders(tmp_path / "both")
    (tmp_path / "list.txt").write_text("http://x/1001\n")
    assert takedown.main([str(tmp_path / "both"), f"list={tmp_path / 'list.txt'}", *LOCAL]) == 0
    assert has_folders(tmp_path / "both")
    stats = json.loads((tmp_path / "both/stats.json").read_text())
    assert sum(n.get("taken_down", 0) for n in stats["rows"]["dropped"].values()) == 2
    assert verify(str(tmp_path / "both"), VerifyOptions(processes=1)) == 0


def test_a_lost_or_damaged_record_is_an_error_that_names_the_fix(flat: Path, tmp_path: Path) -> None:
    folders = in_folders(flat, tmp_path / "folders")
    (folders / LAYOUT_FILE).write_text('{"digits": 3, "per_folder": 0}')
    with pytest.raises(UserError, match=r'_layout.json is damaged .*write \{"digits": 7, "per_folder": 1000\} to it'):
        read_manifests(Store(str(folders)))
    (folders / LAYOUT_FILE).unlink()
    with pytest.raises(UserError, match=r"has folders of shards, but no _layout.json"):
        read_manifests(Store(str(folders)))


def test_unfinished_shards_in_folders_are_skipped_by_readers_of_tars(flat: Path, tmp_path: Path) -> None:
    folders = in_folders(flat, tmp_path / "folders")
    (folders / "_manifests/0000/0000001.json").unlink()
    expected = [str(folders / FOLDERS.path(FILES["train"][0], index)) for index in (0, 2)]
    assert list_shards(str(folders)) == list_shards(f"{folders}/train") == expected
    assert list_shards(f"{folders}/train/*/*.tar") == list_shards(f"{folders}/train/0000") == expected
    other = tmp_path / "other"
    (other / "2014").mkdir(parents=True)
    shutil.copy(expected[0], other / "a.tar")
    shutil.copy(expected[0], other / "2014/b.tar")
    assert list_shards(str(other)) == [str(other / "a.tar")]  # folders of other data are not searched
    assert list_output(Store(str(folders))).complete(["train", "grit"]) == {0, 2}
