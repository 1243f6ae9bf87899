"""The loss of every model is one compiled graph with few kernels."""

import dataclasses
import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.launches import KernelCounter, Launches, graph_counter
from tests.trainer.small import most_in_rest, small_batch, small_model, with_boxes
from tests.trainer.small_run import small_run
from trainer.batch import Batch, Stream
from trainer.losses import similarity
from trainer.losses.chunked import MAX_COMPILED
from trainer.models.dual_encoder import DualEncoder
from trainer.training.step import update


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch.compiler.reset()


def model_of(name: str, **fields: Any) -> DualEncoder:
    return small_model(name, **({"factor_dim": 8} if name == "phyclip" else {}), **fields)


def pairs_of(model: DualEncoder, b: int = 8, m: int | None = None) -> Batch:
    """Features of b pairs that need gradients; with m, of as many boxes with owners."""
    pairs = model.features(small_batch(b))
    pairs = pairs.with_rows({name: stream.rows.detach().requires_grad_() for name, stream in pairs.streams.items()})
    if m is None:
        return pairs
    owner, names = torch.arange(m) * b // m, ("box_image", "box_text")
    boxes = {name: Stream(torch.randn(m, 16, requires_grad=True), pairs[name].side, owner) for name in names}
    return dataclasses.replace(pairs, streams=pairs.streams | boxes, counts={"box_image": (m,)})


@pytest.mark.parametrize("name", most_in_rest("hycoclip"))
def test_the_losses_of_a_model_are_one_graph_with_the_same_value(name: str) -> None:
    model, graphs = model_of(name), list[int]()
    pairs = pairs_of(model)
    compiled: Any = torch.compile(model.losses, backend=graph_counter(graphs), fullgraph=True)
    found, expected = compiled(pairs), model.losses(pairs)
    assert len(graphs) == 1
    assert torch.equal(found.loss, expected.loss)
    inputs = [pairs["image"].rows, pairs["text"].rows]
    losses = (found.loss, expected.loss)
    gradients = [
        torch.autograd.grad(loss, inputs, materialize_grads=True) for loss in losses
    ]  # taxonomy has no captions
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("part", ["lift", "energy", "pixels"])
def test_lifts_energies_and_pixels_are_one_graph_each_with_few_kernels(part: str) -> None:
    model, counter = model_of("hycoclip"), KernelCounter()
    points = torch.randn(8, 16, requires_grad=True), torch.randn(8, 16, requires_grad=True)
    function, inputs = {
        "lift": (model.lift_image, points[:1]),
        "energy": (model.energy, points),
        "pixels": (model.normalised, (small_batch()["image"].rows.mul(255).byte(),)),
    }[part]
    found: Any = torch.compile(function, backend=counter.backend, fullgraph=True)  # type: ignore[call-overload]
    value = found(*inputs)
    if part == "pixels":
        assert counter.kernels == [1]
    else:
        value.sum().backward()
        assert len(counter.kernels) == 2
        assert sum(counter.kernels) <= 16


MOST = {"meru": (500, 60), "hycoclip": (1600, 150), "uncha": (1800, 200)}
"""Least number of launches of the losses of a model without compilation, and the largest number with it."""


@pytest.mark.rest
@pytest.mark.parametrize("name", MOST)
def test_the_launches_of_the_losses(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(similarity, "MIN_FLOAT32_WIDTH", 10**9)  # products in float64, as on GPUs
    model, counter = model_of(name, loss_chunk=10**8), KernelCounter()
    pairs = pairs_of(model)
    with Launches() as eager:
        model.losses(pairs).loss.backward()
    compiled: Any = torch.compile(model.losses, backend=counter.backend)
    compiled(pairs).loss.backward()
    assert len(counter.kernels) == 2  # forward and backward: no break
    before, most = MOST[name]
    assert eager.count > before
    assert sum(counter.kernels) <= most <= 350


@pytest.mark.rest
def test_changing_numbers_of_boxes_are_compiled_twice_at_most() -> None:
    model, graphs = model_of("uncha"), list[int]()
    compiled: Any = torch.compile(model.losses, backend=graph_counter(graphs), fullgraph=True)
    for m in (20, 17, 13, 25, 31):
        pairs = pairs_of(model, m=m)
        assert torch.equal(compiled(pairs).loss, model.losses(pairs).loss)
    assert len(graphs) == 2


@pytest.mark.rest
def test_pairs_with_changing_numbers_of_boxes_are_compiled_twice_at_most() -> None:
    model, graphs = model_of("meru", boxes_as_pairs=True), list[int]()
    compiled: Any = torch.compile(model.losses, backend=graph_counter(graphs), fullgraph=True)
    for m in (8, 3, 0, 5, 1):
        batch = small_batch()
        boxes = batch.with_rows({name: batch[name].rows[:m] for name in ("box_image", "box_text")})
        pairs = model.features(with_boxes(batch, boxes, torch.arange(m)))
        assert torch.equal(compiled(pairs).loss, model.losses(pairs).loss)
    assert len(graphs) == 2


def test_a_loss_of_many_chunks_is_not_compiled_but_has_the_same_value() -> None:
    model, graphs = model_of("meru", loss_chunk=1), list[int]()
    pairs = pairs_of(model, b=16 * (MAX_COMPILED + 1))
    compiled: Any = torch.compile(model.losses, backend=graph_counter(graphs))
    assert torch.equal(compiled(pairs).loss, model.losses(pairs).loss)
    assert max(graphs) < 60


def test_a_step_leaves_no_tensors_to_the_garbage_collector(tmp_path: Path) -> None:
    found = small_run(tmp_path / "run")
    batch = next(iter(found.loader))
    update(found, batch)  # imports, caches
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        update(found, batch)
        gc.collect()
        left = [type(item).__name__ for item in gc.garbage if type(item) is torch.Tensor]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []
