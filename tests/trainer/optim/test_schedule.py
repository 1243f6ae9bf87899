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


def test_a_constant_rate_stays_at_its_peak_after_the_warm_up() -> None:
    config = OptimConfig(lr=2.0, warmup_steps=4, steps=9, schedule="constant")
    assert [learning_rate(step, config) for step in range(10)] == [0, 0.5, 1, 1.5, 2, 2, 2, 2, 2, 2]


def test_a_wsd_rate_is_constant_until_a_linear_decay() -> None:
    config = OptimConfig(lr=2.0, warmup_steps=2, steps=10, schedule="wsd", decay_steps=4, final_lr_ratio=0.5)
    assert [learning_rate(step, config) for step in range(11)] == [0, 1, 2, 2, 2, 2, 2, 1.75, 1.5, 1.25, 1]


def test_a_cosine_ends_at_the_final_ratio() -> None:
    config = OptimConfig(lr=2.0, warmup_steps=10, steps=110, final_lr_ratio=0.1)
    assert learning_rate(110, config) == pytest.approx(0.2)
    assert learning_rate(60, config) == pytest.approx(1.1)
