"""Hyper3-CLIP: its pooling and its loss in float64 against a second computation, query by query."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.trainer.small import in_double, overfit, small_batch, small_model, with_boxes, with_stream
from trainer.batch import Batch, Stream
from trainer.encoders.build import keep_patches, patches_of
from trainer.encoders.config import ImageConfig
from trainer.models.hyper3 import Hyper3CLIP
from trainer.models.queries import QueryPooling

OWNER, PARENT, WEIGHT = [0, 0, 0, 2, 3, 3], [-1, 0, -1, -1, -1, 4], [1.0, 0.5, 0.75, 1.0, 1.0, 0.5]


def uneven_batch() -> Batch:
    """Four pairs in float64, with 3, 0, 1 and 2 queries, and five boxes."""
    batch = with_boxes(small_batch(4), small_batch(5, seed=1), torch.tensor([0, 0, 1, 2, 3]))
    rows = small_batch(len(OWNER), seed=2)["text"].rows
    owner, parent, weight = torch.tensor(OWNER), torch.tensor(PARENT), torch.tensor(WEIGHT, dtype=torch.float64)
    queries = Stream(rows, "text", owner, chain=3, parent=parent, weight=weight)
    return in_double(with_stream(with_stream(batch, "levels", None), "queries", queries))


def test_pooled_patches_are_those_of_an_attention_of_each_query_alone() -> None:
    torch.manual_seed(0)
    pooling = QueryPooling(16, 12, heads=4).double()
    states, patches = torch.randn(6, 12).double(), torch.randn(4, 9, 16).double()
    found = pooling(states, patches, Stream(states, "text", torch.tensor(OWNER), chain=3))
    attention = pooling.attention
    w_q, w_k, w_v = attention.in_proj_weight.chunk(3)
    b_q, b_k, b_v = attention.in_proj_bias.chunk(3)
    for query, owner in enumerate(OWNER):
        q, z = w_q @ pooling.query(states[query]) + b_q, patches[owner]
        heads = []
        for part in range(4):
            rows = slice(4 * part, 4 * part + 4)
            scores = (z @ w_k[rows].T + b_k[rows]) @ q[rows] / math.sqrt(4)
            heads.append(scores.softmax(0) @ (z @ w_v[rows].T + b_v[rows]))
        mixed = attention.out_proj(torch.cat(heads))
        torch.testing.assert_close(found[query], mixed + pooling.mlp(pooling.norm(mixed)))


def violation(general: Tensor, specific: Tensor, c: Tensor, eta: float) -> Tensor:
    """max(0, angle at the general point - eta times the half-aperture of its cone) of two points [d], by definition."""
    time_g, time_s = ((1 / c + x @ x).sqrt() for x in (general, specific))
    inner = general @ specific - time_g * time_s
    aperture = torch.asin(2 * 0.1 / (c.sqrt() * general.norm()))
    cosine = (time_s + time_g * c * inner) / (general.norm() * ((c * inner) ** 2 - 1).sqrt())
    return (torch.acos(cosine) - eta * aperture).clamp(min=0)


def calibrated(residual: Tensor, general: Tensor) -> Tensor:
    """alpha (r / (2 exp(u)) + u / 2), alpha 10, u the softplus of minus the norm."""
    u = F.softplus(-general.norm())
    return 10 * (residual.detach() / (2 * u.exp()) + u / 2)


CONTROLS = [
    ({}, {}),
    ({"query_control": "reversed"}, {}),
    ({"query_control": "shuffled"}, {"query_text": 0.5}),
    ({}, {"query_text_image": 0.0, "query_image": 2.0, "query_text": 0.0}),
]


@pytest.mark.parametrize(("control", "weights"), CONTROLS)
def test_the_query_terms_are_weighted_sums_over_queries_and_their_gradients(
    control: dict[str, str], weights: dict[str, float]
) -> None:
    model = small_model("hyper3", embed_dim=8, query_terms=weights, **control).double()
    kind = control.get("query_control")
    assert isinstance(model, Hyper3CLIP)
    batch = uneven_batch()
    pairs = model.features(batch)
    losses, c = model.losses(pairs), model.curvature()
    streams = pairs.streams
    image, text = model.lift_image(streams["image"].rows), model.lift_text(streams["text"].rows)
    query, pooled = model.lift_text(streams["queries"].rows), model.lift_image(streams["query_images"].rows)
    names = ("query_text_image", "query_image", "query_text")
    sums, calibrations = (dict.fromkeys(names, torch.zeros(()).double()) for _ in range(2))
    texts_above = [text[o] if p < 0 else query[p] for o, p in zip(OWNER, PARENT, strict=True)]
    if kind == "shuffled":
        texts_above = [texts_above[-1], *texts_above[:-1]]
    for q, (owner, weight) in enumerate(zip(OWNER, WEIGHT, strict=True)):
        outer, inner = (image[owner], pooled[q]) if kind == "reversed" else (pooled[q], image[owner])
        inside = violation(outer, inner, c, 1.2), violation(query[q], texts_above[q], c, 1.2)
        sums["query_text_image"] = sums["query_text_image"] + weight * violation(query[q], pooled[q], c, 0.7)
        sums["query_image"] = sums["query_image"] + weight * inside[0]
        sums["query_text"] = sums["query_text"] + weight * inside[1]
        for name, residual, general in (("query_image", inside[0], outer), ("query_text", inside[1], query[q])):
            calibrations[name] = calibrations[name] + weight * calibrated(residual, general)
    expected = {name: value / len(OWNER) for name, value in sums.items()}
    for name in names:
        torch.testing.assert_close(losses.terms[f"entailment/{name}"], expected[name].detach())
    for name in ("query_image", "query_text"):
        found, value = losses.terms[f"entailment/calibration_{name}"], calibrations[name] / len(OWNER)
        torch.testing.assert_close(10 * found, value.detach(), rtol=1e-5, atol=0)
        expected[name] = expected[name] + value
    expected = {name: weights.get(name, 1.0) * value for name, value in expected.items()}
    plain = {"text_image", "box_text_image", "cross_image", "cross_text"}
    rest = sum(losses.terms[f"entailment/{name}"] for name in plain)
    rest += sum(10 * losses.terms[f"entailment/calibration_{name}"] for name in ("cross_image", "cross_text"))
    contrast = sum(losses.terms[f"contrastive/{name}"] for name in ("global", "local", "global_local"))
    torch.testing.assert_close(losses.loss, contrast + 0.2 * (rest + sum(expected.values())), rtol=1e-6, atol=0)
    parameters = [model.query_pooling.query.weight, model.query_pooling.attention.in_proj_weight]
    own = torch.autograd.grad(losses.loss, parameters, retain_graph=True)
    reference = torch.autograd.grad(0.2 * sum(expected.values(), torch.zeros(()).double()), parameters)
    for one, other in zip(own, reference, strict=True):  # only these terms depend on it; ours keep roots finite by eps
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-7)


def test_the_control_without_queries_averages_the_patches_and_keeps_the_parameters() -> None:
    model = small_model("hyper3", query_control="mean")
    assert isinstance(model, Hyper3CLIP)
    assert model.state_dict().keys() == small_model("hyper3").state_dict().keys()
    batch = small_batch()
    pairs = model.features(batch)
    patches = patches_of(model.visual, model.image_tokens(batch["image"].rows))
    owner = batch["queries"].owner
    torch.testing.assert_close(pairs["query_images"].rows, model.visual_proj(patches.mean(1))[owner])
    model.losses(pairs).loss.backward()
    gradients = [parameter.grad for parameter in model.query_pooling.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_a_batch_without_queries_has_query_terms_of_zero_and_gradients_of_zero() -> None:
    empty = Stream(torch.zeros((0, 1), dtype=torch.int64), "text", torch.zeros(0, dtype=torch.int64))
    empty = empty._replace(parent=torch.zeros(0, dtype=torch.int64), weight=torch.zeros(0))
    model = small_model("hyper3")
    losses = model(with_stream(small_batch(), "queries", empty))
    losses.loss.backward()
    assert losses.terms["entailment/query_image"] == 0
    gradients = [parameter.grad for parameter in model.get_submodule("query_pooling").parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_images_are_encoded_without_queries_and_cells_of_a_convolutional_network_are_patches() -> None:
    model, batch = small_model("hyper3"), small_batch()
    torch.testing.assert_close(model.features(batch)["image"].rows, model.image_features(batch["image"].rows))
    image = ImageConfig(name="resnet10t", size_px=32, kwargs={"channels": [8, 8, 8, 16]})
    large = F.interpolate(batch["image"].rows, 32)
    other = small_model("hyper3", image=image)
    losses = other(batch.with_rows({"image": large, "box_image": large}))
    assert losses.loss.isfinite()


def test_the_model_learns_that_queries_entail_their_patches() -> None:
    model, batch = small_model("hyper3"), small_batch()
    first, last = model(batch), overfit(model, batch)
    for name in ("query_text_image", "query_image"):
        assert last.terms[f"entailment/{name}"] < first.terms[f"entailment/{name}"]


def test_wrong_towers_heads_and_batches_are_named() -> None:
    with pytest.raises(ValueError, match="give a query_heads that divides it"):
        small_model("hyper3", query_heads=5)
    with pytest.raises(ValueError, match="the image tower has none; give one of timm"):
        keep_patches(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="needs the stream queries"):
        small_model("hyper3")(with_stream(small_batch(), "queries", None))
