"""Random sequences of all verbs with kills, damages, takedowns and two machines; a simple model says what must hold."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.sequences.steps import CASES, from_json, make_steps, to_json

ROOT = Path(__file__).parents[2]
N_SEQUENCES, N_PARTS = 300, 15
N_SHORT, SHORT_PARTS = 20, 2

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


@pytest.mark.rest
@pytest.mark.parametrize("part", range(SHORT_PARTS))
def test_some_random_sequences(part: int) -> None:
    first = part * (N_SHORT // SHORT_PARTS)
    play(f"{first}-{first + N_SHORT // SHORT_PARTS - 1}")


@pytest.mark.rest
def test_sequences_that_found_faults() -> None:
    play(*map(str, sorted(CASES.glob("*.json"))))


def test_a_sequence_is_that_of_its_seed_and_can_be_kept_as_json() -> None:
    assert make_steps(7) == make_steps(7) != make_steps(8)
    assert all(from_json(to_json(make_steps(seed))) == make_steps(seed) for seed in range(50))
