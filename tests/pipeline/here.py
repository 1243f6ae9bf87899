"""A runner that computes finished shards in this process, so that tests can patch what their workers call."""

from collections.abc import Iterator, Sequence
from typing import Any

from hypergrit_common.errors import UserError
from pipeline.config import RayConfig
from pipeline.faults import RemoteError, ShardError, describe
from pipeline.run.local import compute_local as in_children
from pipeline.run.local import record_of
from pipeline.run.steps import Recipe


def compute_here(plans: Sequence[Any], config: RayConfig, recipe: Recipe) -> Iterator[Any]:
    """Compute finished shards here, and those of jobs in a child process."""
    if recipe.job is not None:
        yield from in_children(plans, config, recipe)
        return
    steps = recipe.make()
    for plan in plans:
        yield attempt(steps, plan, config.retries)


def attempt(steps: Any, plan: Any, retries: int) -> Any:
    """Return the result of a shard, or the record of its failure."""
    for n in range(1, retries + 2):
        try:
            return steps.compute(plan)
        except UserError:
            raise
        except ShardError as error:
            failed = record_of(plan, "compute", error, n)
        except Exception as error:
            failed = record_of(plan, "compute", RemoteError(describe(error), "Traceback"), n)
    return failed
