import dataclasses
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.trainer.small import rows, small_batch, small_model
from trainer.dual_encoder import Batch


def one_rank(rank: int, name: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    model = small_model(name).double()
    batch = rows(small_batch(), slice(4 * rank, 4 * rank + 4))
    loss = model.losses(model.features(in_double(batch))).loss
    loss.backward()
    results = {key: p.grad for key, p in model.named_parameters() if p.grad is not None} | {"loss": loss.detach()}
    for value in results.values():
        dist.all_reduce(value)
        value /= 2
    if rank == 0:
        torch.save(results, f"{folder}/averaged.pt")
    dist.destroy_process_group()


def in_double(batch: Batch) -> Batch:
    assert batch.box_images is not None
    return dataclasses.replace(batch, images=batch.images.double(), box_images=batch.box_images.double())


@pytest.mark.parametrize("name", ["phyclip", "syntax_meru"])
def test_two_ranks_find_the_gradients_of_one_on_the_whole_batch(tmp_path: Path, name: str) -> None:
    torch.multiprocessing.spawn(one_rank, args=(name, str(tmp_path)), nprocs=2)
    averaged = torch.load(tmp_path / "averaged.pt", weights_only=True)
    model = small_model(name).double()
    loss = model.losses(model.features(in_double(small_batch()))).loss
    loss.backward()
    torch.testing.assert_close(averaged.pop("loss"), loss.detach())
    for key, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(averaged[key], parameter.grad)
