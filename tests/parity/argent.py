"""Compare ARGENT's energies and regulariser with reference numbers.

The reference numbers are those of a third party's implementation: the authors have published none, so agreement says
nothing about the paper. Only float64 is compared.
"""

from typing import Any, Final

import torch

from tests.parity.report import Report
from tests.parity.uncha_cases import inputs, pairs_of
from trainer.batch import Losses
from trainer.encoders.config import ImageConfig, TextConfig
from trainer.models.argent import ARGENT
from trainer.models.config import ARGENTConfig

# Relative; 1e-7 for all others. The reference keeps roots finite in another way, which shows where points nearly coincide.
TOLERANCES: Final = {"tiny": 2e-2, "identical": 1e-2, "incone": 1e-5}
TERMS: Final = {  # name in the reference: name in `Losses.terms`, and the factor that the reference includes
    "text_image_entailment_loss": ("entailment/text_image", 0.5),
    "part_text_image_entailment_loss": ("entailment/box_text_image", 0.5),
    "cross_image_entailment_loss": ("entailment/cross_image", 0.5),
    "cross_text_entailment_loss": ("entailment/cross_text", 0.5),
    "entailment_loss": ("entailment", 1.0),
    "norm_regularization_loss": ("norms", 1.0),
}


def head(case: dict[str, Any]) -> ARGENT:
    """The model of a case, with minimal towers, which are not used."""
    image = ImageConfig(size_px=16, kwargs={"embed_dim": 4, "depth": 1, "num_heads": 1})
    text = TextConfig(vocab_size=2, context_length=2, width=4, layers=1, heads=1)
    model = ARGENT(ARGENTConfig(image=image, text=text, huber_delta=case["delta"]))
    with torch.no_grad():
        for name, value in case["scalars"].items():
            model.get_parameter(name).fill_(value)
    return model.double()


def compare_head(report: Report, meta: dict[str, Any], table: Any, name: str) -> None:
    """Energies, terms and gradients of a case."""
    case, kind = meta["head"][name], name.split("@")[0]
    tolerance = TOLERANCES.get(kind, 1e-7)
    raw = {
        key: torch.tensor(row).double().requires_grad_()
        for key, row in inputs(name, case["counts"], meta["seed"]).items()
    }
    for loss in ("entailment_loss", "norm_regularization_loss"):
        model = head(case)
        losses = losses_of(model, raw, case, loss)
        expected = case["out_float64"]
        for theirs, (ours, factor) in TERMS.items():
            value, where = factor * losses.terms[ours], f"{name} {theirs}"
            report.add(f"{kind} terms", tolerance, value, expected[theirs], floor=1e-4, where=where)
        for relation, rows in losses.energies.items():
            if (key := f"head/{name}/{relation}/energy") in table:
                report.add(f"{kind} energies", 1e-7, rows, table[key], where=f"{name} {relation}")
        if kind not in ("tiny", "identical"):
            grads = {key: value.grad for key, value in raw.items()} | {
                key: parameter.grad for key, parameter in model.named_parameters()
            }
            for key, norm in case["grad_norm_float64"][loss].items():
                if norm is not None and (grad := grads.get(key)) is not None:
                    tight = 3e-5 if kind == "incone" else 1e-6
                    report.add(f"{kind} gradients", tight, grad.norm(), abs(norm), floor=1e-9, where=f"{name} {key}")


def losses_of(model: ARGENT, raw: dict[str, torch.Tensor], case: dict[str, Any], loss: str) -> Losses:
    """The losses of a case, after the gradients of one of its two terms have been computed."""
    for value in raw.values():
        value.grad = None
    total = model.losses(pairs_of(raw, case["counts"]))
    weights = {"contrastive": 0.0, "entailment": 0.0, "norms": 0.0}
    weights["entailment" if loss == "entailment_loss" else "norms"] = 1.0
    model.group_weights = lambda: weights  # type: ignore[method-assign]
    model.losses(pairs_of(raw, case["counts"])).loss.backward()
    return total


def compare(table: Any, meta: dict[str, Any]) -> Report:
    """Compare everything in a file but its PEP scores."""
    report = Report()
    for name in meta["head"]:
        compare_head(report, meta, table, name)
    return report
