"""The reference cases of UNCHA on two processes, whose means over boxes are those of each process."""

import tempfile
from typing import Any

import torch
import torch.distributed as dist

from tests.parity.model_cases import gradients, head_model
from tests.parity.report import Report
from tests.parity.uncha_cases import compare_all, inputs, learned, pairs_of


def one_rank(rank: int, meta: dict[str, Any], case: dict[str, Any], folder: str) -> None:
    """Loss and gradients of a rank with half of the wholes, and means over the boxes of the rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    model = head_model(meta, {**case, "scalars": learned(case["scalars"])}, box_means="rank").double()
    model.clamp_parameters()
    half = len(case["counts"]) // 2
    wholes = slice(rank * half, (rank + 1) * half)
    before, own = sum(case["counts"][: wholes.start]), case["counts"][wholes]
    boxes = slice(before, before + sum(own))
    raw = {
        key: torch.tensor(row[boxes if key.startswith("box") else wholes]).double().requires_grad_()
        for key, row in inputs(meta["two_ranks"]["case"], case["counts"], meta["seed"]).items()
    }
    losses = model.losses(pairs_of(raw, own))
    losses.loss.backward()
    scalars = {key: grad for key, grad in gradients(model).items() if grad is not None and grad.ndim == 0}
    found = {"losses": losses, "grads": {key: value.grad for key, value in raw.items()}, "scalars": scalars}
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def compare_two_ranks(report: Report, meta: dict[str, Any]) -> None:
    """The released means over the boxes of each rank, on two processes, in float64."""
    expected = meta["two_ranks"]
    with tempfile.TemporaryDirectory() as folder:
        # Forked, because importing torch again would take seconds.
        arguments = (meta, meta["head"][expected["case"]], folder)
        torch.multiprocessing.start_processes(one_rank, args=arguments, nprocs=2, start_method="fork")
        found = [torch.load(f"{folder}/{rank}.pt", weights_only=False) for rank in range(2)]
    for rank, numbers in enumerate(expected["out"]):
        compare_all(report, "two ranks", 1e-7, found[rank]["losses"], numbers, f"rank {rank}")
    mean = torch.stack([part["losses"].loss.detach() for part in found]).mean()
    report.add("two ranks, loss", 1e-7, mean, expected["mean_loss"], where="mean")
    for key, norm in expected["grad_norm"].items():
        both = torch.cat([part["grads"][key] / 2 for part in found])
        report.add("two ranks, gradients", 1e-6, both.norm(), norm, where=key)
    for key, value in expected["grad_scalar"].items():
        if key in found[0]["scalars"]:
            scalar = sum(part["scalars"][key] for part in found) / 2
            report.add("two ranks, gradients", 1e-6, scalar, value, floor=1e-3, where=key)
