"""Commands with one worker run in the process of the test, which may have patched what the worker calls."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pipeline.config import RayConfig
from pipeline.run.local import compute_local
from pipeline.run.steps import Recipe
from tests.pipeline.here import compute_here


def compute(plans: Sequence[Any], config: RayConfig, recipe: Recipe) -> Iterator[Any]:
    """Compute shards here for one worker, else in child processes."""
    return (compute_here if config.cpu_workers == 1 else compute_local)(plans, config, recipe)


@pytest.fixture(autouse=True, scope="module")
def one_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.run.loop.compute_local", compute)
        yield
