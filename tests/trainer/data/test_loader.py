import io
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.data.loading import BOXES, assert_batches_equal, keys, resumed, small_loader, take, tensors
from tests.trainer.data.samples import (
    TOKENIZER,
    Files,
    grit_files,
    jpeg,
    pair_files,
    train_files,
    write_shards,
    write_tar,
)
from trainer.batch import Batch
from trainer.text.syntax import Syntax


def test_batch_has_the_fields_that_models_use_and_can_be_saved(shards: Path) -> None:
    (batch,) = take(small_loader(shards, needs=frozenset({"boxes", "parse"})), 1)
    assert (batch["image"].rows.shape, batch["image"].rows.dtype) == ((4, 3, 16, 16), torch.uint8)
    assert batch["image"].rows.is_contiguous(memory_format=torch.channels_last)
    assert batch["box_image"].rows.shape == (4, 3, 16, 16)
    assert batch["box_image"].owner is None
    assert isinstance(batch["text"].syntax, Syntax)
    for row, key in enumerate(batch.keys):
        number = int(key[-4:])
        assert TOKENIZER.decode(batch["text"].rows[row].tolist()).replace(" ", "") == f"cat{number}"
        assert f"of{number}" in TOKENIZER.decode(batch["box_text"].rows[row].tolist()).replace(" ", "")
        brightness = batch["image"].rows[row].max().item()
        assert abs(brightness - (number % 200 + 50)) < 12
    file = io.BytesIO()
    torch.save(tensors(batch), file)
    file.seek(0)
    assert torch.load(file, weights_only=True).keys() == tensors(batch).keys()


MIXED = frozenset({"boxes", "pairs"})


def every_third(number: int) -> Files:
    """A sample with two boxes if its number is divisible by three, else with none."""
    return train_files(number, n_boxes=0 if number % 3 else 2)


@pytest.mark.parametrize(("boxes", "each"), [("random", 1), ("all", 2)])
def test_boxes_as_pairs_read_samples_with_boxes_and_without(tmp_path: Path, boxes: str, each: int) -> None:
    shards = write_shards(tmp_path, [10, 11], every_third)
    loader = small_loader(shards, batch=3, needs=MIXED, boxes=boxes)
    batches = take(loader, 14)  # two epochs
    assert loader.n_bad == 0
    assert len(set(keys(batches[:7]))) == 21
    for batch in batches:
        assert batch["box_image"].owner is not None
        owners = [row for row, key in enumerate(batch.keys) if int(key[-4:]) % 3 == 0 for _ in range(each)]
        assert batch["box_image"].owner.tolist() == owners
        assert batch["box_image"].rows.shape == (len(owners), 3, 16, 16)
        assert batch["box_text"].rows.shape[1] > 0
        for text, image, owner in zip(batch["box_text"].rows, batch["box_image"].rows, owners, strict=True):
            assert f"of{int(batch.keys[owner][-4:])}" in TOKENIZER.decode(text.tolist()).replace(" ", "")
            assert 95 < image.max() < 110
    assert {len(batch["box_image"].owner) for batch in batches if batch["box_image"].owner is not None} >= {0, each}
    assert loader.counts["boxes"] == 14 * each
    of_workers = take(small_loader(shards, batch=3, needs=MIXED, boxes=boxes, workers=2), 14)
    assert_batches_equal(of_workers, batches)
    for batch in (*of_workers, *(batch.to("meta") for batch in of_workers)):  # boxes and their phrases stay paired
        assert batch["box_image"].owner is batch["box_text"].owner


def test_boxes_as_pairs_need_samples_with_boxes(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [4], lambda number: train_files(number, n_boxes=0))
    with pytest.raises(UserError, match=r"the sample has no boxes \(none of the 4 samples checked is usable"):
        small_loader(shards, needs=MIXED)


def test_every_epoch_contains_every_sample_once_across_batches_and_leaves_the_global_generator(shards: Path) -> None:
    before = torch.get_rng_state()
    sequence = keys(take(small_loader(shards), 21))  # 84 samples: four epochs of 21
    for epoch in range(4):
        assert len(set(sequence[21 * epoch : 21 * epoch + 21])) == 21
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("layout", [train_files, grit_files, pair_files])
def test_batches_do_not_depend_on_the_number_of_workers(tmp_path: Path, layout: Any) -> None:
    shards = write_shards(tmp_path, [5, 6], layout)
    needs = frozenset[str]() if layout is pair_files else BOXES
    assert_batches_equal(
        take(small_loader(shards, needs=needs), 5), take(small_loader(shards, needs=needs, workers=2), 5)
    )


def test_ranks_take_equal_parts_of_each_batch(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [10])  # one shard for four ranks
    single = take(small_loader(shards, batch=8), 3)
    ranks = [take(small_loader(shards, batch=2, rank=rank, world_size=4), 3) for rank in range(4)]
    for step, batch in enumerate(single):
        assert batch.keys == tuple(keys([batches[step] for batches in ranks]))
        assert torch.equal(batch["image"].rows, torch.cat([batches[step]["image"].rows for batches in ranks]))


@pytest.mark.parametrize("drawn", [1, 24, 31])  # one batch of 4 ranks, or three at once
def test_batches_that_are_drawn_at_once_are_those_that_are_drawn_alone(
    shards: Path, monkeypatch: pytest.MonkeyPatch, drawn: int
) -> None:
    monkeypatch.setattr("trainer.data.loader.DRAWN", drawn)
    batch = 2
    for rank, position in ((0, 0), (3, 16)):
        loader = small_loader(shards, batch=batch, rank=rank, world_size=4)
        for step, (start, draw) in zip(range(20), loader.requests(position), strict=False):
            assert start == position + 8 * step + batch * rank
            alone = loader.order.take(start, batch)
            assert [column.tolist() for column in draw] == [column.tolist() for column in alone]


def test_loader_resumes_at_the_position_of_its_state(shards: Path) -> None:
    source = resumed(small_loader(shards, workers=1), 4, small_loader(shards, workers=2, prefetch=1))
    assert_batches_equal(take(source, 5), take(small_loader(shards), 9)[4:])
    assert source.counts["samples"] == 36


def test_samples_before_the_position_are_not_read(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, built = small_loader(shards), []
    source.load_state_dict({**source.state_dict(), "place": 4 * 5000})
    build = source.builder.build
    monkeypatch.setattr(source.builder, "build", lambda place, draw: built.append(place) or build(place, draw))
    take(source, 2)
    assert built == [20000, 20004]
    assert source.epoch == 20008 / 21


def test_state_of_other_data_is_refused_and_that_of_moved_shards_is_not(shards: Path, tmp_path: Path) -> None:
    state = small_loader(shards).state_dict()
    for other in (small_loader(write_shards(tmp_path / "other", [7, 9, 6])), small_loader(shards, seed=1)):
        with pytest.raises(UserError, match="belongs to different data"):
            other.load_state_dict(state)
    small_loader(shards.rename(tmp_path / "moved")).load_state_dict(state)


def test_crop_and_box_are_drawn_again_in_each_epoch(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [1])
    batches = take(small_loader(shards, batch=1), 30)
    assert len({batch["image"].rows.numpy().tobytes() for batch in batches}) > 10
    phrases = Counter(str(batch["box_text"].rows) for batch in batches)
    assert len(phrases) == 2
    assert min(phrases.values()) > 5


def test_all_boxes_are_returned_with_their_owners(tmp_path: Path) -> None:
    samples = [(f"{n}", train_files(n, n_boxes=n)) for n in (1, 2, 3)]
    write_tar(tmp_path / "0.tar", samples)
    (batch,) = take(small_loader(tmp_path, batch=3, boxes="all"), 1)
    assert batch["box_image"].owner is not None
    assert batch["box_image"].owner.bincount().tolist() == [int(key.rpartition("/")[2]) for key in batch.keys]
    assert batch["box_image"].owner.tolist() == sorted(batch["box_image"].owner.tolist())
    assert len(batch["box_image"].rows) == 6


def owners_and_phrases(batch: Batch) -> list[tuple[str, tuple[int, ...]]]:
    """The key of its sample and the tokens of each box, samples in the order of their keys."""
    assert batch["box_image"].owner is not None
    rows = [
        (batch.keys[o], tuple(i for i in ids if i))
        for o, ids in zip(batch["box_image"].owner.tolist(), batch["box_text"].rows.tolist(), strict=True)
    ]
    return sorted(rows, key=lambda row: row[0])


def test_max_boxes_keeps_the_first_boxes_of_a_sample_or_random_ones_in_their_order(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", [(f"{n}", train_files(n, n_boxes=n)) for n in (1, 6)])
    common: dict[str, Any] = {"batch": 2, "boxes": "all"}
    (every,) = take(small_loader(tmp_path, **common), 1)
    rows = owners_and_phrases(every)
    assert [owner for owner, _ in rows] == ["0.tar/1"] + ["0.tar/6"] * 6
    (first,) = take(small_loader(tmp_path, max_boxes=2, **common), 1)
    assert owners_and_phrases(first) == rows[:3]
    drawn = take(small_loader(tmp_path, max_boxes=2, box_order="random", **common), 6)
    kept = [owners_and_phrases(batch) for batch in drawn]
    assert all(found[0] == rows[0] and len(found) == 3 for found in kept)
    assert all(found == [row for row in rows if row in found] for found in kept)
    assert len({tuple(found) for found in kept}) > 1


def test_batch_has_no_boxes_and_parse_unless_needed(shards: Path) -> None:
    (batch,) = take(small_loader(shards, needs=frozenset()), 1)
    assert batch.streams.keys() == {"text", "image"}
    assert batch["text"].syntax is None


def test_raw_grit_boxes_are_cropped_from_the_image(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [4], grit_files)
    (batch,) = take(small_loader(shards, crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0)), 1)
    # The 64 x 96 box, the dark half, is centred on a white square; the 128 x 96 image has white above and below.
    assert (batch["box_image"].rows[:, :, :, 5:11].float().mean() - 100).abs() < 5
    assert (batch["box_image"].rows[:, :, :, :2] == 255).all()
    assert (batch["image"].rows[:, :, :2] == 255).all()


@pytest.mark.parametrize("layout", ["pairs", "train"])
def test_half_of_the_captions_start_with_their_subreddit(tmp_path: Path, layout: str) -> None:
    fields = b'{"caption": "my cat", "subreddit": "cats"}'
    files: Files = {"jpg": jpeg(), "json": fields}
    if layout == "train":
        files = train_files(0) | {"child.txt": b"my cat", "json": fields}
    write_tar(tmp_path / "0.tar", [("a", files)])
    captions = [
        TOKENIZER.decode(batch["text"].rows[0].tolist()) for batch in take(small_loader(tmp_path, 1, frozenset()), 60)
    ]
    texts = Counter(text.replace(" ", "") for text in captions)
    assert set(texts) == {"mycat", "cats:mycat"}
    assert 18 <= texts["cats:mycat"] <= 42


@pytest.mark.parametrize("first", [False, True])
def test_subreddits_are_used_whether_or_not_the_first_shard_has_them(tmp_path: Path, first: bool) -> None:
    for shard, has_subreddits in enumerate((first, not first)):
        more = {"json": b'{"subreddit": "cats"}'} if has_subreddits else {}
        samples = [(f"{shard}{n}", train_files(n, with_json=False) | more) for n in range(6)]
        write_tar(tmp_path / f"0000{shard}.tar", samples)
    batches = take(small_loader(tmp_path, 6, subreddit_probability=1.0), 2)
    captions = [TOKENIZER.decode(row.tolist()) for batch in batches for row in batch["text"].rows]
    assert sum(text.replace(" ", "").startswith("cats:") for text in captions) == 6


def test_pickled_builder_builds_the_same_batch(tmp_path: Path) -> None:
    for make, needs in ((train_files, BOXES), (pair_files, frozenset[str]())):
        source = small_loader(write_shards(tmp_path / make.__name__, [5], make), needs=needs)
        copy = pickle.loads(pickle.dumps(source.builder))
        request = next(source.requests(0))
        assert torch.equal(copy.build(*request)[0]["image"].rows, source.builder.build(*request)[0]["image"].rows)


def test_phrases_that_are_their_caption_are_marked_and_counted(tmp_path: Path) -> None:
    def files(number: int) -> Files:
        found = train_files(number)
        return found if number % 4 else found | {"parent000.txt": found["child.txt"]}

    loader = small_loader(write_shards(tmp_path, [16], files), 16, boxes="all")
    (batch,) = take(loader, 1)
    assert batch["box_text"].equal is not None
    assert batch["box_image"].owner is not None
    for equal, owner, ids in zip(
        batch["box_text"].equal, batch["box_image"].owner, batch["box_text"].rows, strict=True
    ):
        caption = batch["text"].rows[owner]
        assert equal == (caption[caption > 0].tolist() == ids[ids > 0].tolist())
    assert loader.counts["equal_phrases"] == 4
