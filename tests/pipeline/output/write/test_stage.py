"""Shards are written atomically, and equal input gives equal bytes."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from hypergrit_common.disk import locked, temporary_name
from hypergrit_common.errors import UserError
from pipeline.config import WriteConfig
from pipeline.output import store as store_module
from pipeline.output.commit import HashedFile, Staging
from pipeline.output.manifest import read_manifest
from pipeline.output.store import LOCK_SUFFIX, Store, remove_abandoned
from pipeline.output.write import stage as stage_module
from pipeline.output.write.stage import write_shard
from pipeline.output.write.tar import TarWriter
from tests.patience import PATIENCE_S
from tests.pipeline.output.write.shards import PROVENANCE, dropped_row, kept_row, plan, rows, table, tree

ALL_FORMATS = WriteConfig()
FILES = {"train/00001.tar", "grit/00001.tar", "grit/00001.parquet", "arrow/00001.arrow", "_index/00001.arrow"}


def test_manifest_has_the_hash_of_every_file_and_the_counts_add_up(tmp_path: Path) -> None:
    manifest = write_shard(table(), plan(), ALL_FORMATS, str(tmp_path), PROVENANCE)
    found = tree(tmp_path)
    assert json.loads(found.pop("_manifests/00001.json")) == json.loads(json.dumps(manifest))
    assert found.pop("_summaries/00001.json.zst")
    assert set(manifest["files"]) == set(found) == FILES
    for name, facts in manifest["files"].items():
        assert facts["bytes"] == len(found[name])
        assert facts["sha256"] == hashlib.sha256(found[name]).hexdigest()
    assert manifest["counts"] == {"read": 4, "kept": 3, "dropped": {"download": {"http_error": 1}}}
    assert [manifest["files"][name]["rows"] for name in sorted(FILES)] == [6, 4, 4, 3, 3]
    assert (manifest["boxes"], manifest["phrases"]) == (12, 12)
    assert manifest["formats"] == ["arrow", "grit", "train"]


def test_bytes_are_the_same_in_every_run_and_for_any_order_of_shards(tmp_path: Path) -> None:
    for name, order in (("a", (0, 1, 2)), ("b", (2, 0, 1))):
        for index in order:
            write_shard(table(), plan(index), ALL_FORMATS, str(tmp_path / name), PROVENANCE)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_only_the_configured_formats_are_written_and_files_of_others_are_removed(tmp_path: Path) -> None:
    write_shard(table(), plan(), ALL_FORMATS, str(tmp_path), PROVENANCE)
    manifest = write_shard(table(), plan(), WriteConfig(formats=("arrow",)), str(tmp_path), PROVENANCE)
    assert manifest["formats"] == ["arrow"]
    assert set(tree(tmp_path)) == {"arrow/00001.arrow", "_manifests/00001.json", "_summaries/00001.json.zst"}


def test_shard_without_kept_rows_is_written(tmp_path: Path) -> None:
    manifest = write_shard(table([dropped_row(1)]), plan(n_rows=1), ALL_FORMATS, str(tmp_path), PROVENANCE)
    assert manifest["counts"]["kept"] == 0
    assert tree(tmp_path)["train/00001.tar"] == bytes(1024)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (rows()[:3], "planned with 4 rows, but has 3 rows with 3 distinct keys"),
        ([*rows()[:3], kept_row(10)], "planned with 4 rows, but has 4 rows with 3 distinct keys"),
        ([*rows()[:3], kept_row(13) | {"status": "dropped"}], "neither kept nor dropped with a reason"),
        (
            [*rows()[:3], kept_row(13) | {"stage": "score", "reason": "low_score"}],
            "neither kept nor dropped with a reason",
        ),
        ([*rows()[:3], dropped_row(13) | {"reason": "bad_luck"}], "not a drop reason of stage 'download'"),
        ([*rows()[:3], kept_row(13) | {"image": None}], "without an image"),
        ([*rows()[:3], kept_row(13) | {"key": "a.b"}], "cannot name a tar member"),
    ],
)
def test_shard_with_missing_or_invalid_rows_is_not_written(
    tmp_path: Path, values: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        write_shard(table(values), plan(), ALL_FORMATS, str(tmp_path), PROVENANCE)
    assert tree(tmp_path) == {}


def test_error_while_writing_leaves_the_earlier_shard_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shard(table(), plan(), ALL_FORMATS, str(tmp_path), PROVENANCE)
    before = tree(tmp_path)
    add_sample = TarWriter.add_sample

    def fail(writer: TarWriter, key: str, members: Iterable[tuple[str, bytes]]) -> None:
        if writer.samples:
            raise ValueError("the second sample")
        add_sample(writer, key, members)

    monkeypatch.setattr(TarWriter, "add_sample", fail)
    with pytest.raises(ValueError, match="the second sample"):
        write_shard(table(), plan(), ALL_FORMATS, str(tmp_path), PROVENANCE)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("output", ["disk", "memory"])
def test_a_late_attempt_that_is_killed_or_ends_leaves_the_shard_that_another_has_committed(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "out") if output == "disk" else f"memory://{tmp_path.name}"
    monkeypatch.setattr(store_module, "is_s3", lambda fs: False)
    committed = write_shard(table(), plan(), ALL_FORMATS, folder, PROVENANCE)
    store = Store(folder)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stage_module, "write_index", die)
        with pytest.raises(KeyboardInterrupt):
            write_shard(table(), plan(), ALL_FORMATS, folder, PROVENANCE)
    assert read_manifest(store, 1) == json.loads(json.dumps(committed))
    other = [*rows()[:-1], dropped_row(3)]
    assert write_shard(table(other), plan(), ALL_FORMATS, folder, PROVENANCE)["files"] == committed["files"]
    name, facts = next(iter(committed["files"].items()))
    assert store.size(name) == facts["bytes"]
    store.fs.pipe_file(store.path(name), b"damaged")
    write_shard(table(), plan(), ALL_FORMATS, folder, PROVENANCE)
    assert store.size(name) == facts["bytes"]


def test_killed_run_leaves_no_manifest_and_its_temporary_files_can_be_removed(tmp_path: Path) -> None:
    code = (
        "import os, signal\n"
        "from pipeline.output.write import stage\n"
        "from tests.pipeline.output.write.shards import *\n"
        "stage.write_arrow = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"stage.write_shard(table(), plan(), stage.WriteConfig(formats=('grit', 'arrow')), {str(tmp_path)!r}, PROVENANCE)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[4], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert any(name.startswith("grit/00001.tar.") for name in tree(tmp_path))
    assert not any(name.startswith("_manifests") or not name.endswith(".tmp") for name in tree(tmp_path))
    (tmp_path / "grit" / "00002.tar.tmp").touch()  # as version 0.2 named them; it may still be in use
    live = Path(temporary_name(str(tmp_path / "grit" / "00003.tar")))
    live.touch()
    remove_abandoned([str(tmp_path / "grit"), str(tmp_path / "arrow"), str(tmp_path / "train")])
    assert set(tree(tmp_path)) == {"grit/00002.tar.tmp", f"grit/{live.name}"}
    os.utime(tmp_path / "grit" / "00002.tar.tmp", (0, 0))
    remove_abandoned([str(tmp_path / "grit")])
    assert set(tree(tmp_path)) == {f"grit/{live.name}"}
    live.unlink()
    write_shard(table(), plan(), WriteConfig(formats=("arrow",)), str(tmp_path), PROVENANCE)
    assert set(tree(tmp_path)) == {"arrow/00001.arrow", "_manifests/00001.json", "_summaries/00001.json.zst"}


def test_full_disk_is_a_user_error_with_the_fix_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_disk_full(self: HashedFile, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(HashedFile, "write", raise_disk_full)
    for name in ("train", "grit", "arrow"):
        with pytest.raises(UserError, match=r"cannot write .*/00001\.\w+: No space left on device; free some space"):
            write_shard(table(), plan(), WriteConfig(formats=(name,)), str(tmp_path), PROVENANCE)
    assert tree(tmp_path) == {}


def test_output_that_is_a_file_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UserError, match="there is a file where a folder is needed; choose another output="):
        write_shard(table(), plan(), ALL_FORMATS, str(tmp_path / "out"), PROVENANCE)
    assert (tmp_path / "out").read_text() == "mine"


def test_object_store_has_the_same_bytes_and_its_manifest_is_uploaded_last(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    write_shard(table(), plan(), ALL_FORMATS, "memory://bucket/out", PROVENANCE)
    write_shard(table(), plan(), ALL_FORMATS, str(tmp_path), PROVENANCE)
    found = {name.removeprefix("/bucket/out/"): memory.cat_file(name) for name in memory.find("/bucket/out")}
    assert found == tree(tmp_path)
    manifest = memory.info("/bucket/out/_manifests/00001.json")["created"]
    assert all(memory.info(f"/bucket/out/{name}")["created"] <= manifest for name in FILES)
    memory.rm("/bucket/out", recursive=True)


@pytest.mark.parametrize("wrong", [{"formats": ()}, {"formats": ("train", "tsv")}])
def test_error_for_a_wrong_setting_names_it(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="formats is"):
        WriteConfig(**wrong)


@pytest.mark.parametrize("output", ["disk", "memory"])
def test_two_attempts_at_a_shard_never_mix_their_files(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is paused between two files, while the second, with another result for a row, commits."""
    folder = str(tmp_path / "out") if output == "disk" else f"memory://{tmp_path.name}"
    monkeypatch.setattr(store_module, "is_s3", lambda fs: False)
    reached, go_on = threading.Event(), threading.Event()
    real = Staging.publish_file

    def publish_file(self: Staging, relative: str) -> None:
        if threading.current_thread().name == "first" and relative.startswith("arrow/"):
            reached.set()
            go_on.wait()
        real(self, relative)

    monkeypatch.setattr(Staging, "publish_file", publish_file)
    errors: list[Exception] = []

    def attempt(detail: str) -> None:
        found = [*rows()[:-1], dropped_row(3) | {"detail": detail * 10}]
        try:
            write_shard(table(found), plan(), ALL_FORMATS, folder, PROVENANCE)
        except OSError as error:
            errors.append(error)

    first = threading.Thread(target=attempt, args=("404",), name="first")
    second = threading.Thread(target=attempt, args=("50",), name="second")
    first.start()
    assert reached.wait(PATIENCE_S)
    second.start()
    second.join(2)
    go_on.set()
    first.join()
    second.join()
    store = Store(folder)
    manifest = read_manifest(store, 1)
    if manifest is None:
        assert "another attempt" in str(errors[0])
    else:
        for name, facts in manifest["files"].items():
            assert hashlib.sha256(store.read(name) or b"").hexdigest() == facts["sha256"]
    assert (manifest is None) == (output == "memory")


def test_lock_files_of_dead_processes_are_removed_and_those_in_use_are_not(tmp_path: Path) -> None:
    free, held = (tmp_path / f"0000{i}.json{LOCK_SUFFIX}" for i in range(2))
    free.touch()
    with locked(str(held)):
        remove_abandoned([str(tmp_path)])
        assert [path.name for path in tmp_path.iterdir()] == [held.name]
    assert list(tmp_path.iterdir()) == []
