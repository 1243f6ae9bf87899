"""The local runner: rows that raise, crash, hang or exhaust memory cost themselves alone; shards fail alone."""

import dataclasses
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.errors import UserError
from pipeline.config import PipelineConfig, RayConfig, load_config
from pipeline.faults import Child, TooManyFaultsError
from pipeline.output.lock import hold_lease
from pipeline.output.store import Store
from pipeline.read.plan import plan_shards
from pipeline.read.types import ShardPlan
from pipeline.run.job import Shards, run_job
from pipeline.run.local import compute_local
from pipeline.run.loop import Run
from pipeline.run.provenance import make_provenance
from pipeline.run.steps import Done, Recipe
from tests.pipeline.jobs import hash_output
from tests.pipeline.poison import LightSteps, Poison, light_steps

FORMATS = "formats=[arrow]"


def job(tars: Path, output: Path, *arguments: str) -> tuple[PipelineConfig, list[ShardPlan]]:
    config = load_config([f"input={tars}", f"output={output}", "rows_per_shard=4", FORMATS, *arguments])
    return config, plan_shards(config.input, config.rows_per_shard, config.limit, config.read)


def dropped(manifest: dict) -> dict:  # type: ignore[type-arg]
    return manifest["counts"]["dropped"]  # type: ignore[no-any-return]


DETAILS = {
    "raise": "ZeroDivisionError: a \\x1b[31mbad\\nrow",
    "panic": "RustPanic: index out of bounds",
    "memory": "MemoryError",
    "segfault": "ProcessDiedError: killed by SIGSEGV",
    "kill": "ProcessDiedError: killed by SIGKILL",
    "hang": "StepTimeoutError: no result within 150 s",  # a row of four is searched for, in a quarter of the time
}
KILLING = ("segfault", "kill", "hang")
"""Each costs a process, so that the quick tests have one stage with one of them."""
BAD_ROWS = [
    pytest.param(
        stage, kind, marks=pytest.mark.rest if kind in KILLING and (stage, kind) != ("ground", "segfault") else ()
    )
    for kind in DETAILS
    for stage in ("download", "parse", "ground", "write")
]


def end_hanging_calls(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the time of a call be over as soon as its child has left a file in the folder, whatever the time limit is."""
    request = Child._request

    def impatient(child: Child, message: object, timeout_s: float) -> Any:
        assert child._process is not None
        poll, hangs = child._connection.poll, (folder / str(child._process.pid)).exists

        def is_answered(_: float) -> bool:
            while not (answered := poll(0.05)) and not hangs():
                pass
            return answered

        monkeypatch.setattr(child._connection, "poll", is_answered)
        return request(child, message, timeout_s)

    monkeypatch.setattr(Child, "_request", impatient)


@pytest.mark.parametrize(("stage", "kind"), BAD_ROWS)
def test_a_bad_row_is_dropped_by_name_and_its_neighbours_are_kept(
    tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, kind: str
) -> None:
    end_hanging_calls(monkeypatch, tmp_path)
    config, plans = job(tars, tmp_path / "out", "ray.step_timeout_s=600" if kind == "hang" else "ray.retries=0")
    poison = Poison(stage, 5, kind, hanging=str(tmp_path))
    results = list(compute_local(plans, config.ray, Recipe(light_steps(config, poison), config)))
    done = [result for result in results if isinstance(result, Done)]
    assert [result.manifest["counts"]["kept"] for result in done] == [4, 3, 2]
    assert dropped(done[1].manifest) == {stage: {"internal_error": 1}}
    (fault,) = done[1].faults
    assert (fault.key, fault.stage, fault.detail) == ("000000000005", stage, DETAILS[kind])


@pytest.mark.parametrize(
    ("kind", "detail"),
    [("segfault", "killed by SIGSEGV"), pytest.param("hang", "no result within 150 s", marks=pytest.mark.rest)],
)
def test_a_row_that_ends_the_process_while_it_is_read_is_dropped_alone(
    tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, detail: str
) -> None:
    end_hanging_calls(monkeypatch, tmp_path)
    config, plans = job(tars, tmp_path / "out", "ray.step_timeout_s=600" if kind == "hang" else "ray.retries=0")
    poison = Poison("read", 5, kind, hanging=str(tmp_path))
    results = list(compute_local(plans[1:2], config.ray, Recipe(light_steps(config, poison), config)))
    (done,) = [result for result in results if isinstance(result, Done)]
    assert (done.manifest["counts"]["kept"], dropped(done.manifest)) == (3, {"read": {"internal_error": 1}})
    assert [(fault.key, fault.stage, fault.detail.split(": ")[1]) for fault in done.faults] == [
        ("000000000005", "read", detail)
    ]


@pytest.mark.rest
def test_the_bytes_depend_on_the_bad_rows_alone_and_not_on_how_they_were_found(tars: Path, tmp_path: Path) -> None:
    """A crash that happens once changes nothing; rows that crash and rows that raise give the same shards."""
    outputs = {}
    for name, poisons in {
        "plain": (),
        "once": (Poison("parse", 5, "segfault", str(tmp_path / "marker")),),
        "twice": (Poison("parse", 5, "kill"), Poison("ground", 2, "raise")),
        "again": (Poison("parse", 5, "kill"), Poison("ground", 2, "raise")),
    }.items():
        config, plans = job(tars, tmp_path / name)
        assert all(
            isinstance(r, Done) for r in compute_local(plans, config.ray, Recipe(light_steps(config, *poisons), config))
        )
        outputs[name] = hash_output(tmp_path / name)
    assert outputs["plain"] == outputs["once"]
    assert outputs["twice"] == outputs["again"] != outputs["plain"]


def run(tars: Path, output: Path, *poisons: Poison, **limits: int) -> int:
    """The number of failed shards of a job with poisoned rows; each line of the log is also printed."""
    config, plans = job(tars, output)
    ray = RayConfig(runner="local", retries=1)
    config = dataclasses.replace(config, ray=ray, max_internal_errors=limits.get("faults"))
    with hold_lease(Store(config.output)) as lease:
        found = Run(config, lease, records=True, limited=plans)
        found.max_failed = limits.get("failed", found.max_failed)
        Shards(found, make_provenance(config), {}, partial(LightSteps, poisons=poisons)).finish(plans)
    return len(found.failed)


def test_a_shard_that_fails_is_recorded_and_the_next_run_computes_it_last(
    tars: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "out"
    assert run(tars, output, Poison("write", 1, "disk")) == 1
    record = json.loads((output / "_failed" / "00000.json").read_text())
    assert (record["shard"], record["rows"], record["step"], record["attempts"]) == (0, 4, "write", 2)
    assert "OSError: [Errno 5]" in record["error"]
    assert "Traceback" in record["traceback"]
    assert [m.name for m in sorted((output / "_manifests").iterdir())] == ["00001.json", "00002.json"]
    (line,) = [r.getMessage() for r in caplog.records if "failed" in r.getMessage()]
    assert "\n" not in line
    caplog.clear()
    assert run(tars, output) == 0
    assert not (output / "_failed" / "00000.json").exists()
    written = sorted((output / "_manifests").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert written[-1].name == "00000.json"


def test_too_many_failed_shards_stop_the_job(tars: Path, tmp_path: Path) -> None:
    poisons = [Poison("write", row, "disk") for row in (1, 5, 9)]
    with pytest.raises(UserError, match=r"2 shards failed, more than the job may lose \(1\)"):
        run(tars, tmp_path / "out", *poisons, failed=1)


@pytest.mark.parametrize(
    "kinds",
    [
        ("raise", "raise"),
        *(pytest.param(kinds, marks=pytest.mark.rest) for kinds in (("kill", "kill"), ("raise", "kill"))),
    ],
)
def test_too_many_internal_errors_stop_the_job_with_the_first(
    tars: Path, tmp_path: Path, kinds: tuple[str, str]
) -> None:
    poisons = [Poison("parse", 1, kinds[0]), Poison("parse", 6, kinds[1])]
    assert run(tars, tmp_path / "enough", *poisons, faults=2) == 0
    with pytest.raises(TooManyFaultsError, match=r"(?s)max_internal_errors.*row 000000000001.*(Zero|SIGKILL)"):
        run(tars, tmp_path / "too_few", *poisons, faults=1)


def test_the_limits_count_the_shards_of_all_formats(tars: Path, tmp_path: Path) -> None:
    """A finished shard that held more formats keeps them, so it is computed apart from the others."""
    make = partial(LightSteps, poisons=tuple(Poison("parse", row, "raise") for row in (1, 6)))
    config, plans = job(tars, tmp_path / "out", "ray.runner=local", "max_internal_errors=1")
    with hold_lease(Store(config.output)) as lease:
        found = Run(config, lease, records=True)
        shards = Shards(found, make_provenance(config), {0: ("arrow", "arrow")}, make)
        with pytest.raises(TooManyFaultsError, match="row 000000000001"):
            shards.finish(plans)
    assert [fault.key for fault in found.faults] == ["000000000001", "000000000006"]


def test_the_first_traceback_is_logged_in_full_and_later_ones_in_a_line(
    tars: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    poisons = [Poison("parse", row, "raise") for row in (1, 6)]
    assert run(tars, tmp_path / "out", *poisons) == 0
    first, second = (r.getMessage() for r in caplog.records if "internal_error" in r.getMessage())
    assert first.count("\n") > 3
    assert "Traceback" in first
    assert "\n" not in second


def test_an_input_that_vanished_costs_its_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.jsonl").write_text('{"url": "ftp://a/b.jpg", "caption": "a dog"}\n')
    config = load_config([f"input={folder}", f"output={tmp_path / 'out'}", "rows_per_shard=1", FORMATS])
    plans = plan_shards(config.input, 1, None, config.read)
    (folder / "1.jsonl").unlink()
    results = list(compute_local(plans, config.ray, Recipe(light_steps(config), config)))
    assert [isinstance(result, Done) for result in results] == [True, False, True]
    assert results[1].record["traceback"] == ""
    assert "1.jsonl" in results[1].record["error"]


def test_half_written_files_of_killed_workers_are_gone_at_the_end(
    tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, _ = job(tars, tmp_path / "out", "report.summary=false", "ray.runner=local")
    code = f"from hypergrit_common.disk import temporary_name; print(temporary_name({str(tmp_path / 'out/arrow/1')!r}))"
    left = Path(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip())

    def finish_and_leave(shards: Shards, plans: list[ShardPlan]) -> None:
        shards.make = partial(LightSteps, poisons=())
        finish(shards, plans)
        left.write_bytes(b"half")

    finish = Shards.finish
    monkeypatch.setattr(Shards, "finish", finish_and_leave)
    assert run_job(config).n_failures == 0
    assert sorted(path.name for path in left.parent.iterdir()) == ["00000.arrow", "00001.arrow", "00002.arrow"]
