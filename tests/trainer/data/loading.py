"""Small loaders for tests, and comparison of their batches."""

import json
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch

from tests.trainer.data.samples import TOKENIZER
from trainer.batch import Batch
from trainer.data.config import DataConfig
from trainer.data.loader import Loader

BOXES = frozenset({"boxes"})


def small_loader(shards: object, batch: int = 4, needs: frozenset[str] = BOXES, **fields: Any) -> Loader:
    """A loader of small batches without loader processes; `fields` are settings, `rank` and `world_size`."""
    ranks = {name: fields.pop(name) for name in ("rank", "world_size") if name in fields}
    config = DataConfig(**{"shards": str(shards), "workers": 0, **fields})
    return Loader(config, tokenizer=TOKENIZER, size_px=16, batch=batch, needs=needs, **ranks)


def take(source: Loader, n: int) -> list[Batch]:
    """Return the next n batches and close the loader."""
    batches = list(islice(iter(source), n))
    source.close()
    return batches


def resumed(first: Loader, n: int, second: Loader) -> Loader:
    """Return the second loader at the place where the first one is after n batches, by its state as JSON."""
    take(first, n)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    return second


def tensors(batch: Batch) -> dict[str, torch.Tensor]:
    """All tensors of a batch by stream and field, with those of its parse."""
    found: dict[str, torch.Tensor] = {}
    for name, stream in batch.streams.items():
        fields = {**stream._asdict(), **(vars(stream.syntax) if stream.syntax else {})}
        found |= {f"{name}/{key}": value for key, value in fields.items() if isinstance(value, torch.Tensor)}
    return found


def assert_batches_equal(actual: Sequence[Batch], expected: Sequence[Batch]) -> None:
    """Assert that keys and tensors of the batches are equal."""
    assert [batch.keys for batch in actual] == [batch.keys for batch in expected]
    for one, other in zip(actual, expected, strict=True):
        assert tensors(one).keys() == tensors(other).keys()
        assert all(torch.equal(value, tensors(other)[name]) for name, value in tensors(one).items())


def keys(batches: Sequence[Batch]) -> list[str]:
    """Keys of the samples of all batches, in order."""
    return [key for batch in batches for key in batch.keys]
