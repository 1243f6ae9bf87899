"""The workers of a job, as far as its duration depends on them."""

from collections.abc import Mapping
from dataclasses import dataclass

WAITING = "download"
"""The stage that mostly waits for the network, and leaves its CPU to others meanwhile."""
DOWNLOAD_CPU = "download on the CPU"
"""Name for the part of its time in which it does not."""
MODEL_STAGES = ("ground", "score")


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Workers at hand. `tasks` prepare and write shards, `models` ground and score, each with `gpus_per_model` GPUs."""

    description: str
    cpus: float
    tasks: float
    models: float
    gpus_per_model: float = 0.0
    is_sequential: bool = False

    def wall_seconds(self, times: Mapping[str, float], n_shards: int) -> float:
        """Return the duration of a job from the seconds of each stage, and of DOWNLOAD_CPU, summed over its shards.

        Steps of different shards overlap, so the busiest resource decides: model workers, tasks, or CPUs if both share
        them. A shard is in one step at a time.
        """
        seconds = {name: value for name, value in times.items() if name != DOWNLOAD_CPU}
        total, model = sum(seconds.values()), sum(seconds.get(name, 0.0) for name in MODEL_STAGES)
        if self.is_sequential:
            return total
        tasks, models = max(min(self.tasks, n_shards), 1e-9), max(min(self.models, n_shards), 1e-9)
        longest = max(model / models, (total - model) / tasks, total / n_shards if n_shards else 0.0)
        on_cpus = total - seconds.get(WAITING, 0.0) + times.get(DOWNLOAD_CPU, 0.0)
        on_cpus -= model if self.gpus_per_model else 0.0
        return max(longest, on_cpus / max(self.cpus, 1e-9))


def local_capacity() -> Capacity:
    """Return the capacity of `ray.runner=local`: one shard after the other."""
    return Capacity(description="this machine, one process", cpus=1, tasks=1, models=1, is_sequential=True)
