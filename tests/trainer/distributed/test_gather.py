"""Gradients through `gather` equal those of one process on the full batch."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from tests.trainer.small import in_double, rows, small_batch, small_model, with_boxes
from trainer.batch import Batch

Owners = tuple[list[int], list[int]] | None
"""Index of the pair that each box belongs to, for two ranks with four pairs each; None: one box per pair."""
SEVERAL_BOXES: Owners = ([0, 0, 1, 2, 3], [0, 1, 1, 1, 2, 2, 3])


def batch_of(ranks: list[int], owners: Owners) -> Batch:
    """The four pairs of each of these ranks with their boxes, in double precision."""
    batch = rows(small_batch(), slice(4 * ranks[0], 4 * ranks[-1] + 4))
    if owners:
        first = len(owners[0]) * ranks[0]
        boxes = rows(small_batch(12, seed=1), slice(first, first + sum(len(owners[rank]) for rank in ranks)))
        owner = torch.tensor(
            [4 * position + pair for position, rank in enumerate(ranks) for pair in owners[rank]], dtype=torch.int64
        )
        batch = with_boxes(batch, boxes, owner)
    return in_double(batch)


def one_rank(rank: int, name: str, fields: dict[str, Any], owners: Owners, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    model = small_model(name, **fields).double()
    with patch.object(dist, "all_gather_into_tensor", wraps=dist.all_gather_into_tensor) as messages:
        loss = model.losses(model.features(batch_of([rank], owners))).loss
        loss.backward()
    assert messages.call_count == 1  # all streams and labels
    results = {key: p.grad for key, p in model.named_parameters() if p.grad is not None} | {"loss": loss.detach()}
    for value in results.values():
        dist.all_reduce(value)
        value /= 2
    if rank == 0:
        torch.save(results, f"{folder}/averaged.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("name", "fields", "owners"),
    [
        ("meru", {}, None),
        ("phyclip", {"loss_chunk": 40}, SEVERAL_BOXES),
        ("hycoclip", {"box_candidates": "paper"}, SEVERAL_BOXES),
        ("hycoclip", {"loss_chunk": None}, ([0, 2], [])),
        ("meru", {"boxes_as_pairs": True, "loss_chunk": 40}, ([0, 2], [])),
        *(
            pytest.param(*case, marks=pytest.mark.rest)
            for case in (
                ("phyclip", {}, None),
                ("phyclip", {"loss_chunk": None}, None),
                ("phyclip", {"box_candidates": "paper"}, ([], [0, 1, 1, 3])),
                ("hycoclip", {"box_candidates": "paper"}, ([], [])),
                ("uncha", {}, SEVERAL_BOXES),
                ("uncha", {"loss_chunk": None}, ([0, 2], [])),
                ("taxonomy", {"energy": "angle"}, None),
                ("uncha", {"contrastive": "sigmoid", "loss_chunk": 8}, SEVERAL_BOXES),
                ("hyper3", {}, SEVERAL_BOXES),
                ("clip", {"boxes_as_pairs": True, "contrastive": "sigmoid"}, SEVERAL_BOXES),
                ("meru", {"boxes_as_pairs": True, "loss_chunk": None}, ([], [])),
                ("taxonomy", {"boxes_as_pairs": True}, ([3], [1, 2])),
                ("hyper3", {"boxes_as_pairs": True, "use_boxes": False}, ([0, 2], [])),
            )
        ),
    ],
)
def test_two_ranks_compute_the_gradients_of_one_on_the_full_batch(
    tmp_path: Path, name: str, fields: dict[str, Any], owners: Owners
) -> None:
    # Forked, because importing torch again would take seconds.
    arguments = (name, fields, owners, str(tmp_path))
    torch.multiprocessing.start_processes(one_rank, args=arguments, nprocs=2, start_method="fork")
    averaged = torch.load(tmp_path / "averaged.pt", weights_only=True)
    model = small_model(name, **fields).double()
    loss = model.losses(model.features(batch_of([0, 1], owners))).loss
    loss.backward()
    assert loss.isfinite()
    torch.testing.assert_close(averaged.pop("loss"), loss.detach())
    for key, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(averaged[key], parameter.grad)
