"""The command pipeline.retry: which rows it tries again, its attempts, and resuming."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from pipeline.config import PipelineConfig
from pipeline.read.types import ShardPlan
from pipeline.retry.options import RetryOptions
from pipeline.retry.state import next_attempt, read_state, write_state
from pipeline.run import Steps
from pipeline.write.store import Store
from schemas.manifest import FailedShard
from tests.pipeline.derive.rows import manifests_of, rows_of, stats_of
from tests.pipeline.download.server import TinyWeb
from tests.pipeline.jobs import hash_output
from tests.pipeline.retry.jobs import compute_here, retry

FIRST, SECOND = 10_000_000, 20_000_000


def indices(output: Path) -> list[int]:
    return [manifest["shard"] for manifest in manifests_of(output)]


def state(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output / "_retry.json").read_bytes())
    return found


def latest(output: Path) -> dict[str, Any]:
    """The row of each key in its last attempt."""
    rows = rows_of(output)
    assert len(rows) == sum(manifest["counts"]["read"] for manifest in manifests_of(output))
    return {row["key"]: row for row in rows}  # files of later attempts come later


def test_rows_that_failed_for_passing_reasons_are_tried_again_in_shards_beside_the_others(
    output: Path, web: TinyWeb, capsys: pytest.CaptureFixture[str]
) -> None:
    before = hash_output(output)
    assert stats_of(output)["rows"]["dropped"] == {"download": {"http_error": 7}}
    hits = web.hits.copy()
    assert retry(output) == 0
    assert web.hits - hits == {"/flaky/a": 1, "/wait/0": 1, "/flaky/b": 1, "/wait/1": 1, "/status/503": 1}
    assert before.items() <= hash_output(output).items()
    assert indices(output) == [0, 1, 2, FIRST, FIRST + 2]
    rows = stats_of(output)["rows"]
    assert rows == {
        "read": 12, "kept": 6, "dropped": {"download": {"duplicate": 1, "http_error": 5}}, "unfinished": 0,
        "retried": 5, "recovered": 1,
    }  # fmt: skip
    assert f"{'rows tried again':45}5  1 of them kept" in capsys.readouterr().out
    assert [host["rows"] for host in stats_of(output)["failures"]] == [6]
    found = latest(output)
    assert len(found) == 12
    assert sum(row["status"] == "kept" for row in found.values()) == 6
    repeated = found["000000000010"]
    assert (repeated["reason"], repeated["detail"]) == ("duplicate", "000000000009")
    assert state(output)["finished"]


def test_a_second_attempt_tries_those_rows_that_failed_again(retried: Path, web: TinyWeb) -> None:
    output = retried
    assert indices(output) == [0, 1, 2, FIRST, FIRST + 2, SECOND, SECOND + 2]
    last = manifests_of(output)[-1]
    assert last["retry"] == {
        "attempt": 2, "shard": 2, "replaced": {"download": {"http_error": 2}}, "before": {"1": 2}
    }  # fmt: skip
    rows = stats_of(output)["rows"]
    assert rows == {
        "read": 12, "kept": 8, "dropped": {"download": {"duplicate": 1, "http_error": 3}}, "unfinished": 0,
        "retried": 8, "recovered": 3,
    }  # fmt: skip
    page = (output / "report.html").read_text()
    assert "tried 8 rows again and kept 3 of them" in page
    assert "/wait/0" not in page  # no example of a drop any more


def test_reasons_select_the_rows_and_an_attempt_without_rows_is_none(output: Path, web: TinyWeb) -> None:
    assert retry(output, "reasons=[timeout,500]") == 0
    assert indices(output) == [0, 1, 2]
    assert not (output / "_retry.json").exists()
    assert retry(output, "reasons=[429,404]") == 0
    assert [(m["shard"], m["counts"]["read"]) for m in manifests_of(output)[3:]] == [(FIRST, 2), (FIRST + 2, 1)]
    assert retry(output, "reasons=[http_error]") == 0
    assert [m["retry"]["before"] for m in manifests_of(output)[5:]] == [{"0": 1, "1": 1}, {"0": 1}, {"0": 2}]
    rows = stats_of(output)["rows"]
    assert rows["read"] == 12 == rows["kept"] + sum(rows["dropped"]["download"].values())


def interrupted(plans: Sequence[ShardPlan], config: PipelineConfig, make_steps: Callable[[], Steps]) -> Iterator[Any]:
    """Compute one shard, then end as after Ctrl-C."""
    yield from compute_here(plans[:1], config, make_steps)
    raise KeyboardInterrupt


def test_an_interrupted_attempt_is_finished_and_tries_no_row_twice(
    output: Path, web: TinyWeb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.compute.compute_local", interrupted)
        assert retry(output) == 130
    assert indices(output) == [0, 1, 2, FIRST]
    assert not state(output)["finished"]
    assert retry(output, "reasons=[timeout]") == 2
    assert "attempt 1 has not finished: finish it with its reasons=[408,425,429,5xx," in capsys.readouterr().err
    first, hits = hash_output(output), web.hits.copy()
    assert retry(output) == 0
    assert web.hits - hits == {"/flaky/b": 1, "/wait/1": 1, "/status/503": 1}
    assert first.items() <= hash_output(output).items()
    assert indices(output) == [0, 1, 2, FIRST, FIRST + 2]
    assert state(output) == {**state(output), "attempt": 1, "finished": True}
    assert stats_of(output)["rows"]["recovered"] == 1


def test_a_new_attempt_can_begin_before_the_last_one_has_finished(
    output: Path, web: TinyWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.compute.compute_local", interrupted)
        assert retry(output) == 130
    assert retry(output, "new_attempt=true") == 0
    assert indices(output) == [0, 1, 2, FIRST, SECOND, SECOND + 2]
    assert stats_of(output)["rows"]["recovered"] == 2  # /wait/0, then /flaky/a
    (output / "_retry.json").unlink()
    assert retry(output) == 0
    assert state(output)["attempt"] == 3


def test_a_failed_shard_is_tried_again_by_the_same_command(
    output: Path, web: TinyWeb, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(plans: Sequence[ShardPlan], config: PipelineConfig, make_steps: Callable[[], Steps]) -> Iterator[Any]:
        yield from compute_here(plans[:1], config, make_steps)
        failed: FailedShard = {
            "shard": plans[1].index, "rows": plans[1].n_rows, "step": "prepare", "error": "no file", "traceback": "",
            "attempts": 1,
        }  # fmt: skip
        yield failed

    with monkeypatch.context() as patch:
        patch.setattr("pipeline.compute.compute_local", fail)
        assert retry(output) == 3
    assert f"shard {FIRST + 2} failed in prepare, the others go on: no file" in caplog.text
    assert not (output / "_failed").exists()
    assert stats_of(output)["rows"]["read"] == 12
    assert retry(output) == 0
    assert indices(output) == [0, 1, 2, FIRST, FIRST + 2]
    assert state(output)["finished"]


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("score.min_score=0.9", "retry cannot change score.min_score"),
        ("reasons=[duplicate]", "give HTTP statuses (429, 5xx) and drop reasons of the download"),
        ("reasons=[5x]", "reasons is ['5x']"),
        ("reasons=[[timeout]]", "reasons is "),
        ("overwrite=true", "retry cannot change overwrite, a setting of the job"),
    ],
)
def test_other_settings_are_refused(output: Path, capsys: pytest.CaptureFixture[str], argument: str, text: str) -> None:
    assert retry(output, argument) == 2
    assert text in capsys.readouterr().err


def test_settings_of_the_download_may_change_for_an_attempt(output: Path, web: TinyWeb) -> None:
    assert retry(output, "download.max_bytes=100", "download.retries=1", "download.backoff_s=0") == 0
    new = manifests_of(output)[3]
    assert new["counts"]["dropped"] == {"download": {"too_many_bytes": 2}}  # /flaky/a answers the second request
    assert new["provenance"]["config_hash"] != manifests_of(output)[0]["provenance"]["config_hash"]
    assert new["runtime"]["download"]["retries"] == 1
    assert "max_bytes: 100" not in (output / "config.yaml").read_text()


@pytest.mark.parametrize(
    "state",
    [
        "", "5", "[]", '{"attempt": 1}', '{"attempt": "1", "reasons": ["429"], "finished": true}',
        '{"attempt": 1, "reasons": "429", "finished": true}', '{"attempt": 1, "reasons": [5], "finished": true}',
        '{"attempt": 1, "reasons": ["429"], "finished": null}', '{"attempt": 0, "reasons": ["429"], "finished": true}',
        '{"attempt": -1, "reasons": ["429"], "finished": false}', '{"attempt": 1e400, "reasons": [], "finished": true}',
        '{"attempt": 201, "reasons": ["429"], "finished": true}',
    ],
)  # fmt: skip
def test_a_damaged_state_is_named(tmp_path: Path, state: str) -> None:
    store = Store(str(tmp_path))
    store.write("_retry.json", state)
    with pytest.raises(UserError, match=r"_retry\.json is damaged .*; remove it, and the next run is a new attempt"):
        read_state(store)


def test_there_are_200_attempts(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    write_state(store, {"attempt": 199, "reasons": ["429"], "finished": True})
    assert next_attempt(read_state(store), RetryOptions(), [0])["attempt"] == 200
    with pytest.raises(UserError, match="has 200 attempts"):
        next_attempt(read_state(store), RetryOptions(), [0, 2_000_000_000])


def test_an_output_that_the_job_cannot_resume_is_refused(
    output: Path, web: TinyWeb, capsys: pytest.CaptureFixture[str]
) -> None:
    (output / "_job.json").rename(output / "job.json")
    assert retry(output) == 2
    assert "retry needs an output of the job or of refilter" in capsys.readouterr().err
    (output / "job.json").rename(output / "_job.json")
    record = json.loads((output / "_job.json").read_text())
    record["provenance"]["packages"]["torch"] = "1.0"
    (output / "_job.json").write_text(json.dumps(record))
    for path in (output / "_manifests").iterdir():
        path.write_text(path.read_text().replace(record["provenance"]["hypergrit"], "0.0.1"))
    assert retry(output) == 2
    assert "retry needs an output with which the job can be resumed" in capsys.readouterr().err
