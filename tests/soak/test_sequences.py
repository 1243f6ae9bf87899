"""Random sequences of all verbs with kills, damages, takedowns and two machines; a simple model says what must hold."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.sequences.steps import CASES, DISTURBED, FORMATS, MOST_CALLS, Step, from_json, make_steps, to_json

ROOT = Path(__file__).parents[2]
N_SEQUENCES, N_PARTS = 300, 15
N_SHORT, SHORT_PARTS = 10, 2
N_REMOTE, REMOTE_PARTS = 90, 9

pytestmark = pytest.mark.timeout(7200)


def play(*names: str) -> None:
    """Play sequences in a process that starts no threads, which it could not fork."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.soak.sequences", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-3000:]


@pytest.mark.soak
@pytest.mark.parametrize("part", range(N_PARTS))
def test_random_sequences(part: int, soak_seed: int) -> None:
    first = 1000 + N_SEQUENCES * soak_seed + part * (N_SEQUENCES // N_PARTS)
    play(f"{first}-{first + N_SEQUENCES // N_PARTS - 1}")


@pytest.mark.soak
@pytest.mark.parametrize("part", range(REMOTE_PARTS))
def test_random_sequences_in_an_object_store(part: int, soak_seed: int) -> None:
    first = 1000 + N_REMOTE * soak_seed + part * (N_REMOTE // REMOTE_PARTS)
    play("--store", f"{first}-{first + N_REMOTE // REMOTE_PARTS - 1}")


@pytest.mark.rest
def test_a_random_sequence_in_an_object_store() -> None:
    play("--store", "0")


@pytest.mark.rest
@pytest.mark.parametrize("part", range(SHORT_PARTS))
def test_some_random_sequences(part: int) -> None:
    first = part * (N_SHORT // SHORT_PARTS)
    play(f"{first}-{first + N_SHORT // SHORT_PARTS - 1}")


@pytest.mark.rest
def test_sequences_that_found_faults() -> None:
    play(*map(str, sorted(CASES.glob("*.json"))))


@pytest.mark.rest
@pytest.mark.parametrize("verb", DISTURBED)
def test_a_disk_that_is_full_during_each_verb(verb: str, tmp_path: Path) -> None:
    path = tmp_path / f"full_{verb}.json"
    path.write_text(to_json(on_full_disks(verb)))
    play(str(path))


def on_full_disks(verb: str) -> list[Step]:
    """Steps in which a verb meets a full disk at more and more of its I/O calls, each time with something left to do."""
    steps = [Step(verb="web", options=("down",)), Step(verb="run"), Step(verb="web", options=("up",))]
    options = {
        "rewrite": ("dedupe=[bytes]",),
        "takedown": ("url",),
        "explore": ("report",),
        "export": (FORMATS[0],),
    }.get(verb, ())
    for seed, at in enumerate(range(1, MOST_CALLS[verb], MOST_CALLS[verb] // 3)):
        if verb in ("run", "requeue"):
            steps.append(Step(verb="damage", options=("delete", "grit"), seed=seed))
        output = "b" if verb == "rewrite" else "a"
        steps.append(Step(verb=verb, output=output, options=options, kind="full", at=at, seed=seed))
    return steps


def test_a_sequence_is_that_of_its_seed_and_can_be_kept_as_json() -> None:
    assert make_steps(7) == make_steps(7) != make_steps(8)
    assert all(from_json(to_json(make_steps(seed))) == make_steps(seed) for seed in range(50))
