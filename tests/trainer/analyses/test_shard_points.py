"""Points of held-out shards: owners, skipped samples, and agreement with the evaluation of the trainer."""

from pathlib import Path

import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.tasks.embedding import SIDE, small_embedder, write_shards
from trainer.analyses.shard_points import embed_shards
from trainer.evaluation.embed import embed_images
from trainer.evaluation.held_out.shards import HeldOutShards
from trainer.evaluation.task import MissingFilesError


def test_features_are_those_of_the_evaluation_of_the_trainer(tmp_path: Path) -> None:
    write_shards(tmp_path)
    embedder = small_embedder("hycoclip", tmp_path)
    found = embed_shards(embedder, tmp_path)
    held_out = HeldOutShards(str(tmp_path / "held_out")).read_part(range(6), SIDE)
    torch.testing.assert_close(found.image, embed_images(embedder.model, held_out.images, 4))
    torch.testing.assert_close(found.box_image, embed_images(embedder.model, held_out.box_images, 4))
    assert found.owner.tolist() == held_out.box_owner == [0, 1, 1, 2, 3, 3, 4, 5, 5]
    assert (found.captions, found.phrases) == (held_out.captions, held_out.box_texts)
    assert found.text.equal(embedder.texts(held_out.captions))


def test_damaged_images_and_boxes_are_skipped_with_their_texts_and_counted(tmp_path: Path) -> None:
    write_shards(tmp_path, damaged=1, box_damaged=3)
    found = embed_shards(small_embedder("hycoclip", tmp_path), tmp_path)
    assert found.captions == [f"blue kite {i}" for i in (0, 2, 3, 4, 5)]
    assert found.phrases == ["kite 0 0", "kite 2 0", "kite 3 1", "kite 4 0", "kite 5 0", "kite 5 1"]
    assert found.owner.tolist() == [0, 1, 2, 3, 4, 4]
    assert sum(found.skipped.values()) == 2
    assert found.box_image.norm(dim=1).min() > 0


def test_a_limit_keeps_the_first_samples(tmp_path: Path) -> None:
    write_shards(tmp_path)
    found = embed_shards(small_embedder("clip", tmp_path), tmp_path, limit=2)
    assert (len(found.captions), len(found.phrases)) == (2, 3)


def test_missing_and_unreadable_shards_are_errors_that_name_the_layout(tmp_path: Path) -> None:
    embedder = small_embedder("clip", tmp_path)
    with pytest.raises(MissingFilesError, match=r"expected .*held_out/00000\.tar"):
        embed_shards(embedder, tmp_path)
    write_shards(tmp_path / "bad", n=1, damaged=0)
    with pytest.raises(UserError, match="none of the 1 samples checked is usable"):
        embed_shards(embedder, tmp_path / "bad")


def test_a_damaged_shard_is_counted_and_more_than_a_tenth_of_several_are_an_error(tmp_path: Path) -> None:
    embedder, folder = small_embedder("clip", tmp_path), tmp_path / "held_out"
    write_shards(tmp_path)
    whole = (folder / "00000.tar").read_bytes()
    for number in range(1, 10):
        (folder / f"{number:05d}.tar").write_bytes(whole)
    (folder / "00003.tar").write_bytes(whole[: len(whole) // 2])
    assert embed_shards(embedder, tmp_path).skipped["damaged shard"] == 1
    (folder / "00004.tar").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"2 of the 10 shards of .* are damaged") as error:
        embed_shards(embedder, tmp_path)
    assert not isinstance(error.value, MissingFilesError)
