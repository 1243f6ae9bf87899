"""The learning rate of each step."""

from common.optim import warmup_cosine
from trainer.optim.config import OptimConfig


def learning_rate(step: int, config: OptimConfig) -> float:
    """The learning rate of step 0, 1, ...: linear warm-up from 0, then half a cosine to 0 (MERU, section 4.1)."""
    return config.lr * warmup_cosine(step, steps=config.steps, warmup_steps=config.warmup_steps)
