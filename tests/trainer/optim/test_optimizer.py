import pytest
import torch

from tests.trainer.small import small_model
from trainer.models.registry import build_model
from trainer.optim.config import OptimConfig
from trainer.optim.optimizer import build_optimizer


@pytest.mark.parametrize(
    ("decay", "biases", "factors"),
    [("paper", False, False), ("all_but_scalars", True, False), ("released", True, True)],
)
def test_rule_decides_whether_biases_and_scalars_of_factors_decay(decay: str, biases: bool, factors: bool) -> None:
    model = small_model("phyclip")
    groups = build_optimizer(model, OptimConfig(decay=decay)).param_groups  # type: ignore[arg-type]
    decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
    named = dict(model.named_parameters())
    assert all((id(named[name]) in decayed) == biases for name in ("textual.ln_final.bias", "visual.norm.weight"))
    assert all((id(named[name]) in decayed) == factors for name in ("curv", "visual_alpha", "textual_alpha"))
    assert id(named["visual_proj.weight"]) in decayed
    assert id(named["logit_scale"]) not in decayed
    assert id(named["visual.pos_embed"]) not in {id(p) for group in groups for p in group["params"]}


@pytest.mark.parametrize(
    ("name", "decay", "expected"),
    [("meru", "paper", 102), ("hycoclip", "all_but_scalars", 299), ("phyclip", "all_but_scalars", 299)],
)
def test_number_of_decaying_tensors_of_the_papers_models(name: str, decay: str, expected: int) -> None:
    """Those of the released groups: all 303 tensors of HyCoCLIP that are trained, less its four scalars."""
    with torch.device("meta"):
        model = build_model(name)
    groups = build_optimizer(model, OptimConfig(decay=decay)).param_groups  # type: ignore[arg-type]
    assert sum(len(group["params"]) for group in groups if group["weight_decay"]) == expected
