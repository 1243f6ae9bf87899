"""Messages about training data name the cause: what a sample has, members that lie apart, what differs on resume."""

import json
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.errors import UserError
from tests.trainer.data.loading import small_loader
from tests.trainer.data.samples import jpeg, pair_files, write_shards, write_tar
from trainer.config import TrainConfig
from trainer.data.config import DataConfig
from trainer.data.listing import ShardVersion, altered_shards
from trainer.models.config import HyperbolicConfig, ModelConfig

NONE: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"caption": ["two", "captions"]}, r'no_caption: the caption is \["two", "captions"\], not a text'),
        ({"caption": 7.5}, "no_caption: the caption is 7.5, not a text"),
        ({"caption": "\t \n"}, "no_caption: the caption is blank"),
        ({"alt": "a cat", "url": "u"}, "no_caption: the JSON has no caption, only alt, url"),
        ({}, "no_caption: the JSON has no caption, only no field"),
    ],
)
def test_a_sample_without_a_caption_says_what_it_has(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    shards = write_shards(tmp_path, [2], lambda _: {"jpg": jpeg(), "json": json.dumps(fields).encode()})
    with pytest.raises(UserError, match=message):
        small_loader(shards, needs=NONE)


def test_a_caption_in_another_member_is_listed(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [2], lambda _: {"jpg": jpeg(), "cap": b"a cat", "cls": b"3"})
    with pytest.raises(UserError, match="neither txt nor json, only cap, cls, jpg"):
        small_loader(shards, needs=NONE)


def test_members_that_lie_apart_are_the_cause_that_is_named(tmp_path: Path) -> None:
    samples = [(f"{i:03d}", pair_files(i)) for i in range(5)]
    parts = [(key, {name: files[name]}) for name in ("txt", "jpg") for key, files in samples]
    write_tar(tmp_path / "00000.tar", parts)
    with pytest.raises(UserError, match=r"the members of 000 are not adjacent.*tar --sort=name"):
        small_loader(tmp_path, needs=NONE)


@pytest.mark.parametrize(
    ("data", "kind"), [(b"filepath\ttitle\na.jpg\ta cat\n", "no tar"), (b"PK\x03\x04" + bytes(9), "zip")]
)
def test_a_file_that_is_no_tar_says_what_it_is(tmp_path: Path, data: bytes, kind: str) -> None:
    (tmp_path / "00000.tar").write_bytes(data)
    with pytest.raises(UserError, match=rf"it is .*{kind}.*; it begins with"):
        small_loader(tmp_path, needs=NONE)


def test_shards_that_were_added_or_removed_are_named() -> None:
    before, now = ([ShardVersion(name, 1, "", "") for name in names] for names in (["a", "b"], ["b", "c"]))
    assert altered_shards(before, now, ["b", "c"]) == ["c is new", "a is gone"]
    assert altered_shards(before, before[::-1], ["b", "a"]) == ["their order"]


def test_a_state_of_other_data_says_how_many_samples_there_were(tmp_path: Path) -> None:
    state = small_loader(write_shards(tmp_path / "a", [3, 4])).state_dict()
    with pytest.raises(UserError, match=r"7 samples in 2 shards, now 12 in 3"):
        small_loader(write_shards(tmp_path / "b", [3, 4, 5])).load_state_dict(state)


def test_settings_without_negatives_or_above_a_limit_are_refused() -> None:
    data = DataConfig(shards="s")
    with pytest.raises(UserError, match="batch_size is 1: the other pairs of a batch are the negatives"):
        TrainConfig(data=data, output="o", batch_size=1)
    assert (
        TrainConfig(data=data, output="o", batch_size=1, model=HyperbolicConfig(contrastive="sigmoid")).batch_size == 1
    )
    with pytest.raises(UserError, match="scale would begin at 500, above max_logit_scale=100"):
        ModelConfig(temperature_init=0.002)
    assert ModelConfig(temperature_init=0.002, max_logit_scale=500).temperature_init == 0.002
