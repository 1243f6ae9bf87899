"""Steps of the miniature study: order, resuming, and failures."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from demo.paper.steps import Slots, Step, run_steps, seconds_of

ROOT = Path(__file__).parents[3]
WRITE = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.mkdir(exist_ok=True); (p / sys.argv[2]).touch()"
WAIT = f"""{WRITE}
import signal, time
signal.signal(signal.SIGTERM, lambda *_: ((p / "checkpoint").touch(), sys.exit(143)))
(p / "ready").touch()
time.sleep(60)"""


def step(folder: Path, name: str, code: str = WRITE, identity: object = 0, after: tuple[str, ...] = ()) -> Step:
    output = folder / name
    return Step(
        name=name,
        kind="test",
        command=(sys.executable, "-c", code, str(output), f"by-{identity}"),
        output=output,
        identity={"value": identity},
        after=after,
    )


def run(folder: Path, *steps: Step, n: int = 2) -> list[str]:
    lines: list[str] = []
    run_steps(folder, steps, Slots(n_steps=n), lines.append)
    return lines


def wait_for(path: Path) -> None:
    limit = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < limit, path
        time.sleep(0.05)


def test_finished_steps_are_kept_and_others_run_after_theirs(tmp_path: Path) -> None:
    first, second = step(tmp_path, "first"), step(tmp_path, "second", after=("first",))
    lines = run(tmp_path, second, first)
    assert [line.split(":")[1].split(",")[0].strip() for line in lines] == ["first", "second"]
    assert lines[-1].endswith("about 0 min left")
    assert (tmp_path / "second" / "by-0").exists()
    assert run(tmp_path, second, first) == ["2 of 2 steps are finished"]


def test_a_step_with_another_identity_starts_from_nothing(tmp_path: Path) -> None:
    run(tmp_path, step(tmp_path, "first"))
    changed = step(tmp_path, "first", identity=1)
    assert seconds_of(tmp_path, changed) is None
    run(tmp_path, changed)
    assert [path.name for path in (tmp_path / "first").iterdir()] == ["by-1"]


@pytest.mark.rest
def test_the_output_of_an_interrupted_step_is_kept_for_its_own_resuming(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        run(tmp_path, step(tmp_path, "first", WRITE + "; sys.exit(1)"))
    (tmp_path / "first" / "checkpoint").touch()
    run(tmp_path, step(tmp_path, "first"))
    assert (tmp_path / "first" / "checkpoint").exists()


def test_a_failure_names_the_log_and_stops_the_others_with_a_checkpoint(tmp_path: Path) -> None:
    ready = tmp_path / "slow" / "ready"
    fail = f"import pathlib, sys, time\nwhile not pathlib.Path({str(ready)!r}).exists(): time.sleep(0.05)\nsys.exit('no disk')"
    with pytest.raises(RuntimeError, match=r"(?s)broken failed with exit code 1; .*broken\.log:\nno disk"):
        run(tmp_path, step(tmp_path, "slow", WAIT), step(tmp_path, "broken", fail))
    assert (tmp_path / "slow" / "checkpoint").exists()


def test_gpus_are_shared_by_the_slots() -> None:
    slots = Slots(n_steps=4, n_gpus=2)
    assert [slots.environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(4)] == ["0", "1", "0", "1"]
    assert slots.environment(0)["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_study_ends_its_steps(tmp_path: Path, number: int) -> None:
    code = (
        "import sys; from pathlib import Path; from hypergrit_common.cli import sigterm_raises\n"
        "from demo.paper.steps import Slots, Step, run_steps\n"
        "folder, wait = Path(sys.argv[1]), sys.argv[2]\n"
        "command = (sys.executable, '-c', wait, str(folder / 'slow'), 'by-0')\n"
        "step = Step(name='slow', kind='test', command=command, output=folder / 'slow', identity={})\n"
        "with sigterm_raises():\n    run_steps(folder, [step], Slots(n_steps=1), print)"
    )
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(ROOT)}
    study = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), WAIT], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(tmp_path / "slow" / "ready")
        study.send_signal(number)
        study.wait(timeout=30)
        wait_for(tmp_path / "slow" / "checkpoint")
    finally:
        study.kill()
        study.wait()
