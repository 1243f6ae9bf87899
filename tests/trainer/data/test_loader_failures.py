import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.data.loading import assert_batches_equal, keys, resumed, small_loader, take
from tests.trainer.data.samples import jpeg, pair_files, train_files, write_shards, write_tar


def write_samples(folder: Path, n: int, bad: slice = slice(0)) -> Path:
    """Write a shard of n samples; those of the slice have no caption."""
    samples = [(f"{number:04d}", train_files(number)) for number in range(n)]
    for _, files in samples[bad]:
        files["child.txt"] = b" " * len(files["child.txt"])
    write_tar(folder / "0.tar", samples)
    return folder


def write_bad_samples(folder: Path) -> Path:
    """Write a shard of 20 samples, of which 3, 8, 11 and 14 are bad."""
    samples = [(f"{n:04d}", train_files(n)) for n in range(20)]
    samples[3][1]["child.jpg"] = jpeg()[:300]
    samples[8][1]["parent000.jpg"] = samples[8][1]["parent001.jpg"] = b"no image"
    samples[11][1]["child.txt"] = b""
    del samples[14][1]["child.txt"]
    write_tar(folder / "0.tar", samples)
    return folder


def test_bad_samples_are_counted_logged_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = small_loader(write_bad_samples(tmp_path), batch=5)
    with caplog.at_level(logging.WARNING):
        batches = take(source, 4)
    assert all(len(batch.keys) == 5 == len(set(batch.keys)) for batch in batches)
    assert not {f"0.tar/{n:04d}" for n in (3, 8, 11, 14)} & set(keys(batches))
    bad = {name: n for name, n in source.counts.items() if name.startswith("bad/")}
    assert bad.keys() == {"bad/undecodable_image", "bad/no_caption", "bad/missing_member"}
    assert sum(bad.values()) >= 4  # a replacement may be bad too
    assert (
        "0.tar: 0014: missing_member: the sample has no child.txt, only child.jpg, json, numparents.txt" in caplog.text
    )


def test_replacements_are_the_same_with_workers_and_after_resuming(tmp_path: Path) -> None:
    shards = write_bad_samples(tmp_path)
    source = resumed(small_loader(shards), 3, small_loader(shards))
    assert_batches_equal(take(source, 3), take(small_loader(shards, workers=1), 6)[3:])


@pytest.mark.parametrize("ranks", [2, 4])
def test_replacements_do_not_depend_on_the_number_of_ranks(tmp_path: Path, ranks: int) -> None:
    write_samples(tmp_path, 64, slice(0, None, 8))
    settings = {"max_bad_share": 0.5, "boxes": "all"}
    whole = take(small_loader(tmp_path, 8, **settings), 24)
    parts = [
        take(small_loader(tmp_path, 8 // ranks, rank=rank, world_size=ranks, **settings), 24) for rank in range(ranks)
    ]
    for batch, of_ranks in zip(whole, zip(*parts, strict=True), strict=True):
        assert list(batch.keys) == keys(of_ranks)
        assert torch.equal(batch["image"].rows, torch.cat([part["image"].rows for part in of_ranks]))
        assert torch.equal(batch["box_image"].rows, torch.cat([part["box_image"].rows for part in of_ranks]))  # type: ignore[arg-type]
    repeated = sum(len(batch.keys) - len(set(batch.keys)) for batch in whole)
    assert repeated <= 2  # of the 24 or more replacements: those by the second attempt


def test_a_bad_sample_is_replaced_by_another_one_of_its_epoch(tmp_path: Path) -> None:
    for n in (1, 2, 5, 40):
        source = small_loader(write_shards(tmp_path / f"{n}", [n]), 1)
        for epoch in (0, 7):
            drawn = source.order.take(epoch * n, n).samples
            for attempt in (1, 2, 8):
                found = [source.builder.replacement(epoch * n + place, attempt) for place in range(n)]
                assert sorted(found) == list(range(n))
                assert n < 4 or all(old != new for old, new in zip(drawn, found, strict=True))
        assert n < 40 or len({source.builder.replacement(3, attempt) for attempt in range(1, 256)}) > 35


def test_log_of_many_bad_samples_is_short(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = small_loader(write_samples(tmp_path, 20, slice(4, None)), batch=1, max_bad_share=1.0)
    take(source, 40)
    assert source.n_bad > 100
    assert len(caplog.records) < 20


@pytest.mark.parametrize("workers", [0, 1])
def test_more_bad_samples_than_the_stated_share_stop_the_run_with_their_reasons(tmp_path: Path, workers: int) -> None:
    write_samples(tmp_path, 40, slice(5, None, 5))
    with pytest.raises(
        UserError, match=r"64 of the \d+ samples .*64 no_caption.* data\.max_bad_share=0\.1; fix"
    ) as error:
        take(small_loader(tmp_path, workers=workers), 200)
    assert "\n" not in str(error.value)
    assert small_loader(tmp_path, max_bad_share=0.4).n_bad == 0
    take(small_loader(tmp_path, max_bad_share=0.4), 200)


def test_more_damaged_shards_than_the_stated_share_stop_the_run_at_its_start(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [3, 3, 3])
    (tmp_path / "00001.tar").write_bytes((tmp_path / "00001.tar").read_bytes()[:9000])
    with pytest.raises(UserError, match=r"1 of the 3 shards are damaged.*00001\.tar: truncated .*download them again"):
        small_loader(shards)
    assert small_loader(shards, max_bad_share=0.5).counts["damaged_shards"] == 1


@pytest.mark.parametrize(
    ("make", "needs", "message"),
    [
        (pair_files, "boxes", r"00000\.tar: 0000: no_boxes.*none of the 5 samples checked.*train without boxes"),
        (lambda n: train_files(n, with_json=False), "parse", r"00000\.tar: 0000: no_parse.*formats=\[train\]"),
        (lambda n: {"txt": b"a"}, "boxes", r"missing_member: the sample has no jpg.*give train/ shards"),
    ],
)
def test_data_without_the_boxes_or_parse_that_a_model_needs_are_refused_at_the_start(
    tmp_path: Path, make: Any, needs: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        small_loader(write_shards(tmp_path, [3, 2], make), needs=frozenset({needs}))


def test_wrong_layout_setting_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no json.*data\.layout is grit; set data\.layout=auto"):
        small_loader(write_shards(tmp_path, [3], pair_files), layout="grit")


def test_one_usable_sample_among_those_checked_is_enough_to_start(tmp_path: Path) -> None:
    samples = [(f"{n}", train_files(n, n_boxes=int(n == 5))) for n in range(10)]
    write_tar(tmp_path / "0.tar", samples)
    (batch,) = take(small_loader(tmp_path, batch=1), 1)
    assert batch.keys == ("0.tar/5",)


@pytest.mark.parametrize("workers", [0, 1])
def test_run_stops_if_all_samples_are_bad(tmp_path: Path, workers: int) -> None:
    source, facts = small_loader(write_samples(tmp_path, 4), workers=workers), (tmp_path / "0.tar").stat()
    write_samples(tmp_path, 4, slice(None))  # of the same size, so the index stays valid
    os.utime(tmp_path / "0.tar", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    with pytest.raises(UserError, match=r"256 bad samples in a row, among them .*0\.tar: \d+: no_caption"):
        take(source, 1)


def test_fewer_samples_than_a_batch_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (batch,) = take(small_loader(write_shards(tmp_path, [3]), batch=7), 1)
    assert len(batch.keys) == 7
    assert "3 samples, fewer than a batch of 7" in caplog.text


def test_sets_of_different_layouts_train_a_model_that_needs_pairs_alone(tmp_path: Path) -> None:
    write_shards(tmp_path / "pairs", [8], pair_files)
    write_shards(tmp_path / "boxes", [8], train_files)
    sets = f"{tmp_path}/pairs,{tmp_path}/boxes"
    source = small_loader(sets, batch=8, needs=frozenset(), max_bad_share=0.0)
    assert sorted(keys(take(source, 2))) == sorted(2 * [f"00000.tar/{n:04d}" for n in range(8)])
    assert source.n_bad == 0
    message = r"no_boxes: .*/boxes has the layout train, and .*/pairs has the layout pairs\); .*`hypergrit run`"
    with pytest.raises(UserError, match=message):
        small_loader(sets, batch=8)


def test_a_set_that_lacks_what_the_model_needs_is_no_matter_of_bad_samples(tmp_path: Path) -> None:
    write_shards(tmp_path, [8, 120], lambda number: train_files(number) if number < 8 else pair_files(number))
    with pytest.raises(UserError, match="no_boxes") as error:
        take(small_loader(tmp_path, batch=8, needs=frozenset({"boxes"})), 40)
    assert "or raise" not in str(error.value)
