"""hypergrit run retry=true: which rows it tries again, the bytes of the shards that it replaces, and kills."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from hypergrit_common.disk import SUFFIX
from hypergrit_common.errors import UserError
from pipeline.commands import takedown
from pipeline.config import RayConfig
from pipeline.output.manifest import failed_shard
from pipeline.output.store import Store
from pipeline.read.types import ShardPlan
from pipeline.run.steps import Failed, Recipe, Steps
from tests.pipeline.commands.derive.outputs import LOCAL, killed_before_file, run_rewrite
from tests.pipeline.commands.derive.rows import rows_of, stats_of
from tests.pipeline.commands.retry.conftest import Finished
from tests.pipeline.commands.retry.jobs import retry, run_job
from tests.pipeline.commands.verify.damage import flip, flip_behind
from tests.pipeline.here import compute_here
from tests.pipeline.jobs import hash_output
from tests.pipeline.output.formats import defects
from tests.pipeline.stages.download.server import TinyWeb

RECOVERED = Counter({"/flaky/a": 3, "/flaky/b": 3, "/wait/0": 1, "/wait/1": 1})
"""Requests after which the server delivers all images."""
Printed = pytest.CaptureFixture[str]


def ledger(output: Path) -> dict[str, dict[str, Any]]:
    """The rows by key, each of which is there once."""
    rows = rows_of(output)
    found = {row["key"]: row for row in rows}
    assert len(found) == len(rows) == 12
    return found


def test_rows_that_failed_for_passing_reasons_are_tried_again_and_no_kept_row_is(output: Path, web: TinyWeb) -> None:
    before = hash_output(output)
    assert stats_of(output)["rows"]["dropped"] == {"download": {"http_error": 7}, "score": {"low_score": 1}}
    hits = web.hits.copy()
    assert retry(output) == 0
    tried = {"/flaky/a": 1, "/wait/0": 1, "/flaky/b": 1, "/wait/1": 1, "/status/503": 1}
    assert web.hits - hits == {**tried, "/image/1": 1}  # dropped by a model, in a shard with a row that succeeded
    after = hash_output(output)
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name] and "00001" in name} == set()
    assert stats_of(output)["rows"] == {
        "read": 12, "kept": 5,
        "dropped": {"download": {"duplicate": 1, "http_error": 5}, "score": {"low_score": 1}}, "unfinished": 0,
    }  # fmt: skip
    repeated = ledger(output)["000000000010"]
    assert (repeated["reason"], repeated["detail"]) == ("duplicate", "000000000009")
    assert 0 in stats_of(output)["places"]["kept"]  # the report shows the recovered row
    last = stats_of(output)["run"]
    assert ("retry=true" in last["command"], last["rows"]) == (True, sum(tried.values()))
    assert defects(output) == []


def test_retried_shards_are_those_of_a_job_in_which_the_rows_succeeded_at_once(
    retried: Path, web: TinyWeb, finished_job: Finished, tmp_path: Path
) -> None:
    web.hits = Counter(RECOVERED)
    assert run_job(web, finished_job.folder, tmp_path / "job") == 0
    assert hash_output(retried) == hash_output(tmp_path / "job")
    assert stats_of(retried)["rows"] == stats_of(tmp_path / "job")["rows"]
    assert stats_of(retried)["rows"]["kept"] == 7
    thumbnails = [(output / "_dropped/00000.arrow").read_bytes() for output in (retried, tmp_path / "job")]
    assert thumbnails[0] == thumbnails[1]


def test_an_unfinished_shard_has_what_the_web_answers_when_it_is_computed_again(
    output: Path, web: TinyWeb, finished_job: Finished
) -> None:
    before = ledger(output)
    (output / "_manifests/00000.json").unlink()
    assert run_job(web, finished_job.folder, output) == 0
    after = ledger(output)
    assert {key: after[key]["status"] for key in after if after[key] != before[key]} == {"000000000003": "kept"}


def test_a_remote_output_is_retried_like_a_folder(output: Path, web: TinyWeb, tmp_path: Path) -> None:
    store, hits = Store(f"memory://{tmp_path.name}/out"), web.hits.copy()
    store.fs.put(f"{output}/", f"{store.root}/", recursive=True)
    assert retry(output) == 0
    web.hits = hits
    assert retry(f"memory://{tmp_path.name}/out") == 0
    store.fs.get(f"{store.root}/", f"{tmp_path}/copy/", recursive=True)
    assert hash_output(tmp_path / "copy") == hash_output(output)


def test_rows_without_a_new_result_leave_the_files_alone(retried: Path, web: TinyWeb) -> None:
    before = {path: path.stat().st_ino for path in retried.glob("*/0*")}
    hits = web.hits.copy()
    assert retry(retried) == 0
    assert web.hits - hits == {"/status/503": 1}
    assert {path: path.stat().st_ino for path in retried.glob("*/0*")} == before


def test_a_new_reason_of_a_row_that_fails_again_is_recorded_and_other_rows_keep_their_columns(
    output: Path, web: TinyWeb
) -> None:
    before, hits = ledger(output), web.hits.copy()
    pictures = (output / "_dropped/00000.arrow").read_bytes()
    assert retry(output, "reasons=[503]", "download.timeout_s=0.0001") == 0
    assert not web.hits["/image/1"] - hits["/image/1"]
    after = ledger(output)
    assert {key for key in after if after[key] != before[key]} == {"000000000001", "000000000008", "000000000011"}
    assert {after[key]["reason"] for key in ("000000000001", "000000000011")} <= {"timeout", "connection_error"}
    assert (output / "_dropped/00000.arrow").read_bytes() == pictures
    assert defects(output) == []


def test_a_row_that_a_model_dropped_keeps_its_result_if_its_image_is_another_now(
    output: Path, web: TinyWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ledger(output)
    fetch = Steps.download

    def changed(self: Steps, plan: ShardPlan, parts: Any) -> Any:
        table, notes = fetch(self, plan, parts)
        if table["caption_original"].to_pylist() == ["one"]:
            index = table.schema.get_field_index("sha256")
            table = table.set_column(index, table.schema.field(index), [["f" * 64]])
        return table, notes

    monkeypatch.setattr(Steps, "download", changed)
    assert retry(output, "reasons=[429]") == 0
    after = ledger(output)
    assert after["000000000000"] == before["000000000000"]
    assert after["000000000003"]["status"] == "kept"


def test_reasons_select_the_rows(output: Path, web: TinyWeb) -> None:
    before, hits = hash_output(output), web.hits.copy()
    assert retry(output, "reasons=[timeout,500]") == 0
    assert web.hits == hits
    assert hash_output(output) == before
    assert retry(output, "reasons=[429,404]") == 0
    assert set(web.hits - hits) == {"/wait/0", "/wait/1", "/status/404", "/image/1"}


def interrupted(plans: Sequence[Any], config: RayConfig, recipe: Recipe) -> Iterator[Any]:
    """Compute one shard, then end as after Ctrl-C; search all shards."""
    yield from compute_here(plans if recipe.job is None else plans[:1], config, recipe)
    if recipe.job is not None:
        raise KeyboardInterrupt


def test_an_interrupted_retry_goes_on_with_the_rows_that_are_left(
    output: Path, web: TinyWeb, finished_job: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.hits = Counter(RECOVERED)
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.run.loop.compute_local", interrupted)
        assert retry(output) == 130
    hits = web.hits.copy()
    assert retry(output) == 0
    assert web.hits - hits == {"/flaky/b": 1, "/wait/1": 1, "/status/503": 1}
    web.hits = Counter(RECOVERED)
    assert run_job(web, finished_job.folder, tmp_path / "job") == 0
    assert hash_output(output) == hash_output(tmp_path / "job")


def test_a_new_file_that_was_changed_after_a_kill_never_replaces_the_old_one(
    output: Path, web: TinyWeb, finished_job: Finished, caplog: pytest.LogCaptureFixture
) -> None:
    web.hits = Counter(RECOVERED)
    with killed_before_file(0):
        assert retry(output) == 130
    (draft,) = (output / "train").glob(f"*{SUFFIX}")
    flip(draft)  # the size is that of the journal
    assert run_job(web, finished_job.folder, output) == 0
    assert "the shard was not replaced" in caplog.text
    assert defects(output) == []


@pytest.mark.parametrize("n", [0, 3, 6])
def test_a_kill_while_a_shard_is_replaced_is_finished_by_the_job(
    output: Path, web: TinyWeb, finished_job: Finished, tmp_path: Path, n: int
) -> None:
    web.hits = Counter(RECOVERED)
    with killed_before_file(n):
        assert retry(output) == 130
    hits = web.hits.copy()
    assert run_job(web, finished_job.folder, output) == 0
    assert web.hits == hits  # nothing is computed again
    assert len(ledger(output)) == 12
    assert defects(output) == []
    assert retry(output) == 0
    web.hits = Counter(RECOVERED)
    assert run_job(web, finished_job.folder, tmp_path / "job") == 0
    assert hash_output(output) == hash_output(tmp_path / "job")


def test_a_failed_shard_stays_and_is_tried_again_by_the_same_command(
    output: Path, web: TinyWeb, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(plans: Sequence[Any], config: RayConfig, recipe: Recipe) -> Iterator[Any]:
        yield from compute_here(plans if recipe.job is None else plans[:1], config, recipe)
        if recipe.job is None:
            return
        yield Failed(failed_shard(plans[1], "prepare", "no file", "", attempts=1))

    before = hash_output(output)
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.run.loop.compute_local", fail)
        assert retry(output) == 3
    assert "shard 2 failed in prepare after 1 attempt, the others go on: no file" in caplog.text
    after = hash_output(output)
    assert [after[name] for name in after if "00002" in name] == [before[name] for name in before if "00002" in name]
    assert not (output / "_failed").exists()
    assert stats_of(output)["rows"]["read"] == 12
    assert retry(output) == 0
    assert stats_of(output)["rows"]["dropped"]["download"]["duplicate"] == 1


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("score.min_score=0.9", "retry cannot change score.min_score"),
        ("download.max_bytes=100", "retry cannot change download.max_bytes"),
        ("reasons=[duplicate]", "give HTTP statuses (429, 5xx) and drop reasons of the download"),
        ("reasons=[5x]", "reasons is ['5x']"),
        ("reasons=[[timeout]]", "reasons is "),
        ("overwrite=true", "retry cannot change overwrite, a setting of the job"),
        ("input=/no/folder", "input '/no/folder' does not exist"),
        ("limit=3", "retry cannot change limit, a setting of the job"),
        ("output=other", "2 outputs are given"),
    ],
)
def test_other_settings_are_refused(output: Path, capsys: Printed, argument: str, text: str) -> None:
    assert retry(output, argument) == 2
    assert text in capsys.readouterr().err


def test_the_arguments_of_the_job_may_be_given_again(output: Path) -> None:
    job = yaml.safe_load((output / "config.yaml").read_text())
    assert retry(output, f"input={job['input']}", f"rows_per_shard={job['rows_per_shard']}") == 0


def test_the_help_names_the_reasons(capsys: Printed, output: Path) -> None:
    assert retry(output, "--help") == 0
    text = capsys.readouterr().out
    assert "hypergrit run retry=true output=OUT" in text
    assert "reasons" in text


def test_an_output_that_the_job_cannot_resume_is_refused(output: Path, web: TinyWeb, capsys: Printed) -> None:
    (output / "_job.json").rename(output / "job.json")
    assert retry(output) == 2
    assert "retry needs an output of the job, or of a rewrite" in capsys.readouterr().err
    (output / "job.json").rename(output / "_job.json")
    record = json.loads((output / "_job.json").read_text())
    record["provenance"]["packages"]["torch"] = "1.0"
    (output / "_job.json").write_text(json.dumps(record))
    for path in (output / "_manifests").iterdir():
        path.write_text(path.read_text().replace(record["provenance"]["hypergrit"], "0.0.1"))
    assert retry(output) == 2
    assert "retry needs an output with which the job can be resumed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("formats", "text"), [("[train,grit]", "has no arrow/ file"), ("[train,arrow]", "has no stored images")]
)
def test_an_output_without_rows_or_images_is_refused(
    web: TinyWeb, finished_job: Finished, tmp_path: Path, capsys: Printed, formats: str, text: str
) -> None:
    assert run_job(web, finished_job.folder, tmp_path / "out", f"formats={formats}") == 0
    assert retry(tmp_path / "out") == 2
    assert text in capsys.readouterr().err


def test_images_in_arrow_are_enough(web: TinyWeb, finished_job: Finished, tmp_path: Path) -> None:
    settings = ("formats=[arrow]", "write.image_bytes=true")
    assert run_job(web, finished_job.folder, tmp_path / "out", *settings) == 0
    web.hits = Counter(RECOVERED)
    assert retry(tmp_path / "out") == 0
    assert web.hits["/image/2"] == 0
    web.hits = Counter(RECOVERED)
    assert run_job(web, finished_job.folder, tmp_path / "job", *settings) == 0
    assert hash_output(tmp_path / "out") == hash_output(tmp_path / "job")


def test_a_damaged_shard_is_left_to_the_job(retried: Path, web: TinyWeb, finished_job: Finished) -> None:
    (retried / "grit/00002.tar").write_bytes(b"")
    assert retry(retried) == 0
    assert run_job(web, finished_job.folder, retried) == 0
    assert stats_of(retried)["rows"]["read"] == 12


def test_the_job_leaves_retried_shards_alone(retried: Path, web: TinyWeb, finished_job: Finished) -> None:
    before, stats, hits = hash_output(retried), stats_of(retried), web.hits.copy()
    assert run_job(web, finished_job.folder, retried) == 0
    assert hash_output(retried) == before
    assert stats_of(retried) == stats
    assert web.hits == hits


def test_an_output_of_rewrite_can_be_retried(output: Path, web: TinyWeb, tmp_path: Path) -> None:
    assert run_rewrite(output, tmp_path / "new") == 0
    web.hits = Counter(RECOVERED)
    assert retry(tmp_path / "new") == 0
    assert stats_of(tmp_path / "new")["rows"]["kept"] == 7


def test_rows_that_were_taken_down_do_not_return(output: Path, web: TinyWeb, tmp_path: Path) -> None:
    rows = ledger(output)
    gone = {"000000000001", "000000000004", "000000000009"}  # failed, kept, and kept with a duplicate to come
    (tmp_path / "list.txt").write_text("\n".join(str(rows[key]["url"]) for key in gone) + "\n")
    assert takedown.main([str(output), f"list={tmp_path / 'list.txt'}", *LOCAL]) == 0
    web.hits = Counter(RECOVERED)
    assert retry(output) == 0
    after = ledger(output)
    assert {key for key, row in after.items() if row["reason"] == "taken_down"} == gone
    assert not any(after[key]["url"] or after[key]["caption_original"] for key in gone)
    assert web.hits["/flaky/a"] == RECOVERED["/flaky/a"]
    assert defects(output) == []


def test_a_job_whose_proxy_looks_names_up_leaves_an_output_for_all_commands(output: Path, tmp_path: Path) -> None:
    path = output / "config.yaml"
    path.write_text(path.read_text().replace("proxy_resolves: false", "proxy_resolves: true"))
    assert run_rewrite(output, tmp_path / "new") == 0
    assert retry(output) == 0


def test_a_retry_copies_no_damaged_picture(output: Path, web: TinyWeb, caplog: pytest.LogCaptureFixture) -> None:
    flip_behind(output / "grit/00002.tar")
    manifest = (output / "_manifests/00002.json").read_bytes()
    web.hits = Counter(RECOVERED)
    assert retry(output) == 3
    assert re.search(r"shard 2 of .* is damaged \(grit/00002.tar", caplog.text)  # the runner goes on with the others
    assert (output / "_manifests/00002.json").read_bytes() == manifest
    assert defects(output)


def test_the_proxy_and_the_headers_of_the_job_are_demanded_again(
    web: TinyWeb, finished_job: Finished, tmp_path: Path, capsys: Printed
) -> None:
    origin, output = web.url("").rstrip("/"), tmp_path / "out"
    headers = 'download.headers={"%s": {"X-Token": "%s"}}'
    assert run_job(web, finished_job.folder, output, headers % (origin, "SECRET")) == 0
    record = json.loads((output / "_job.json").read_text())
    assert record["secrets"] == [origin]
    record["secrets"] += ["proxy", "https://b.test"]
    (output / "_job.json").write_text(json.dumps(record))
    assert not any(b"SECRET" in path.read_bytes() for path in output.rglob("*") if path.is_file())
    hits = web.hits.copy()
    none = f'{{"{origin}": {{}}, "https://b.test": {{}}}}'
    for arguments, text in (
        ([], f"a proxy and with headers for {origin}, https://b.test, which is not saved; give download.proxy=URL again, or "
             f"download.proxy=none; give them again in download.headers, or {none} for none"),
        (["download.proxy=none"], f"downloaded with headers for {origin}, https://b.test, which"),
        ([f"download.headers={none}"], "downloaded through a proxy, which"),
    ):  # fmt: skip
        assert retry(output, *arguments) == 2
        assert text in capsys.readouterr().err
    assert web.hits == hits
    web.hits = Counter(RECOVERED)
    assert retry(output, "download.proxy=none", f"download.headers={none}") == 0
    (output / "_manifests/00000.json").unlink()
    hits = web.hits.copy()
    for mode in ("dry_run=false", "dry_run=true"):
        with pytest.raises(UserError, match=r"download.proxy=none"):
            run_job(web, finished_job.folder, output, headers % (origin, "SECRET"), mode)
    assert web.hits == hits
    both = 'download.headers={"%s": {"X-Token": "SECRET"}, "https://b.test": {}}' % origin  # noqa: UP031
    assert run_job(web, finished_job.folder, output, both, "download.proxy=none") == 0
    assert json.loads((output / "_job.json").read_text())["secrets"] == [origin]
    assert run_job(web, finished_job.folder, output) == 0  # nothing to download


def test_a_shard_whose_damage_is_found_late_is_not_downloaded_without_them(
    web: TinyWeb, finished_job: Finished, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = json.loads((output / "_job.json").read_text())
    (output / "_job.json").write_text(json.dumps({**record, "secrets": ["proxy"]}))
    (output / "_index/00000.arrow").unlink()
    monkeypatch.setattr("pipeline.run.job.restored", lambda *_: False)
    hits = web.hits.copy()
    with pytest.raises(UserError, match=r"download.proxy=none"):
        run_job(web, finished_job.folder, output)
    assert web.hits == hits
