"""Compare a model with the authors' numbers: `python -m tests.parity.models FILE.npz [--sizes mini vit_s16]`.

Weights and inputs come from `recipe.py`, by (seed, name, shape). The bars are the gaps that the reference itself shows
between float32 and float64.
"""

import argparse
import functools
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.parity import recipe
from tests.parity.cases import open_cases
from trainer.batch import Batch, Losses, Pairs
from trainer.checkpoints.released import FACTOR_SCALARS, from_released, to_released
from trainer.config import OptimConfig
from trainer.encoders.config import ImageConfig, TextConfig
from trainer.encoders.image import sincos_positions
from trainer.models.config import IMAGENET_STD, HyCoCLIPConfig, HyperbolicConfig, ModelConfig, PHyCLIPConfig
from trainer.models.dual_encoder import DualEncoder
from trainer.models.phyclip import PHyCLIP
from trainer.models.registry import build_model
from trainer.optim import build_optimizer, learning_rate
from trainer.text.tokenizer import openai_tokenizer

NAMES = {"CLIPBaseline": "clip", "MERU": "meru", "HyCoCLIP": "hycoclip", "PHyCLIP": "phyclip"}
SIZES = {
    "vit_s16": {"image": ImageConfig(), "text": TextConfig(), "embed_dim": 512},
    "mini": {
        "image": ImageConfig(kwargs={"embed_dim": 96, "depth": 2, "num_heads": 3}),
        "text": TextConfig(width=64, layers=2, heads=1),
        "embed_dim": 64,
    },
}
TERMS = {  # the reference's name -> ours
    "contrastive_loss": "contrastive",
    "entailment_loss": "entailment",
    "text_image_entailment_loss": "entailment/text_image",
    "box_text_image_entailment_loss": "entailment/box_text_image",
    "cross_image_entailment_loss": "entailment/cross_image",
    "cross_text_entailment_loss": "entailment/cross_text",
    "logit_scale": "logit_scale",
    "curv": "curvature",
}
FACTS = (
    *("model", "repo", "kwargs", "seed", "overrides", "captions", "token_ids", "image_checks", "manifest", "trainable"),
    *("loss", "grad_names", "head"),
)
BUILT = tuple(f"built/{name}" for name in ("pixel_mean", "pixel_std", "pos_embed_rows", "pos_embed_colsum"))
# Relative bars of the loss on raw features; of the last three twice what the reference's float32 loses, which ours need
# not lose. Cases of other names have the first, against its float64 too.
HEAD_BARS = {"plain": 2e-6, "clamp": 2e-5, "incone": 7e-5, "tiny": 2e-3, "identical": 1e-2, "micro": 6e-2}
# In float64 the reference's own rounding shows where points coincide.
HEAD_BARS_FLOAT64 = {"identical": 1e-5, "micro": 1e-4, "tiny": 1e-6}


class Report:
    """Worst error by group, against its bar."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[float, float, str]] = {}

    def add(self, group: str, bar: float, ours: Any, theirs: Any, floor: float = 1e-30, where: str = "") -> None:
        """Relative error of `ours`, where `theirs` is smaller than `floor` against that."""
        a, b = (np.asarray(v.detach() if isinstance(v, Tensor) else v, np.float64) for v in (ours, theirs))
        if a.shape != b.shape:
            error = math.inf
        else:
            # Arrays are compared as a whole: single entries may be as near to 0 as they like.
            scale = max(float(np.abs(b).max(initial=0)), floor)
            error = float(np.abs(a - b).max(initial=0)) / scale
        error = error if math.isfinite(error) else math.inf
        if group not in self.rows or error > self.rows[group][0]:
            self.rows[group] = (error, bar, where)

    def check(self, group: str, holds: bool, where: str = "") -> None:
        self.add(group, 0.5, 0.0 if holds else math.inf, 0.0, floor=1.0, where=where)

    def failed(self) -> list[str]:
        return [group for group, (error, bar, _) in self.rows.items() if not error <= bar]

    def show(self) -> None:
        for group, (error, bar, where) in sorted(self.rows.items()):
            verdict = "ok" if error <= bar else "FAIL"
            print(f"{group:34} worst {error:.1e}  bar {bar:.0e}  {verdict}  {where}")


tokenizer_of_clip = functools.cache(openai_tokenizer)


def config_of(meta: dict[str, Any], size: dict[str, Any], kwargs: dict[str, Any]) -> ModelConfig:
    """Our configuration for the reference's constructor arguments. Its logit scale stops at exp(4.6052)."""
    common = {**size, "max_logit_scale": math.exp(4.6052)}
    if meta["model"] == "CLIPBaseline":
        return ModelConfig(**common)
    common |= {"curv_init": float(kwargs["curv_init"]), "curv_learnable": kwargs["learn_curv"]}
    common["entail_weight"] = kwargs["entail_weight"]
    if meta["model"] == "MERU":
        return HyperbolicConfig(**common)
    common["use_boxes"] = kwargs["use_boxes"]
    if meta["model"] == "HyCoCLIP":
        mean = IMAGENET_STD if meta["repo"] == "hycoclip" else ModelConfig.pixel_mean
        return HyCoCLIPConfig(**common, pixel_mean=mean)
    return PHyCLIPConfig(
        **common, factor_dim=kwargs["subspace_dim"], metric=kwargs["product_metric"], eps=kwargs["lorentz_eps"]
    )


def build(meta: dict[str, Any], size: dict[str, Any], kwargs: dict[str, Any]) -> DualEncoder:
    return build_model(NAMES[meta["model"]], config_of(meta, size, kwargs))


def fill(model: DualEncoder, meta: dict[str, Any]) -> None:
    """The recipe's weights, through the released layout as a checkpoint would come."""
    state = to_released(model)
    drawn = recipe.fill({key: tuple(value.shape) for key, value in state.items()}, meta["seed"], meta["overrides"])
    model.load_state_dict(from_released({**state, **{key: torch.tensor(value) for key, value in drawn.items()}}))


def batch_of(meta: dict[str, Any], dtype: torch.dtype) -> Batch:
    tokenizer = tokenizer_of_clip()
    images, tokens = {}, {}
    for kind, captions in meta["captions"].items():
        images[kind] = torch.tensor(recipe.images(kind, len(captions), seed=meta["seed"])).to(dtype)
        tokens[kind] = tokenizer(captions)
    boxes = meta["kwargs"].get("use_boxes", False)
    return Batch(
        images=images["whole"],
        token_ids=tokens["whole"],
        box_images=images["box"] if boxes else None,
        box_token_ids=tokens["box"] if boxes else None,
    )


def gradients(model: DualEncoder) -> dict[str, Tensor | None]:
    """By the reference's names. Its PHyCLIP also has MERU's own scalars, which get none."""
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    for ours, stem in FACTOR_SCALARS.items():
        if ours in found and (grad := found[ours]) is not None and grad.ndim:
            found |= {f"{stem}.{index}": value for index, value in enumerate(grad)}
            found[ours] = None
    return found


def compare_terms(
    report: Report,
    group: str,
    bar: float,
    losses: Losses,
    expected: dict[str, Any],
    case: str,
    truth: dict[str, Any] | None = None,
) -> None:
    """Each term against the reference's, or against `truth`, its float64 value, where that is nearer.

    Where the reference's float32 has lost digits, ours need not lose them too.
    """
    ours = {"loss": losses.loss} | {name: losses.terms[key] for name, key in TERMS.items() if key in losses.terms}
    for name in {"loss"} | (ours.keys() & expected.keys()):
        value = ours[name].detach().double().numpy()
        nearest = min(gap(value, row.get(name, math.nan)) for row in (expected, truth) if row is not None)
        report.add(group, bar, nearest, 0.0, floor=1.0, where=f"{case} {name}")


def gap(ours: np.ndarray, theirs: Any) -> float:
    """Relative, below 1e-4 absolute."""
    expected = np.asarray(theirs, np.float64)
    if ours.shape != expected.shape:
        return math.inf
    return float((np.abs(ours - expected) / np.maximum(np.abs(expected), 1e-4)).max())


def compare_inputs(report: Report, meta: dict[str, Any]) -> None:
    tokenizer = tokenizer_of_clip()
    for kind, captions in meta["captions"].items():
        ids = [tokenizer.encode(caption) for caption in captions]
        report.check("token ids", ids == meta["token_ids"][kind], kind)
        images = recipe.images(kind, len(captions), seed=meta["seed"]).astype(np.float64)
        checks = [images.mean(), images.flat[0], images.flat[-1]]
        report.add("recipe's images", 1e-6, checks, meta["image_checks"][kind], where=kind)


def compare_layout(report: Report, meta: dict[str, Any], table: Any) -> None:
    """State dict, parameter counts and what the model builds itself, ViT-S/16."""
    with torch.device("meta"):  # names, shapes and counts need no weights
        model = build(meta, SIZES["vit_s16"], meta["kwargs"])
        state = to_released(model)
    manifest = {key: (list(shape), dtype) for key, shape, dtype in meta["manifest"]}
    ours = {key: (list(value.shape), str(value.dtype).removeprefix("torch.")) for key, value in state.items()}
    report.check("state dict", manifest == ours, str(sorted(manifest.keys() ^ ours.keys())[:3]))
    unused = 3 if meta["model"] == "PHyCLIP" else 0  # MERU's scalars, which ours does not have
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
    embedded = {"whole": (pairs.image, pairs.text), "box": (pairs.box_image, pairs.box_text)}
    for kind, (image, text) in embedded.items():
        if image is None or text is None:
            continue
        lifted = (flat(model.lift_image(image)), flat(model.lift_text(text)))
        for key, value in zip(("image_raw", "text_raw", "image", "text"), (image, text, *lifted), strict=True):
            report.add(f"{name} embeddings", 2e-5, value, table[f"{size}/{kind}/{key}"], where=f"{kind} {key}")
    expected = meta.get("loss_float64" if double else "loss", {}).get(size)
    if expected is not None:
        compare_terms(report, f"{name} loss", 1e-7 if double else 1e-6, losses, expected, size)
    compare_gradients(report, meta, table, size, model, double)


def compare_scalars(report: Report, group: str, model: DualEncoder, expected: dict[str, Any], where: str) -> None:
    ours = used_scalars(model)
    for key in ours.keys() & expected.keys():
        report.add(group, 1e-6, ours[key], expected[key], where=f"{where} {key}")


def used_scalars(model: DualEncoder) -> dict[str, Tensor]:
    """The released state dict without the scalars of MERU that PHyCLIP's carry and nothing uses."""
    unused = set(FACTOR_SCALARS) if isinstance(model, PHyCLIP) else set()
    return {key: value for key, value in to_released(model).items() if key not in unused}


def flat(lifted: Tensor) -> Tensor:
    """Factors side by side, [b d], as the reference gives them."""
    return lifted if lifted.ndim == 2 else lifted.movedim(0, 1).flatten(1)


def compare_gradients(
    report: Report, meta: dict[str, Any], table: Any, size: str, model: DualEncoder, double: bool
) -> None:
    key = f"{size}/grad_norm" + ("_float64" if double else "")
    if key not in table.files:
        return
    found = gradients(model)
    name = f"{size} {'float64' if double else 'float32'}"
    for parameter, norm in zip(meta["grad_names"][size], table[key], strict=True):
        grad = found.get(parameter)
        if math.isnan(norm):
            report.check(f"{name} without gradient", grad is None or not grad.any(), parameter)
            continue
        ours = math.nan if grad is None else grad.double().norm().item()
        # 1e-5 absolute: some of PHyCLIP's alphas have gradients of 1e-6.
        bar = 1e-6 if double else 1e-3
        error = max(abs(ours - norm) - (0 if double else 1e-5), 0.0) if math.isfinite(ours) else math.inf
        report.add(f"{name} gradient norms", bar, error / max(norm, 1e-12), 0.0, floor=1.0, where=parameter)
    if double:
        return
    for parameter, slope in meta.get("grad_scalar", {}).get(size, {}).items():
        grad = found.get(parameter)
        if grad is not None:
            report.add(f"{name} scalar gradients", 1e-3, grad, slope, floor=0.01, where=parameter)
    for parameter in ("visual_proj.weight", "textual_proj.weight"):
        grad = found[parameter]
        assert grad is not None
        sample = table[f"{size}/grad_sample/{parameter}"]
        report.add(f"{name} gradient samples", 1e-4, grad[: len(sample), : sample.shape[1]], sample, where=parameter)


def head_inputs(case: str, seed: int) -> dict[str, np.ndarray]:
    """Raw features (text, image, box_text, box_image), [24 512] in float32; the README of the cases has the recipe."""
    kind = case.split("@")[0]
    r = recipe.rng_for("head:" + kind, seed)
    base = r.standard_normal((1, 512))
    t = base + 0.45 * r.standard_normal((24, 512))
    n = r.standard_normal((4, 24, 512))
    match kind:
        case "incone":
            rows = (t, 1.8 * t + 0.01 * n[0], 0.4 * t + 0.01 * n[1], 0.8 * t + 0.01 * n[2])
        case "identical" | "micro":
            rows = (t, t, t, t)
        case _:
            rows = (t, 0.6 * t + 0.9 * n[0], 0.5 * t + 0.4 * n[1], 0.4 * t + 0.6 * n[2])
    scale = {"tiny": 1e-3, "micro": 1e-6}.get(kind, 1.0)
    names = ("text", "image", "box_text", "box_image")
    return {name: (scale * row).astype(np.float32) for name, row in zip(names, rows, strict=True)}


def head_model(meta: dict[str, Any], case: dict[str, Any]) -> DualEncoder:
    """A model whose towers are as small as can be: only its head is used. The scalars are the case's."""
    tiny = {
        "image": ImageConfig(size_px=16, kwargs={"embed_dim": 4, "depth": 1, "num_heads": 1}),
        "text": TextConfig(vocab_size=2, context_length=2, width=4, layers=1, heads=1),
        "embed_dim": 512,
    }
    model = build(meta, tiny, case["kwargs"])
    state = to_released(model) | {name: torch.tensor(value) for name, value in case["scalars"].items()}
    model.load_state_dict(from_released(state))
    return model


def compare_head(report: Report, meta: dict[str, Any], table: Any, name: str, dtype: torch.dtype) -> None:
    """The loss alone, on raw features."""
    case, kind, double = meta["head"][name], name.split("@")[0], dtype == torch.float64
    model = head_model(meta, case).to(dtype)
    model.clamp_parameters()
    compare_scalars(report, "clamped scalars", model, case["clamped"], name)
    raw = {
        key: torch.tensor(value).to(dtype).requires_grad_() for key, value in head_inputs(name, meta["seed"]).items()
    }
    use_boxes = case["kwargs"].get("use_boxes", False)
    pairs = Pairs(**(raw if use_boxes else {"image": raw["image"], "text": raw["text"]}))
    losses = model.losses(pairs)
    losses.loss.backward()
    norms = {key: value.grad.double().norm().item() for key, value in raw.items() if value.grad is not None}
    scalars = {key: g.item() for key, g in gradients(model).items() if g is not None and g.ndim == 0}
    report.check("finite gradients", all(map(math.isfinite, [*norms.values(), *scalars.values()])), name)
    if double and "out_float64" in case:
        bar = HEAD_BARS_FLOAT64.get(kind, 1e-7)
        compare_terms(report, f"head {kind} float64", bar, losses, case["out_float64"], name)
        for key, norm in case["grad_norm_float64"].items():
            if norm is not None and kind not in HEAD_BARS_FLOAT64:
                report.add("head gradients float64", 1e-5, norms[key], norm, floor=1e-9, where=f"{name} {key}")
        for key, value in case.get("grad_scalar_float64", {}).items():
            if key in scalars and kind not in HEAD_BARS_FLOAT64:
                report.add(
                    "head scalar gradients float64", 1e-5, scalars[key], value, floor=1e-6, where=f"{name} {key}"
                )
    if not double:
        bar = HEAD_BARS.get(kind, HEAD_BARS["plain"])
        compare_terms(report, f"head {kind} float32", bar, losses, case["out"], name, case.get("out_float64"))
        if kind in HEAD_BARS:
            whole = gap(losses.loss.detach().double().numpy(), case["out"]["loss"])
            report.add(f"head {kind} float32, loss", bar, whole, 0.0, floor=1.0, where=name)
        if kind not in ("plain", "clamp"):  # the reference's float32 gradients of the others are rounding
            return
        for key, norm in case["grad_norm"].items():
            if norm is not None:
                report.add("head gradients float32", 2e-4, norms[key], norm, floor=1e-6, where=f"{name} {key}")
                sample = table[f"head/{name}/grad_sample/{key}"]
                grad = raw[key].grad
                assert grad is not None
                report.add("head gradient samples", 3e-4, grad[:2, :16], sample, floor=1e-7, where=f"{name} {key}")
        for key, value in case["grad_scalar"].items():
            if key in scalars:
                report.add("head scalar gradients", 1e-3, scalars[key], value, floor=0.01, where=f"{name} {key}")


def compare_trace(report: Report, meta: dict[str, Any]) -> None:
    """Six optimizer steps of the mini model on one batch, with the released weight decay."""
    model = build(meta, SIZES["mini"], meta["kwargs"])
    fill(model, meta)
    config = OptimConfig(warmup_steps=2, steps=8, decay="released")
    optimizer, batch = build_optimizer(model, config), batch_of(meta, torch.float32)
    model.clamp_parameters()
    for step, expected in enumerate(meta["train_trace"]):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, config)
        report.add("learning rates", 1e-9, learning_rate(step, config), expected["lr"], floor=1e-12, where=str(step))
        losses = model(batch)
        compare_terms(report, "training trace", 2e-5, losses, expected, f"step {step}")
        optimizer.zero_grad()
        losses.loss.backward()
        optimizer.step()
        model.clamp_parameters()
    after = used_scalars(model)
    for key, value in meta["train_trace_after"].items():
        if key in after:
            report.add(
                "after training", 2e-5, after[key] if after[key].ndim == 0 else after[key].norm(), value, where=key
            )
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    ours_decayed = {name for name, parameter in model.named_parameters() if id(parameter) in decayed}
    theirs = {name for group in meta["param_groups"] if group["weight_decay"] > 0 for name in group["names"]}
    stems = {stem: name for name, stem in FACTOR_SCALARS.items()}
    theirs = {stems.get(name.partition(".")[0], name) for name in theirs}
    report.check("decayed parameters", ours_decayed == theirs, str(sorted(ours_decayed ^ theirs)[:3]))


def compare(table: Any, sizes: tuple[str, ...] | None = None) -> Report:
    """Of the sizes given, or all that the file has."""
    meta = json.loads(str(table["meta_json"]))
    sizes = sizes or tuple(size for size in SIZES if f"{size}/whole/image" in table.files)
    report = Report()
    compare_inputs(report, meta)
    compare_layout(report, meta, table)
    for size in sizes:
        compare_size(report, meta, table, size, torch.float32)
    if "mini" in sizes:
        compare_size(report, meta, table, "mini", torch.float64)
    if "train_trace" in meta:
        compare_trace(report, meta)
    for name in meta["head"]:
        compare_head(report, meta, table, name, torch.float32)
        compare_head(report, meta, table, name, torch.float64)
    return report


def main(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), help="all that the file has, if not given")
    arguments = parser.parse_args(given)
    cases = [f"{size}/whole/image" for size in arguments.sizes or ()]
    table, meta = open_cases(arguments.file, "file of model cases", (*BUILT, *cases), FACTS)
    if meta["model"] not in NAMES:
        sys.exit(f"{arguments.file} is of the model {meta['model']!r}; there are {', '.join(NAMES)}")
    report = compare(table, tuple(arguments.sizes or ()))
    report.show()
    failed = report.failed()
    print(f"{len(report.rows) - len(failed)} of {len(report.rows)} groups within the bar")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
