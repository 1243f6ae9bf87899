"""data.reader=webdataset: batches of shards that are read as streams."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.config import to_yaml
from hypergrit_common.errors import UserError
from tests.trainer.data.loading import BOXES, small_loader
from tests.trainer.data.samples import TOKENIZER, pair_files, train_files, write_shards, write_tar
from trainer.config import as_dict, load_config
from trainer.data.config import DataConfig
from trainer.data.stream import StreamLoader


def stream_loader(shards: object, batch: int = 4, needs: frozenset[str] = BOXES, **fields: Any) -> StreamLoader:
    ranks = {name: fields.pop(name) for name in ("rank", "world_size") if name in fields}
    given = shards if isinstance(shards, tuple) else str(shards)
    config = DataConfig(**{"shards": given, "reader": "webdataset", "workers": 0, **fields})
    return StreamLoader(config, tokenizer=TOKENIZER, size_px=16, batch=batch, needs=needs, **ranks)


def keys(loader: StreamLoader, n: int) -> list[str]:
    """The keys of n batches."""
    found = [key for batch in islice(iter(loader), n) for key in batch.keys]
    loader.close()
    return found


def test_batches_have_the_samples_of_indexed_shards(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "train", [4, 4])
    stream, index = stream_loader(shards, batch=8), small_loader(shards, batch=8)
    ours, theirs = next(iter(stream)), next(iter(index))
    index.close()
    stream.close()
    assert sorted(key.partition("/")[2] for key in ours.keys) == sorted(key.partition("/")[2] for key in theirs.keys)
    assert ours["image"].rows.shape == theirs["image"].rows.shape
    assert stream.counts["samples"] == 8


def test_ranks_and_loader_processes_read_different_shards_again_and_again(tmp_path: Path) -> None:
    """There are as many loader processes as shards at most."""
    shards = write_shards(tmp_path / "train", [4] * 4)
    fewer = keys(stream_loader(shards, batch=4, workers=9), 8)
    assert all(fewer.count(key) == 2 for key in fewer)
    parts = [keys(stream_loader(shards, batch=4, rank=rank, world_size=2, workers=2), 2) for rank in range(2)]
    assert len({*parts[0], *parts[1]}) == 16


def test_a_loader_that_resumes_keeps_its_counts_and_reads_in_another_order(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "train", [4] * 4)
    first, second = stream_loader(shards), stream_loader(shards)
    begun = keys(first, 3)
    second.load_state_dict(first.state_dict())
    assert (second.position, second.counts["samples"]) == (12, 12)
    assert keys(second, 3) != begun == keys(stream_loader(shards), 3)
    with pytest.raises(UserError, match="belongs to different data"):
        small_loader(shards).load_state_dict(first.state_dict())


def test_bad_samples_are_replaced_by_the_next_ones_and_counted(tmp_path: Path) -> None:
    samples = [(f"k{i}", train_files(i, n_boxes=0 if i % 3 == 0 else 1)) for i in range(12)]
    loader = stream_loader(write_tar(tmp_path / "a.tar", samples), max_bad_share=1.0)
    found = keys(loader, 2)
    assert sorted(int(key.partition("/k")[2]) for key in found) == [1, 2, 4, 5, 7, 8, 10, 11]
    assert loader.counts["bad/no_boxes"] >= 2
    strict = stream_loader(write_tar(tmp_path / "b.tar", [(f"k{i}", pair_files(i)) for i in range(300)]))
    with pytest.raises(UserError, match=r"data\.shards: 256 bad samples in a row"):
        keys(strict, 1)


def test_damaged_shards_are_counted_and_end_the_run_if_they_are_too_many(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "train", [2, 2])
    (shards / "00001.tar").write_bytes((shards / "00001.tar").read_bytes()[: -1024 * 9])
    with pytest.raises(UserError, match=r"data\.shards: 1 of the 2 shards of this process are damaged"):
        keys(stream_loader(shards), 4)
    lenient = stream_loader(shards, max_bad_share=0.5)
    keys(lenient, 4)
    assert lenient.counts["damaged_shards"] == 1


def test_what_a_stream_cannot_keep_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="weights cannot be used with reader=webdataset"):
        DataConfig(shards="a,b", weights=(1, 1), reader="webdataset")
    with pytest.raises(UserError, match="features cannot be used with reader=webdataset"):
        DataConfig(features="a", reader="webdataset")


def test_no_command_is_saved_and_none_of_a_saved_configuration_is_run(tmp_path: Path) -> None:
    config = load_config([f"output={tmp_path}", "data.reader=webdataset", "data.shards=[a.tar,'pipe:curl -H TOKEN h']"])
    assert "TOKEN" not in to_yaml(config)
    assert as_dict(config)["data"]["shards"] == ["a.tar", "pipe:(not saved)"]
    saved = tmp_path / "config.yaml"
    saved.write_text(f"data: {{reader: webdataset, shards: ['{tmp_path}::pipe:touch gone']}}")
    assert load_config([str(saved), f"output={tmp_path}", "data.shards=a.tar"]).data.shards == "a.tar"
    with pytest.raises(UserError, match="shards"):
        load_config([str(saved), f"output={tmp_path}"])
