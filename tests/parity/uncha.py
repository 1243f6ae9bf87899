"""Compare UNCHA with the reference numbers, which were computed with the authors' released code.

Weights and inputs are drawn by `recipe.py`. The tolerances are three times the differences that the reference itself
shows between float32 and float64.
"""

import math
from typing import Any

import torch

from tests.parity.model_cases import batch_of, build, clip_tokenizer, fill, gradients, head_model
from tests.parity.model_terms import compare_scalars
from tests.parity.model_trace import compare_trace
from tests.parity.models import compare_inputs, compare_layout
from tests.parity.report import Report
from tests.parity.uncha_cases import (
    FLOAT64,
    GAPS,
    LOSS_GAPS,
    SIZES,
    compare_all,
    compare_loss,
    compare_terms,
    inputs,
    learned,
    pairs_of,
)
from tests.parity.uncha_ranks import compare_two_ranks
from tests.trainer.released_files import to_released
from trainer.checkpoints.model import UNUSED, from_released
from trainer.losses.uncertainty import calibration, leaky_cone, spread, uncertainty
from trainer.models.dual_encoder import DualEncoder


def compare_size(report: Report, meta: dict[str, Any], table: Any, size: str, dtype: torch.dtype) -> None:
    """Embeddings, loss terms and gradients of one size."""
    double = dtype == torch.float64
    name = f"{size} {'float64' if double else 'float32'}"
    model = build(meta, SIZES[size], meta["kwargs"])
    fill(model, meta)
    report.add("pixel mean and std", 1e-7, model.pixel_mean.flatten(), table["built/pixel_mean"])
    report.add("pixel mean and std", 1e-7, model.pixel_std.flatten(), table["built/pixel_std"])
    model.to(dtype).clamp_parameters()
    compare_scalars(report, "clamped scalars", model, learned(meta["scalars_after_forward"][size]), size)
    pairs = model.features(batch_of(meta, dtype))
    losses = model.losses(pairs)
    losses.loss.backward()
    for kind, sides in {"whole": ("image", "text"), "box": ("box_image", "box_text")}.items():
        for side, stream in zip(("image", "text"), sides, strict=True):
            where = f"{kind} {side}"
            raw, point = pairs.streams[stream].rows, losses.points[stream]
            report.add(f"{name} embeddings", 2e-5, raw, table[f"{size}/{kind}/{side}_raw"], where=where)
            report.add(f"{name} embeddings", 2e-5, point, table[f"{size}/{kind}/{side}"], where=where)
    expected = meta.get("loss_float64" if double else "loss", {}).get(size)
    if expected is not None:
        compare_terms(report, f"{name} terms", 1e-7 if double else 5.4e-6, losses, expected, size)
        compare_loss(report, f"{name} loss", 1e-7 if double else 7e-7, losses, expected, size)
    compare_gradients(report, meta, table, size, model, double)


def compare_gradients(
    report: Report, meta: dict[str, Any], table: Any, size: str, model: DualEncoder, double: bool
) -> None:
    """Norms of all gradients, and the gradients by the scalars."""
    key, name = f"{size}/grad_norm" + ("_float64" if double else ""), f"{size} {'float64' if double else 'float32'}"
    found, tolerance = gradients(model), 1e-6 if double else 8.1e-5
    for parameter, norm in zip(meta["grad_names"][size], table.get(key, ()), strict=key in table):
        grad = found.get(parameter)
        if math.isnan(norm):
            report.check(f"{name} without gradient", grad is None, parameter)
            continue
        ours = math.nan if grad is None else grad.double().norm().item()
        report.add(f"{name} gradient norms", tolerance, ours, norm, floor=1e-9 if double else 1e-3, where=parameter)
    for parameter, value in meta.get("grad_scalar", {}).get(size, {}).items():
        report.add(f"{name} scalar gradients", 8.1e-5, found[parameter], value, floor=0.01, where=parameter)


def compare_head(report: Report, meta: dict[str, Any], table: Any, name: str, dtype: torch.dtype) -> None:
    """Loss and gradients of a head case: on raw features, without towers."""
    case, kind, double = meta["head"][name], name.split("@")[0], dtype == torch.float64
    model = head_model(meta, {**case, "scalars": learned(case["scalars"])}).to(dtype)
    model.clamp_parameters()
    compare_scalars(report, "clamped scalars", model, learned(case["clamped"]), name)
    raw = {
        key: torch.tensor(row).to(dtype).requires_grad_()
        for key, row in inputs(name, case["counts"], meta["seed"]).items()
    }
    losses = model.losses(pairs_of(raw, case["counts"]))
    losses.loss.backward()
    grads = {key: value.grad for key, value in raw.items() if value.grad is not None}
    scalars = {key: grad for key, grad in gradients(model).items() if grad is not None and grad.ndim == 0}
    report.check("finite gradients", all(bool(g.isfinite().all()) for g in (*grads.values(), *scalars.values())), name)
    if double:
        tolerance = FLOAT64.get(kind, 1e-7)
        compare_all(report, f"head {kind} float64", tolerance, losses, case["out_float64"], name)
        if kind in FLOAT64:
            return
        norms, by_scalar, gaps = case["grad_norm_float64"], case["grad_scalar_float64"], (1e-6, 1e-6)
    else:
        expected = nearest(losses.loss.item(), case["out"], case["out_float64"])
        if kind in LOSS_GAPS:
            compare_loss(report, f"head {kind} float32, loss", LOSS_GAPS[kind], losses, expected, name)
            return
        loss, term, *gaps = GAPS.get(kind, GAPS["plain"])  # type: ignore[assignment]
        compare_terms(report, f"head {kind} float32", term, losses, case["out_float64"], name)
        compare_loss(report, f"head {kind} float32, loss", loss, losses, expected, name)
        norms, by_scalar = case["grad_norm"], case["grad_scalar"]
        for key, grad in grads.items():
            if kind != "incone":
                sample = table[f"head/{name}/grad_sample/{key}"]
                report.add("head gradient samples", 3e-4, grad[:2, :16], sample, floor=1e-7, where=f"{name} {key}")
    for key, norm in norms.items():
        group = f"head {kind} gradients {'float64' if double else 'float32'}"
        report.add(group, gaps[0], grads[key].double().norm(), norm, floor=1e-9, where=f"{name} {key}")
    for key, value in by_scalar.items():
        if key in scalars:
            group = f"head {kind} scalar gradients {'float64' if double else 'float32'}"
            report.add(group, gaps[1], scalars[key], value, floor=0.01, where=f"{name} {key}")


def nearest(loss: float, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The numbers whose loss is nearer: those of the reference in float32 contain its own rounding errors."""
    return min((first, second), key=lambda numbers: abs(numbers["loss"] - loss))


def compare_functions(report: Report, meta: dict[str, Any], table: Any) -> None:
    """Uncertainties, energies and calibrations with their gradients, in float64."""
    angle, aperture, residual, points = (
        torch.tensor(table[f"func/in/{name}"]).double().requires_grad_()
        for name in ("angle", "aperture", "residual", "points")
    )
    u = uncertainty(points)
    report.add("uncertainty", 1e-12, u, table["func/uncertainty"])
    report.add("uncertainty", 1e-12, torch.autograd.grad(u.sum(), points)[0], table["func/uncertainty_grad"])
    for eta in (0.7, 1.2):
        energy = leaky_cone(angle, aperture, eta, 0.1)
        report.add("leaky cones", 1e-12, energy, table[f"func/leaky_{eta}"], where=str(eta))
        for name, grad in zip(("angle", "aperture"), torch.autograd.grad(energy.sum(), (angle, aperture)), strict=True):
            report.add("leaky cones", 1e-12, grad, table[f"func/leaky_{eta}_grad_{name}"], where=f"{eta} {name}")
    compare_calibrations(report, meta, table, residual, u.detach())


def compare_calibrations(
    report: Report, meta: dict[str, Any], table: Any, residual: torch.Tensor, u: torch.Tensor
) -> None:
    """The weighted calibration of the released code, with and without gradient in the residual."""
    for name, case in meta["func"].items():
        if not isinstance(case, dict):
            continue
        weight, has_gradient = case["options"].get("alpha", 10.0), case["gradient_in_residual"]
        given = u.clone().requires_grad_()
        total = weight * (
            calibration(residual if has_gradient else residual.detach(), given, "released").mean() + spread(given)
        )
        report.add("calibration", 1e-10, total, case["calibration"], where=name)
        parts = (given, residual) if has_gradient else (given,)
        for key, grad in zip(("u", "residual"), torch.autograd.grad(total, parts), strict=False):
            report.add("calibration", 1e-10, grad, table[f"func/{name}_grad_{key}"], where=f"{name} {key}")


def compare_long(report: Report, meta: dict[str, Any], table: Any) -> None:
    """Captions that are longer than the context, cut with their end-of-text token and, as in the release, without."""
    model = build(meta, SIZES["mini"], meta["kwargs"])
    fill(model, meta)
    tokenizer, length = clip_tokenizer(), model.config.text.context_length
    cut = torch.tensor([tokenizer.encode(caption)[:length] for caption in meta["long"]["captions"]])
    with torch.no_grad():
        for name, ids in (("eot", tokenizer(meta["long"]["captions"])), ("released", cut)):
            report.add("long captions", 2e-5, model.text_features(ids), table[f"mini/long/text_raw_{name}"], where=name)


def compare_files(report: Report, meta: dict[str, Any]) -> None:
    """A state dict with the listed keys is loaded, and written with the same keys and values of all learned entries."""
    model = build(meta, SIZES["mini"], meta["kwargs"])
    fill(model, meta)
    written = to_released(model)
    report.check(
        "released file", set(written) == {key for key, _, _ in meta["manifest"]} - missing_layers(meta, written)
    )
    other = build(meta, SIZES["mini"], meta["kwargs"])
    other.load_state_dict(from_released(written))
    state, loaded = model.state_dict(), other.state_dict()
    report.check("released file", all(torch.equal(state[key], loaded[key]) for key in state), "values")


def missing_layers(meta: dict[str, Any], written: dict[str, Any]) -> set[str]:
    """Keys of the blocks that the mini model does not have."""
    blocks = ("visual.blocks.", "textual.resblocks.")
    return {key for key, _, _ in meta["manifest"] if key.startswith(blocks) and key not in written}


def compare(table: Any, meta: dict[str, Any]) -> Report:
    """Compare everything in a file, at the size `mini`."""
    report = Report()
    compare_inputs(report, meta)
    compare_layout(report, meta, table)
    compare_files(report, meta)
    for dtype in (torch.float32, torch.float64):
        compare_size(report, meta, table, "mini", dtype)
    compare_trace(report, meta, SIZES["mini"], compare_all, frozenset(UNUSED))
    for name in meta["head"]:
        compare_head(report, meta, table, name, torch.float32)
        compare_head(report, meta, table, name, torch.float64)
    compare_functions(report, meta, table)
    compare_long(report, meta, table)
    compare_two_ranks(report, meta)
    return report
