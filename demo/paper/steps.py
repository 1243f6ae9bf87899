"""Steps of a study as subprocesses: finished ones are kept, and as many run side by side as there are slots.

state/NAME.json   identity of the step, and its seconds once it is finished
logs/NAME.log     output of the last attempt
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from demo.train_demo_data import ROOT
from hypergrit_common.json_file import read_object, write_object
from hypergrit_common.processes import end_with_parent

POLL_S: Final = 0.2
STOP_S: Final = 60.0
LOG_LINES: Final = 12


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command that writes the folder `output`. It resumes its own work if it is repeated after an interruption.

    `identity` is all that the result depends on: a change of it deletes the output. The step waits for the steps `after`.
    """

    name: str
    kind: str
    command: tuple[str, ...]
    output: Path
    identity: dict[str, Any]
    after: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Number of steps that run side by side, the threads of each, and the GPUs that they share."""

    n_steps: int
    n_gpus: int = 0
    threads: int = 1

    def environment(self, slot: int) -> dict[str, str]:
        """Environment variables of a step in this slot."""
        found = os.environ | {"OMP_NUM_THREADS": str(self.threads)}
        return found | ({"CUDA_VISIBLE_DEVICES": str(slot % self.n_gpus)} if self.n_gpus else {})


def state_path(folder: Path, step: Step) -> Path:
    """The file with the state of a step."""
    return folder / "state" / f"{step.name}.json"


def seconds_of(folder: Path, step: Step) -> float | None:
    """Duration of a step that is finished with this identity; None if it has to run."""
    try:
        state = read_object(state_path(folder, step))
    except (OSError, ValueError):
        return None
    same = state.get("identity") == json.loads(json.dumps(step.identity))
    return float(state["seconds"]) if same and state.get("seconds") is not None and step.output.is_dir() else None


def begin(folder: Path, step: Step) -> None:
    """Delete the output of a step with another identity, and record the identity."""
    path = state_path(folder, step)
    identity = json.loads(json.dumps(step.identity))
    try:
        same = read_object(path).get("identity") == identity
    except (OSError, ValueError):
        same = False
    if not same:
        shutil.rmtree(step.output, ignore_errors=True)
    for name in ("state", "logs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    write_object({"identity": identity, "seconds": None}, path)


@dataclass
class Running:
    """A step that runs in a slot."""

    step: Step
    slot: int
    process: "subprocess.Popen[bytes]"
    start: float


def run_steps(
    folder: Path,
    steps: Sequence[Step],
    slots: Slots,
    report: Callable[[str], None],
    finished: Callable[[Step], None] = lambda step: None,
) -> None:
    """Run the steps that are not finished, and call `finished` after each of them.

    Raises RuntimeError with the end of the log of a step that fails, after the others have stopped with a checkpoint.
    """
    done = {step.name: seconds for step in steps if (seconds := seconds_of(folder, step)) is not None}
    waiting = [step for step in steps if step.name not in done]
    running: list[Running] = []
    if done:
        report(f"{len(done)} of {len(steps)} steps are finished")
    try:
        while waiting or running:
            for ready in [step for step in waiting if done.keys() >= set(step.after)]:
                if len(running) < slots.n_steps:
                    waiting.remove(ready)
                    running.append(start(folder, ready, free_slot(running), slots))
            time.sleep(POLL_S)
            for entry in [entry for entry in running if entry.process.poll() is not None]:
                running.remove(entry)
                seconds = finish(folder, entry)
                done[entry.step.name] = seconds
                finished(entry.step)
                left = time_left(steps, done, slots)
                report(f"{len(done)} of {len(steps)}: {entry.step.name}, {seconds:.0f} s; about {left} left")
    finally:
        stop([entry.process for entry in running])


def free_slot(running: Sequence[Running]) -> int:
    """The lowest slot without a step."""
    used = {entry.slot for entry in running}
    return next(slot for slot in range(len(used) + 1) if slot not in used)


def start(folder: Path, step: Step, slot: int, slots: Slots) -> Running:
    """Start a step. It gets a process group of its own, so that Ctrl-C reaches it only through `stop`."""
    begin(folder, step)
    with (folder / "logs" / f"{step.name}.log").open("wb") as log:
        process = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env=slots.environment(slot),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # SIGTERM if this process is killed, so that a repeated command runs alone
            preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGTERM),
        )
    return Running(step=step, slot=slot, process=process, start=time.monotonic())


def finish(folder: Path, entry: Running) -> float:
    """Record a finished step and return its seconds. Raises RuntimeError if it failed."""
    step, seconds = entry.step, time.monotonic() - entry.start
    if entry.process.returncode != 0:
        log = folder / "logs" / f"{step.name}.log"
        lines = log.read_text("utf-8", errors="replace").splitlines()[-LOG_LINES:]
        raise RuntimeError("\n".join([f"{step.name} failed with exit code {entry.process.returncode}; {log}:", *lines]))
    write_object({"identity": step.identity, "seconds": round(seconds, 1)}, state_path(folder, step))
    return seconds


def stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Ask processes to stop, which makes a training save a checkpoint, and kill those that do not."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def time_left(steps: Sequence[Step], done: dict[str, float], slots: Slots) -> str:
    """Time for the remaining steps, from the mean of the finished steps of the same kind, as text."""
    total = 0.0
    for step in steps:
        if step.name not in done:
            same = [done[other.name] for other in steps if other.name in done and other.kind == step.kind]
            total += sum(same or done.values()) / len(same or done)
    minutes = total / slots.n_steps / 60
    return f"{minutes / 60:.1f} h" if minutes >= 90 else f"{minutes:.0f} min"
