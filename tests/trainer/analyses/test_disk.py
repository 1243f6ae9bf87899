"""The file of points in the Poincaré disk for the explorer."""

import json
from pathlib import Path

import pytest
import torch

from hypergrit_common.errors import UserError
from pipeline.explore.site import read_disk
from schemas.disk import KINDS
from tests.trainer.data.samples import TOKENIZER, train_files, write_tar
from tests.trainer.small import small_model
from trainer.analyses.disk import DiskConfig, ball_points, main, project, write_disk
from trainer.checkpoints.model import LoadedModel, save_model
from trainer.data.preprocess import PreprocessConfig
from trainer.encoders.config import TextConfig
from trainer.evaluation.held_out.shards import HeldOutShards
from trainer.evaluation.metrics.spaces import lorentz_to_ball

TEXT = TextConfig(vocab_size=TOKENIZER.vocab_size, context_length=16, width=32, layers=1, heads=2)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Six samples; every second has two boxes, the others none."""
    samples = [(f"{i:012d}", train_files(i, n_boxes=2 - 2 * (i % 2))) for i in range(6)]
    write_tar(tmp_path / "train" / "00000.tar", samples)
    return tmp_path / "train"


def loaded(name: str, **fields: object) -> LoadedModel:
    """A small model with the tokenizer of bytes."""
    return LoadedModel(
        model=small_model(name, text=TEXT, **fields),
        tokenizer=TOKENIZER,
        preprocess=PreprocessConfig(size_px=16),
        config={},
    )


def test_the_command_writes_a_file_of_points_that_the_explorer_reads(tmp_path: Path, shards: Path) -> None:
    folder, output = tmp_path / "model", tmp_path / "disk.json"
    found = loaded("hycoclip")
    save_model(folder, found.model, tokenizer=TOKENIZER, preprocess=found.preprocess, record={})
    assert main([str(folder), f"shards={shards}", f"output={output}", "max_samples=3", "projection=norms"]) == 0
    disk = read_disk(output)
    assert (disk["model"], disk["projection"]) == (str(folder), "norms")
    names = [(key, kind, text) for key, kind, text, *_ in disk["points"]]
    keys = ["000000000000", "000000000002", "000000000005"]  # spread over the shard
    expected = [(key, kind, f"cat {int(key)}") for kind in KINDS[:2] for key in keys]
    expected += [(f"{i:012d}", kind, f"box {box} of {i}") for kind in KINDS[2:] for i in (0, 2) for box in (0, 1)]
    assert names == expected


@pytest.mark.parametrize("name", ["meru", "phyclip", "poinclip"])
def test_norms_keep_the_distances_from_the_origin_exactly(name: str, shards: Path) -> None:
    found = loaded(name, **({"factor_dim": 8} if name == "phyclip" else {}))
    config = DiskConfig(shards=str(shards), output="unused", max_samples=0)
    points = ball_points(found, HeldOutShards(str(shards)).read_part(range(6), 16), config)
    assert len(points) == 6 + 6 + 6 + 6
    torch.testing.assert_close(project(points, "norms").norm(dim=-1), points.norm(dim=-1))
    assert project(points, "cosne").norm(dim=-1).max() < 1
    if name == "meru":
        samples = HeldOutShards(str(shards)).read_part(range(6), 16)
        lifted = found.model.encode_image(samples.images).detach()
        torch.testing.assert_close(points[:6], lorentz_to_ball(lifted, found.model.curvature().detach()))


def test_models_without_hyperbolic_space_and_empty_shards_are_errors(shards: Path, tmp_path: Path) -> None:
    config = DiskConfig(shards=str(shards), output="unused")
    with pytest.raises(UserError, match="CLIP has no hyperbolic space; give a hyperbolic model"):
        write_disk("clip", loaded("clip"), config)
    with pytest.raises(UserError, match="shards or output is missing"):
        DiskConfig(shards=str(shards))


@pytest.mark.parametrize(
    "point",
    [
        ["1", "image", "a", 0.9, 0.9],
        ["1", "word", "a", 0.1, 0.1],
        ["1", "image", "a", 0.1],
        ["1"],
        7,
        ["1", "image", "\ud800", 0.1, 0.1],
        ["1", "image", "a", 10**400, 0],
    ],
)
def test_a_malformed_file_is_refused_with_its_name(point: object, tmp_path: Path) -> None:
    path = tmp_path / "disk.json"
    path.write_text(json.dumps({"model": "m", "projection": "cosne", "points": [point]}), encoding="utf-8")
    with pytest.raises(UserError, match=r"disk: .*disk\.json has no points of a disk: .*; write it with python -m"):
        read_disk(path)
