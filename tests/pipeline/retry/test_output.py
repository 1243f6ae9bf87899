"""Outputs with shards of pipeline.retry: the job, verify and the report."""

import json
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.explore.columns import RETRIED
from pipeline.explore.index import build_index, open_output
from pipeline.explore.pairs import pair_rows
from pipeline.report.shards import read_batches, read_manifests
from pipeline.report.stats import build_stats
from pipeline.verify.__main__ import main as verify_main
from pipeline.write.store import Store
from tests.pipeline.derive.rows import stats_of
from tests.pipeline.download.server import TinyWeb
from tests.pipeline.jobs import hash_output
from tests.pipeline.layouts import contents, has_folders, in_folders
from tests.pipeline.retry.conftest import Finished
from tests.pipeline.retry.jobs import retry, run_job
from tests.pipeline.retry.test_command import FIRST, SECOND, indices

Printed = pytest.CaptureFixture[str]


def verify(monkeypatch: pytest.MonkeyPatch, output: Path, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["verify", str(output), *arguments, "--processes", "1"])
    return verify_main()


def edit(output: Path, index: int, change: Callable[[dict[str, Any]], object]) -> None:
    path = output / f"_manifests/{index:05d}.json"
    manifest = json.loads(path.read_bytes())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_the_job_leaves_the_attempts_at_finished_shards(retried: Path, web: TinyWeb, finished_job: Finished) -> None:
    before, stats, hits = hash_output(retried), stats_of(retried), web.hits.copy()
    assert run_job(web, finished_job.folder, retried) == 0
    assert hash_output(retried) == before
    assert stats_of(retried) == stats
    assert web.hits == hits


def test_attempts_in_folders_have_the_bytes_of_flat_ones(
    output: Path, retried_job: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = in_folders(output, tmp_path / "folders")
    assert retry(folders) == retry(folders) == 0
    assert has_folders(folders)
    assert contents(folders) == contents(retried_job.output)
    assert verify(monkeypatch, folders) == 0


def test_attempts_are_removed_before_their_shard_is_computed_again(
    retried: Path, web: TinyWeb, finished_job: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    (retried / "_manifests/00000.json").unlink()
    assert build_stats(str(retried))["rows"]["read"] == 8  # without the attempts at the shard that has gone
    removed, remove = list[str](), Store.remove

    def note(store: Store, names: Iterable[str]) -> None:
        names = list(names)
        removed.extend(name for name in names if "_manifests" in name)
        remove(store, names)

    monkeypatch.setattr(Store, "remove", note)
    assert run_job(web, finished_job.folder, retried) == 0
    assert removed == [f"_manifests/{index:05d}.json" for index in (SECOND, FIRST)]
    assert indices(retried) == [0, 1, 2, FIRST + 2, SECOND + 2]
    assert not list(retried.glob(f"*/{FIRST}.*"))
    rows = stats_of(retried)["rows"]
    assert rows["read"] == 12 == rows["kept"] + sum(rows["dropped"]["download"].values())


def test_workers_write_the_summaries_that_the_report_would_count(retried: Path) -> None:
    stats, folder = build_stats(str(retried)), retried / "_summaries"
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    shutil.rmtree(folder)
    assert build_stats(str(retried)) == stats
    counted = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert counted.keys() == {f"{index:05d}.json.zst" for index in (SECOND, 1, SECOND + 2)}  # the last attempts
    assert all(written[name] == content for name, content in counted.items())


def test_a_shard_with_a_truncated_file_loses_its_attempts(retried: Path, web: TinyWeb, finished_job: Finished) -> None:
    (retried / "grit/00002.tar").write_bytes(b"")
    assert retry(retried) == 0  # leaves the shard to the job
    assert run_job(web, finished_job.folder, retried) == 0
    assert indices(retried) == [0, 1, 2, FIRST, SECOND]
    assert stats_of(retried)["rows"]["read"] == 12


def test_overwriting_discards_all_attempts(
    retried: Path, web: TinyWeb, finished_job: Finished, capsys: Printed
) -> None:
    assert run_job(web, finished_job.folder, retried, "score.min_side_px=8", "overwrite=true") == 0
    assert indices(retried) == [0, 1, 2]
    assert "retried" not in stats_of(retried)["rows"]


def test_verify_checks_the_attempts(retried: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    assert verify(monkeypatch, retried) == 0
    text = capsys.readouterr().out
    assert "7 finished shards: 12 rows read, 8 kept" in text
    assert "everything is intact" in text
    edit(retried, FIRST, lambda manifest: manifest["retry"].update(replaced={"download": {"timeout": 2}}))
    assert verify(monkeypatch, retried) == 1
    assert (
        "its rows replace {'download': {'http_error': 2}}, but {'download': {'timeout': 2}}" in capsys.readouterr().out
    )
    edit(retried, FIRST, lambda manifest: manifest["retry"].update(replaced={"download": {"http_error": 3}}))
    assert verify(monkeypatch, retried) == 1
    assert "2 rows read in place of 3" in capsys.readouterr().out


def test_a_requeued_attempt_goes_with_the_later_ones_and_its_rows_are_tried_again(
    retried: Path, web: TinyWeb, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    (retried / f"arrow/{FIRST}.arrow").write_bytes(b"")
    assert verify(monkeypatch, retried, "--requeue") == 1
    assert "python -m pipeline.retry tries their rows again" in capsys.readouterr().out
    assert indices(retried) == [0, 1, 2, FIRST + 2, SECOND + 2]
    assert retry(retried) == 0
    assert indices(retried) == [0, 1, 2, FIRST + 2, SECOND + 2, 30_000_000, 30_000_002]
    assert stats_of(retried)["rows"]["kept"] == 8
    assert verify(monkeypatch, retried) == 0


def test_a_requeued_shard_goes_after_its_attempts(
    retried: Path, web: TinyWeb, finished_job: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    (retried / "arrow/00002.arrow").write_bytes(b"")
    assert verify(monkeypatch, retried, "--requeue") == 1
    assert indices(retried) == [0, 1, FIRST, SECOND]
    assert run_job(web, finished_job.folder, retried) == 0
    assert verify(monkeypatch, retried) == 0


def test_a_lost_index_of_an_attempt_is_restored(retried: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = retried / f"_index/{FIRST}.arrow"
    content = index.read_bytes()
    index.unlink()
    assert retry(retried) == 0
    assert index.read_bytes() == content


def test_an_object_store_keeps_and_loses_attempts_like_a_folder(
    retried: Path, web: TinyWeb, finished_job: Finished
) -> None:
    output = f"memory://{retried.parent.name}/out"
    store = Store(output)
    store.fs.put(f"{retried}/", f"{store.root}/", recursive=True)
    assert retry(output) == 0
    assert run_job(web, finished_job.folder, output) == 0
    found = [manifest["shard"] for manifest in read_manifests(store)]
    assert found == [0, 1, 2, FIRST, FIRST + 2, SECOND, SECOND + 2, 30_000_002]
    store.write("grit/00002.tar", "")  # seen when the shards are done, by the sizes in the manifests
    assert run_job(web, finished_job.folder, output) == 0
    assert [manifest["shard"] for manifest in read_manifests(store)] == [0, 1, 2, FIRST, SECOND]


def test_the_explorer_shows_which_result_of_a_row_counts(retried: Path, tmp_path: Path) -> None:
    build_index(*open_output(str(retried)), tmp_path)
    rows = pa.concat_tables(pa.ipc.open_file(path).read_all() for path in sorted(tmp_path.glob("rows-*.arrow")))
    reasons = json.loads((tmp_path / "words.json").read_text())["reason"]
    found = zip(rows["key"].to_pylist(), rows["reason"].to_pylist(), strict=True)
    counting = [key for key, reason in found if reasons[reason] != RETRIED]
    assert sorted(counting) == sorted(set(rows["key"].to_pylist()))
    assert len(counting) < rows.num_rows


def test_rows_that_count_are_paired_with_each_other(finished_job: Finished, retried: Path) -> None:
    outputs = [open_output(str(path)) for path in (finished_job.output, retried)]
    rows = [[key for m in manifests for b in read_batches(store, m, ("key",)) for key in b["key"].to_pylist()]
            for store, manifests in outputs]  # fmt: skip
    copies = [outputs[1], outputs[1]]
    for column in ("key", "url"):
        found = [pa.ipc.open_file(pair_rows(pair, column)).read_all()["row"].to_pylist() for pair in (outputs, copies)]
        last = {key: row for row, key in enumerate(rows[1])}
        assert found[0] == [last[key] for key in rows[0]], column
        assert found[1] == list(range(len(rows[1]))), column
    assert len(rows[1]) > len(rows[0])
