"""The contrastive and entailment losses on a GPU: error, time and memory of each implementation.

    python -m benchmarks.gpu.losses [--models meru hycoclip phyclip] [--batches 768 16384]

`chunked` is the trainer's, `triton` has the kernels of `benchmarks.gpu.fused`, `plain` is the formula as printed in the
paper. Features have width 512, in PHyCLIP 64 factors of width 8. Times are those of the losses and of all gradients, from
features in float32.

`loss_error` and `gradient_error` compare with float64, relative to the reference: of the loss, and of the gradients of
all features (norm of the difference over the norm). The reference is the plain formula, or the chunked loss in float64
where the plain formula does not fit into memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.session import Session, parser_of, run
from benchmarks.gpu.timing import peak_gib, reset_peak, synchronize, time_calls
from benchmarks.gpu.tracing import trace
from benchmarks.loss import PLAIN_NUMBERS, plain_fits
from benchmarks.plain import build, draw_features
from trainer.batch import Pairs
from trainer.models.meru import MERU

BATCHES, TINY_BATCHES = (768, 16384), (8, 24)


def main() -> None:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--models", nargs="+", choices=list(PLAIN_NUMBERS), default=["phyclip", "hycoclip", "meru"])
    parser.add_argument("--batches", nargs="+", type=int, help="numbers of pairs; default: 768 16384")
    run("losses", parser.parse_args(), measure)


def measure(session: Session) -> None:
    """Measure each model, batch size and implementation."""
    for batch in batches_of(session):
        for name in session.options.models:
            features = draw_features(name, batch, session.device)
            reference: list[Tensor] = []
            with session.measure(model=name, batch=batch, side="float64") as row:
                row["reference"], reference = in_float64(name, features)
            for side in sides(name, batch, session.device):
                with session.measure(model=name, batch=batch, side=side) as row:
                    row |= measure_side(session, name, side, features, reference)


def batches_of(session: Session) -> Sequence[int]:
    """Return the numbers of pairs to measure."""
    return session.options.batches or (TINY_BATCHES if session.options.tiny else BATCHES)


def sides(name: str, batch: int, device: torch.device) -> Iterator[str]:
    """Yield the implementations that can run."""
    if device.type == "cuda":
        yield "triton"
    yield "chunked"
    if plain_fits(name, batch, device.type):
        yield "plain"


def loss_and_gradients(model: MERU, features: dict[str, Tensor]) -> list[Tensor]:
    """Return the loss, and its gradients with respect to the features."""
    inputs: dict[str, Any] = {part: value.detach().requires_grad_() for part, value in features.items()}
    model.zero_grad()
    loss = model.losses(Pairs(**inputs)).loss
    loss.backward()
    return [loss.detach(), *(value.grad for value in inputs.values())]


def in_float64(name: str, features: dict[str, Tensor]) -> tuple[str, list[Tensor]]:
    """Return the name of the reference, and its loss and gradients in float64."""
    doubled = {part: value.double() for part, value in features.items()}
    batch, device = len(features["image"]), features["image"].device
    is_plain = plain_fits(name, 2 * batch, device.type)  # float64 takes twice the memory, and this asks for four times
    model = build(name, plain=is_plain, full=False).to(device).double()
    return "plain" if is_plain else "chunked", loss_and_gradients(model, doubled)


def measure_side(
    session: Session, name: str, side: str, features: dict[str, Tensor], reference: list[Tensor]
) -> dict[str, Any]:
    """Measure one implementation."""
    model = build(name, plain=side == "plain", full=False).to(session.device)
    with kernels() if side == "triton" else nullcontext():
        return measure_model(session, model, (name, side), features, reference)


def measure_model(
    session: Session, model: MERU, names: tuple[str, str], features: dict[str, Tensor], reference: list[Tensor]
) -> dict[str, Any]:
    """Measure the losses of a model; `names` are its name and that of the implementation."""
    (name, side), device, is_tiny = names, session.device, session.options.tiny
    found: dict[str, Any] = {}
    result = loss_and_gradients(model, features)  # also compiles the kernels
    if reference:
        found["loss_error"] = relative_error(result[:1], reference[:1])
        found["gradient_error"] = relative_error(result[1:], reference[1:])
    del result
    synchronize(device)
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    reset_peak(device)
    timing = time_calls(lambda: loss_and_gradients(model, features), device, seconds=0 if is_tiny else 3)
    found |= {"ms": 1e3 * timing.median, "ms_low": 1e3 * timing.low, "ms_high": 1e3 * timing.high}
    found["peak_gib"] = peak_gib(device) - before / 2**30
    batch = len(features["image"])
    if side != "plain" and batch == min(batches_of(session)):
        path = session.path(f"{name}_{side}.json.gz")
        found["profile"] = trace(
            lambda: loss_and_gradients(model, features), 1 if is_tiny else 3, device, path, keep=False
        )
    return found


def kernels() -> AbstractContextManager[None]:
    """Replace the contrastive losses by the Triton kernels, which are imported here: not every platform has Triton."""
    from benchmarks.gpu.fused import in_losses

    return in_losses()


def relative_error(found: list[Tensor], reference: list[Tensor]) -> float:
    """Return the norm of the difference over the norm of the reference."""
    difference = sum((a.double() - b).square().sum() for a, b in zip(found, reference, strict=True))
    return float((difference / sum(b.square().sum() for b in reference)) ** 0.5)


if __name__ == "__main__":
    main()
