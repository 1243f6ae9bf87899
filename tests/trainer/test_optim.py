import pytest

from tests.trainer.small import small_model
from trainer.config import OptimConfig
from trainer.optim import build_optimizer, learning_rate


def test_learning_rate_rises_from_zero_to_its_peak_and_falls_to_zero() -> None:
    config = OptimConfig(lr=1.0, warmup_steps=10, steps=110)
    rates = [learning_rate(step, config) for step in range(111)]
    assert rates[0] == 0
    assert rates[10] == 1
    assert rates[60] == pytest.approx(0.5)
    assert rates[110] == pytest.approx(0, abs=1e-12)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)


@pytest.mark.parametrize(("decay", "decays"), [("paper", False), ("released", True)])
def test_biases_and_scalars_of_factors_decay_only_with_decay_released(decay: str, decays: bool) -> None:
    model = small_model("phyclip")
    groups = build_optimizer(model, OptimConfig(decay=decay)).param_groups  # type: ignore[arg-type]
    decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
    named = dict(model.named_parameters())
    assert all((id(named[name]) in decayed) == decays for name in ("textual.ln_final.bias", "curv", "visual_alpha"))
    assert id(named["visual_proj.weight"]) in decayed
    assert id(named["logit_scale"]) not in decayed
    assert id(named["visual.pos_embed"]) not in {id(p) for group in groups for p in group["params"]}
