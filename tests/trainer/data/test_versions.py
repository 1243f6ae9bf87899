"""Shards that change between or during the runs that read them."""

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import fsspec
import pytest

from hypergrit_common.errors import UserError
from tests.forks import replaced
from tests.trainer.data.loading import small_loader, take
from tests.trainer.data.samples import write_shards
from tests.trainer.small_run import log_path, run, run_forked
from trainer.data import indexing, shards
from trainer.data.listing import (
    VERSIONS_FILE,
    ShardFacts,
    ShardVersion,
    Stored,
    check_shards,
    list_facts,
    record_shards,
    version_of,
)


def urls_in(folder: Path) -> list[str]:
    return [str(path) for path in sorted(folder.glob("*.tar"))]


def versions_of(urls: list[str]) -> list[ShardVersion]:
    return [version_of(facts) for facts in list_facts(urls)]


def alter(path: Path) -> None:
    """Change a byte of a caption, at equal size."""
    data = path.read_bytes()
    path.write_bytes(data.replace(b"cat", b"cow", 1))
    os.utime(path, ns=(0, 10**18))


def write_manifests(root: Path) -> None:
    """Write manifests with the hashes of the shards in root/train."""
    (root / "_manifests").mkdir(exist_ok=True)
    for shard in (root / "train").glob("*.tar"):
        facts = {"sha256": hashlib.sha256(shard.read_bytes()).hexdigest(), "bytes": shard.stat().st_size}
        manifest = {"files": {f"train/{shard.name}": facts}}
        (root / "_manifests" / f"{shard.stem}.json").write_text(json.dumps(manifest))


def test_unchanged_shards_pass_also_without_a_record_or_with_a_damaged_one(tmp_path: Path) -> None:
    urls = urls_in(write_shards(tmp_path / "shards", [2, 3]))
    check_shards(versions_of(urls), urls, tmp_path)
    record_shards(versions_of(urls), tmp_path)
    check_shards(versions_of(urls), urls, tmp_path)
    (tmp_path / VERSIONS_FILE).write_text("{")
    check_shards(versions_of(urls), urls, tmp_path)


@pytest.mark.parametrize("manifests", ["none", "old", "new"])
def test_shard_altered_at_equal_size_is_named(tmp_path: Path, manifests: str) -> None:
    urls = urls_in(write_shards(tmp_path / "train", [2, 3]))
    if manifests != "none":
        write_manifests(tmp_path)
    record_shards(versions_of(urls), tmp_path)
    alter(Path(urls[1]))
    if manifests == "new":
        write_manifests(tmp_path)
    change = "written again" if manifests == "new" else "modified"
    with pytest.raises(UserError, match=rf"00001\.tar was {change}.*resume=anyway") as caught:
        check_shards(versions_of(urls), urls, tmp_path)
    assert "00000.tar" not in str(caught.value)


def test_copied_shards_pass_if_their_manifests_prove_that_they_are_equal(tmp_path: Path) -> None:
    write_shards(tmp_path / "a" / "train", [2])
    write_manifests(tmp_path / "a")
    record_shards(versions_of(urls_in(tmp_path / "a" / "train")), tmp_path)
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)
    copies = urls_in(tmp_path / "b" / "train")
    check_shards(versions_of(copies), copies, tmp_path)


def test_versions_of_remote_shards(tmp_path: Path) -> None:
    path = write_shards(tmp_path, [2]) / "00000.tar"
    fsspec.filesystem("memory").pipe("/versions/00000.tar", path.read_bytes())
    (version,) = versions_of(["memory:///versions/00000.tar"])
    assert (version.name, version.size) == ("00000.tar", path.stat().st_size)
    with pytest.raises(UserError, match="does not exist any more"):
        versions_of(["memory:///versions/00001.tar"])


@pytest.fixture
def listings(tmp_path: Path) -> Iterator[Path]:
    """A file with the rank of the process for each listing of the shards."""
    path = tmp_path / "listings"

    def counted(urls: Sequence[str]) -> list[ShardFacts]:
        with path.open("a") as file:
            file.write(os.environ.get("RANK", "-"))
        return list_facts(urls)

    with replaced(indexing, "list_facts", counted):
        yield path


def test_one_rank_lists_the_shards_of_a_resumed_run_once_and_all_refuse_an_altered_shard_unless_told(
    tmp_path: Path, listings: Path, free_port: int
) -> None:
    output = tmp_path / "run"
    assert run(output, "steps=5") == 0
    assert run_forked(output, "steps=5", port=free_port, faults=[None] * 2) == [0, 0]
    assert listings.read_text() == "-0"
    alter(tmp_path / "shards" / "00000.tar")
    assert run_forked(output, "steps=5", port=free_port, faults=[None] * 2) == [2, 2]
    for rank in range(2):
        assert "00000.tar was modified" in log_path(output, rank).read_text()
    assert run(output, "steps=5", "resume=anyway") == 0
    assert run(output, "steps=5") == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_a_tar_that_shrinks_during_training_stops_the_run(tmp_path: Path, workers: int) -> None:
    folder = write_shards(tmp_path, [20])
    source = small_loader(folder, workers=workers, batch=2)
    path = folder / "00000.tar"
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(UserError, match=r"00000\.tar has become shorter during the run: it has \d+ bytes, not \d+"):
        take(source, 20)


def overwrite(path: Path) -> None:
    """Replace the second half of a file by zeros, at equal size."""
    start = path.stat().st_size // 2
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(path.stat().st_size - start))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("n_read", [0, 1])
def test_a_tar_overwritten_before_or_after_it_is_first_read_stops_the_run(
    tmp_path: Path, workers: int, n_read: int
) -> None:
    source = small_loader(write_shards(tmp_path, [40]), batch=4, workers=workers, prefetch=1)
    batches = iter(source)
    deque(islice(batches, n_read), maxlen=0)
    overwrite(tmp_path / "00000.tar")
    with pytest.raises(UserError, match=r"00000\.tar was replaced during the run; restore it"):
        deque(batches, maxlen=0)
    source.close()


def test_a_tar_replaced_by_another_one_during_training_stops_the_run(tmp_path: Path) -> None:
    source = small_loader(write_shards(tmp_path, [40]), batch=4)
    batches = iter(source)
    next(batches)
    write_shards(tmp_path / "other", [41])
    (tmp_path / "other" / "00000.tar").rename(tmp_path / "00000.tar")
    source.builder.reader.files.close()  # as if its descriptor was needed for another shard
    with pytest.raises(UserError, match=r"00000\.tar was replaced during the run"):
        deque(batches, maxlen=0)


def test_an_object_replaced_during_training_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "COMPARE_S", 0.0)
    store, path = fsspec.filesystem("memory"), write_shards(tmp_path, [40]) / "00000.tar"
    store.pipe("/replaced/00000.tar", path.read_bytes())
    source = small_loader("memory://replaced", batch=4)
    batches = iter(source)
    next(batches)
    overwrite(path)
    store.pipe("/replaced/00000.tar", path.read_bytes())
    with pytest.raises(UserError, match=r"00000\.tar was replaced during the run; restore it"):
        next(batches)


def test_a_remote_shard_is_compared_with_its_index_once_per_process_and_five_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fsspec.filesystem("memory")
    store.pipe("/compared/00000.tar", (write_shards(tmp_path, [40]) / "00000.tar").read_bytes())
    source = small_loader("memory://compared", batch=4)
    asked, real = [], type(store).info
    monkeypatch.setattr(
        type(store), "info", lambda self, path, **named: asked.append(path) or real(self, path, **named)
    )
    take(source, 10)
    assert asked == ["/compared/00000.tar"]
    assert shards.is_same(Stored(3, 'W/"a"'), Stored(3, "a"))
    assert not shards.is_same(Stored(3, "a"), Stored(4, "a"))


def test_linked_shards_and_copies_on_other_machines_may_have_other_times(tmp_path: Path) -> None:
    path = write_shards(tmp_path / "a", [8]) / "00000.tar"
    os.utime(path, (1, 1))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "00000.tar").symlink_to(path)
    source = small_loader(tmp_path / "b", batch=4)
    assert len(take(source, 1)) == 1
    facts = source.builder.index.facts
    assert facts.modified != ("",)
    assert facts.on_another_machine().modified == ("",)


def test_a_tar_overwritten_at_the_same_time_before_it_is_first_read_stops_the_run(tmp_path: Path) -> None:
    path = write_shards(tmp_path, [400]) / "00000.tar"
    facts = path.stat()
    source = small_loader(tmp_path, batch=4, max_bad_share=1.0)
    overwrite(path)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    with pytest.raises(UserError, match=r"more than 100 samples are damaged .* restore them"):
        take(source, 300)
