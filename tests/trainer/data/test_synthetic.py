"""Drawn samples for speed tests."""

from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from tests.trainer.data.loading import small_loader, take
from tests.trainer.small_run import run
from trainer.config import load_config
from trainer.data import synthetic
from trainer.data.synthetic import write_synthetic_shard


def test_drawn_samples_have_boxes_and_a_parse_and_are_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthetic, "N_SAMPLES", 128)
    loader = small_loader(write_synthetic_shard(tmp_path / "a"), 64, frozenset({"boxes", "parse"}), boxes="all")
    (batch,) = take(loader, 1)
    assert loader.n_bad == 0
    assert loader.n_samples == synthetic.N_SAMPLES
    assert batch["text"].syntax is not None
    assert 64 < len(batch["box_image"].rows) < 192
    assert batch["image"].rows.float().std() > 20
    again = write_synthetic_shard(tmp_path / "b")
    assert (again / "00000.tar").read_bytes() == (tmp_path / "a" / "00000.tar").read_bytes()


@pytest.mark.parametrize("setting", ["data=synthetic", pytest.param("shards=synthetic", marks=pytest.mark.rest)])
def test_a_run_without_shards_trains_on_drawn_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setattr(synthetic, "N_SAMPLES", 64)
    assert run(tmp_path / "run", setting, "steps=3") == 0
    assert (tmp_path / "run" / "synthetic" / "00000.tar").is_file()
    assert run(tmp_path / "run", setting, "steps=3") == 0  # resumes with the same samples


def test_drawn_samples_need_a_folder() -> None:
    with pytest.raises(UserError, match="must be a folder, not a URL"):
        load_config(["data=synthetic", "output=s3://bucket/run"])
