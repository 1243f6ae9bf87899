import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.small import rows, small_batch, small_model
from trainer.dual_encoder import Batch

OWNERS = ([0, 0, 1, 2, 3], [0, 1, 1, 1, 2, 2, 3])  # of the boxes of two ranks' four pairs each


def batch_of(ranks: list[int], several_boxes: bool) -> Batch:
    """The four pairs of each of these ranks, in double precision; with several boxes a pair, as many as `OWNERS` say."""
    batch = rows(small_batch(), slice(4 * ranks[0], 4 * ranks[-1] + 4))
    if several_boxes:
        first = 5 * ranks[0]
        boxes = rows(small_batch(12, seed=1), slice(first, first + sum(len(OWNERS[rank]) for rank in ranks)))
        owner = torch.tensor([4 * place + own for place, rank in enumerate(ranks) for own in OWNERS[rank]])
        batch = dataclasses.replace(
            batch, box_images=boxes.box_images, box_token_ids=boxes.box_token_ids, box_owner=owner
        )
    assert batch.box_images is not None
    return dataclasses.replace(batch, images=batch.images.double(), box_images=batch.box_images.double())


def one_rank(rank: int, name: str, fields: dict[str, Any], several_boxes: bool, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    model = small_model(name, **fields).double()
    loss = model.losses(model.features(batch_of([rank], several_boxes))).loss
    loss.backward()
    results = {key: p.grad for key, p in model.named_parameters() if p.grad is not None} | {"loss": loss.detach()}
    for value in results.values():
        dist.all_reduce(value)
        value /= 2
    if rank == 0:
        torch.save(results, f"{folder}/averaged.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("name", "fields", "several_boxes"),
    [
        ("phyclip", {}, False),
        ("phyclip", {"loss_chunk": None}, False),
        ("phyclip", {"loss_chunk": 40}, True),
        ("hycoclip", {"box_candidates": "paper"}, True),
    ],
)
def test_two_ranks_find_the_gradients_of_one_on_the_whole_batch(
    tmp_path: Path, name: str, fields: dict[str, Any], several_boxes: bool
) -> None:
    torch.multiprocessing.spawn(one_rank, args=(name, fields, several_boxes, str(tmp_path)), nprocs=2)
    averaged = torch.load(tmp_path / "averaged.pt", weights_only=True)
    model = small_model(name, **fields).double()
    loss = model.losses(model.features(batch_of([0, 1], several_boxes))).loss
    loss.backward()
    torch.testing.assert_close(averaged.pop("loss"), loss.detach())
    for key, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(averaged[key], parameter.grad)
