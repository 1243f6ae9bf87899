from typing import Any

import pytest

from trainer.optim.config import OptimConfig
from trainer.optim.optimizer import learning_rate


def test_learning_rate_rises_from_zero_to_its_peak_and_falls_to_zero() -> None:
    config = OptimConfig(lr=1.0, warmup_steps=10, steps=110)
    rates = [learning_rate(step, config) for step in range(111)]
    assert rates[0] == 0
    assert rates[10] == 1
    assert rates[60] == pytest.approx(0.5)
    assert rates[110] == pytest.approx(0, abs=1e-12)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({"warmup_steps": 4, "steps": 9, "schedule": "constant"}, [0, 0.5, 1, 1.5, 2, 2, 2, 2, 2, 2]),
        (
            {"warmup_steps": 2, "steps": 10, "schedule": "wsd", "decay_steps": 4, "final_lr_ratio": 0.5},
            [0, 1, 2, 2, 2, 2, 2, 1.75, 1.5, 1.25, 1],
        ),
        ({"warmup_steps": 0, "steps": 2, "final_lr_ratio": 0.1}, [2, 1.1, 0.2]),  # a cosine
    ],
)
def test_rates_of_a_schedule(settings: dict[str, Any], rates: list[float]) -> None:
    config = OptimConfig(lr=2.0, **settings)
    assert [learning_rate(step, config) for step in range(len(rates))] == pytest.approx(rates)
