"""Compare a model with the reference numbers, which were computed with the authors' released code.

Weights and inputs are drawn by `recipe.py`. The tolerances are the differences that the reference itself shows between
float32 and float64.
"""

import math
from typing import Any

import numpy as np
import torch

from tests.parity import recipe
from tests.parity.model_cases import (
    SIZES,
    batch_of,
    build,
    clip_tokenizer,
    fill,
    flat,
    gradients,
    head_inputs,
    head_model,
)
from tests.parity.model_terms import compare_scalars, compare_terms, relative_error
from tests.parity.model_trace import compare_trace
from tests.parity.report import Report
from tests.trainer.released_files import to_released
from trainer.batch import Batch, named_streams
from trainer.encoders.build import sincos_positions
from trainer.models.dual_encoder import DualEncoder

# Relative tolerances of the loss on raw features in float32, by case. Those of the last three are twice the error of
# the reference in float32. Cases with other names use the tolerance of "plain".
HEAD_TOLERANCES = {"plain": 2e-6, "clamp": 2e-5, "incone": 7e-5, "tiny": 2e-3, "identical": 1e-2, "micro": 6e-2}
# In float64 the rounding errors of the reference are visible in cases with equal points.
HEAD_TOLERANCES_FLOAT64 = {"identical": 1e-5, "micro": 1e-4, "tiny": 1e-6}
# Parameters that the reference has but does not use: scalars of MERU; a temperature and a linear layer of width 512.
UNUSED_PARAMETERS = {"PHyCLIP": 3, "UNCHA": 514}


def compare_inputs(report: Report, meta: dict[str, Any]) -> None:
    """Token ids, and checksums of the images of the recipe."""
    tokenizer = clip_tokenizer()
    for kind, captions in meta["captions"].items():
        ids = [tokenizer.encode(caption) for caption in captions]
        report.check("token ids", ids == meta["token_ids"][kind], kind)
        images = recipe.images(kind, len(captions), seed=meta["seed"]).astype(np.float64)
        checks = [images.mean(), images.flat[0], images.flat[-1]]
        report.add("recipe's images", 1e-6, checks, meta["image_checks"][kind], where=kind)


def compare_layout(report: Report, meta: dict[str, Any], table: Any) -> None:
    """State dict, parameter counts and the table of position embeddings of the ViT-S/16 model."""
    with torch.device("meta"):  # names, shapes and counts do not depend on weights
        model = build(meta, SIZES["vit_s16"], meta["kwargs"])
        state = to_released(model)
    manifest = {key: (list(shape), dtype) for key, shape, dtype in meta["manifest"]}
    ours = {key: (list(value.shape), str(value.dtype).removeprefix("torch.")) for key, value in state.items()}
    report.check("state dict", manifest == ours, str(sorted(manifest.keys() ^ ours.keys())[:3]))
    unused = UNUSED_PARAMETERS.get(meta["model"], 0)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad) + unused
    report.check("trainable parameters", trainable == meta["trainable"], str(trainable))
    total = sum(p.numel() for p in model.parameters()) + unused
    report.check("all parameters", total == meta.get("total_params", total), str(total))
    positions = sincos_positions(14, 384)[0].double()
    report.add("position table", 2e-6, positions[[0, 1, 2, 15, 100, 196]], table["built/pos_embed_rows"])
    report.add("position table", 2e-5, positions.sum(0), table["built/pos_embed_colsum"])


def compare_size(report: Report, meta: dict[str, Any], table: Any, size: str, dtype: torch.dtype) -> None:
    """Embeddings, loss terms and gradients of one size."""
    model = build(meta, SIZES[size], meta["kwargs"])
    fill(model, meta)
    report.add("pixel mean and std", 1e-7, model.pixel_mean.flatten(), table["built/pixel_mean"])
    report.add("pixel mean and std", 1e-7, model.pixel_std.flatten(), table["built/pixel_std"])
    compare_scalars(report, "scalars", model, meta.get("scalars_in", {}).get(size, {}), size)
    model.to(dtype)
    model.clamp_parameters()
    compare_scalars(report, "clamped scalars", model, meta.get("scalars_after_forward", {}).get(size, {}), size)
    batch = batch_of(meta, dtype)
    pairs = model.features(batch)
    losses = model.losses(pairs)
    losses.loss.backward()
    double = dtype == torch.float64
    name = f"{size} {'float64' if double else 'float32'}"
    for kind, prefix in (("whole", ""), ("box", "box_"))[: len(pairs.streams) // 2]:
        image, text = pairs[f"{prefix}image"].rows, pairs[f"{prefix}text"].rows
        lifted = (flat(model.lift_image(image)), flat(model.lift_text(text)))
        for key, value in zip(("image_raw", "text_raw", "image", "text"), (image, text, *lifted), strict=True):
            report.add(f"{name} embeddings", 2e-5, value, table[f"{size}/{kind}/{key}"], where=f"{kind} {key}")
    expected = meta.get("loss_float64" if double else "loss", {}).get(size)
    if expected is not None:
        compare_terms(report, f"{name} loss", 1e-7 if double else 1e-6, losses, expected, size)
    compare_gradients(report, meta, table, size, model, double)


def compare_gradients(
    report: Report, meta: dict[str, Any], table: Any, size: str, model: DualEncoder, double: bool
) -> None:
    """Norms of all gradients; in float32 also the gradients of scalars, and parts of those of the projections."""
    key = f"{size}/grad_norm" + ("_float64" if double else "")
    if key not in table:
        return
    found = gradients(model)
    name = f"{size} {'float64' if double else 'float32'}"
    for parameter, norm in zip(meta["grad_names"][size], table[key], strict=True):
        grad = found.get(parameter)
        if math.isnan(norm):
            report.check(f"{name} without gradient", grad is None or not grad.any(), parameter)
            continue
        ours = math.nan if grad is None else grad.double().norm().item()
        # Errors below 1e-5 pass in float32: some alphas of PHyCLIP have gradients of 1e-6.
        tolerance = 1e-6 if double else 1e-3
        error = max(abs(ours - norm) - (0 if double else 1e-5), 0.0) if math.isfinite(ours) else math.inf
        report.add(f"{name} gradient norms", tolerance, error / max(norm, 1e-12), 0.0, floor=1.0, where=parameter)
    if double:
        return
    for parameter, expected in meta.get("grad_scalar", {}).get(size, {}).items():
        grad = found.get(parameter)
        if grad is not None:
            report.add(f"{name} scalar gradients", 1e-3, grad, expected, floor=0.01, where=parameter)
    for parameter in ("visual_proj.weight", "textual_proj.weight"):
        grad = found[parameter]
        assert grad is not None
        sample = table[f"{size}/grad_sample/{parameter}"]
        report.add(f"{name} gradient samples", 1e-4, grad[: len(sample), : sample.shape[1]], sample, where=parameter)


def compare_head(report: Report, meta: dict[str, Any], table: Any, name: str, dtype: torch.dtype) -> None:
    """Loss and gradients of a head case: on raw features, without towers."""
    case, kind, double = meta["head"][name], name.split("@")[0], dtype == torch.float64
    model = head_model(meta, case).to(dtype)
    model.clamp_parameters()
    compare_scalars(report, "clamped scalars", model, case["clamped"], name)
    raw = {
        key: torch.tensor(value).to(dtype).requires_grad_() for key, value in head_inputs(name, meta["seed"]).items()
    }
    use_boxes = case["kwargs"].get("use_boxes", False)
    names = ("image", "text", "box_image", "box_text")[: 4 if use_boxes else 2]
    pairs = Batch(streams=named_streams({name: raw[name] for name in names}))
    losses = model.losses(pairs)
    losses.loss.backward()
    norms = {key: value.grad.double().norm().item() for key, value in raw.items() if value.grad is not None}
    scalars = {key: g.item() for key, g in gradients(model).items() if g is not None and g.ndim == 0}
    report.check("finite gradients", all(map(math.isfinite, [*norms.values(), *scalars.values()])), name)
    if double and "out_float64" in case:
        tolerance = HEAD_TOLERANCES_FLOAT64.get(kind, 1e-7)
        compare_terms(report, f"head {kind} float64", tolerance, losses, case["out_float64"], name)
        if kind not in HEAD_TOLERANCES_FLOAT64:
            compare_head_gradients_float64(report, case, name, norms, scalars)
    if not double:
        tolerance = HEAD_TOLERANCES.get(kind, HEAD_TOLERANCES["plain"])
        compare_terms(report, f"head {kind} float32", tolerance, losses, case["out"], name, case.get("out_float64"))
        if kind in HEAD_TOLERANCES:
            error = relative_error(losses.loss.detach().double().numpy(), case["out"]["loss"])
            report.add(f"head {kind} float32, loss", tolerance, error, 0.0, floor=1.0, where=name)
        if kind in ("plain", "clamp"):  # in other cases the float32 gradients of the reference are rounding errors
            compare_head_gradients_float32(report, case, name, norms, scalars)
            for key, norm in case["grad_norm"].items():
                if norm is not None:
                    grad, sample = raw[key].grad, table[f"head/{name}/grad_sample/{key}"]
                    assert grad is not None
                    report.add("head gradient samples", 3e-4, grad[:2, :16], sample, floor=1e-7, where=f"{name} {key}")


def compare_head_gradients_float64(
    report: Report, case: dict[str, Any], name: str, norms: dict[str, float], scalars: dict[str, float]
) -> None:
    """Norms of the gradients by the features, and gradients by the scalars, in float64."""
    group = "head gradients float64"
    for key, norm in case["grad_norm_float64"].items():
        if norm is not None:
            report.add(group, 1e-5, norms[key], norm, floor=1e-9, where=f"{name} {key}")
    group = "head scalar gradients float64"
    for key, value in case.get("grad_scalar_float64", {}).items():
        if key in scalars:
            report.add(group, 1e-5, scalars[key], value, floor=1e-6, where=f"{name} {key}")


def compare_head_gradients_float32(
    report: Report, case: dict[str, Any], name: str, norms: dict[str, float], scalars: dict[str, float]
) -> None:
    """Norms of the gradients by the features, and gradients by the scalars, in float32."""
    for key, norm in case["grad_norm"].items():
        if norm is not None:
            report.add("head gradients float32", 2e-4, norms[key], norm, floor=1e-6, where=f"{name} {key}")
    for key, value in case["grad_scalar"].items():
        if key in scalars:
            report.add("head scalar gradients", 1e-3, scalars[key], value, floor=0.01, where=f"{name} {key}")


def compare(table: Any, meta: dict[str, Any]) -> Report:
    """Compare everything in a file, at the size `mini`."""
    report = Report()
    compare_inputs(report, meta)
    compare_layout(report, meta, table)
    for dtype in (torch.float32, torch.float64):
        compare_size(report, meta, table, "mini", dtype)
    if "train_trace" in meta:
        compare_trace(report, meta)
    for name in meta["head"]:
        compare_head(report, meta, table, name, torch.float32)
        compare_head(report, meta, table, name, torch.float64)
    return report
