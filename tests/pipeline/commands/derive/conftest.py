"""Jobs and commands run in the process of the test, which may have patched what a worker calls, unless they ask for two."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pipeline.config import RayConfig
from pipeline.run.local import compute_local
from pipeline.run.steps import Recipe
from tests.pipeline.here import compute_here


def compute(plans: Sequence[Any], config: RayConfig, recipe: Recipe) -> Iterator[Any]:
    """Compute shards in child processes for two workers, else here."""
    return (compute_local if config.cpu_workers == 2 else compute_here)(plans, config, recipe)


@pytest.fixture(autouse=True, scope="module")
def one_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.run.loop.compute_local", compute)
        yield
