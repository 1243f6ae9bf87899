"""The learning rate of each step."""

from common.optim import warmup_cosine
from trainer.optim.config import OptimConfig


def learning_rate(step: int, config: OptimConfig) -> float:
    """The learning rate of step 0, 1, ...: a linear warm-up from 0, then `config.schedule`.

    "cosine" is half a cosine (MERU, section 4.1; the papers' models). "wsd" is constant until the last `decay_steps`
    steps, in which the rate falls linearly (Hu et al. 2024, arXiv 2404.06395, section 4; the linear form is that of
    Hägele et al. 2024, arXiv 2405.18392). Both end at `final_lr_ratio`.
    """
    final, steps, warmup = config.final_lr_ratio, config.steps, config.warmup_steps
    match config.schedule:
        case "cosine":
            ratio = warmup_cosine(step, steps=steps, warmup_steps=warmup, final_ratio=final)
        case "constant":
            ratio = rise(step, warmup)
        case "wsd":
            left = min((steps - step) / config.decay_steps, 1.0)
            ratio = min(rise(step, warmup), final + (1 - final) * left)
    return config.lr * ratio


def rise(step: int, warmup_steps: int) -> float:
    """The linear warm-up from 0 to 1."""
    return step / warmup_steps if step < warmup_steps else 1.0
