"""Cached features are the outputs of the frozen towers, shard by shard, and an interrupted command goes on."""

import io
import json
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from hypergrit_common.errors import NotFiniteError
from tests.trainer.features.conftest import FEATURES, World
from trainer.checkpoints.model import load_model
from trainer.data.features import FeatureStore, Rows
from trainer.evaluation.held_out.shards import HeldOut, HeldOutShards
from trainer.features.config import FeaturesConfig
from trainer.features.write import Embedder


def table(features: Path, number: int = 0) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(features / "features" / f"{number:05d}.arrow"))).read_all()


def read(world: World) -> HeldOut:
    shards = HeldOutShards(str(world.shards))
    return shards.read_part(range(shards.index.n_samples), 16)


def contents(features: Path) -> dict[str, bytes]:
    """All files but the lock, by path."""
    found = {str(p.relative_to(features)): p.read_bytes() for p in features.rglob("*") if p.is_file()}
    return {name: data for name, data in found.items() if name != ".lock"}


def test_features_are_the_outputs_of_the_towers_before_the_projection(world: World) -> None:
    loaded = load_model(world.tower)
    model, found = loaded.model, read(world)
    with torch.no_grad():
        images, boxes = (model.image_states(part) for part in (found.images, found.box_images))
        texts, phrases = (model.textual(loaded.tokenizer(part)) for part in (found.captions, found.box_texts))
    store = FeatureStore(str(world.features), frozenset())
    everything = store.locate(np.arange(store.n_samples))
    view = np.zeros(len(everything), np.int64)
    torch.testing.assert_close(everything.take("image", view).float(), images, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(everything.take("text").float(), texts, atol=2e-3, rtol=2e-3)
    first, n = everything.items()
    owner = np.repeat(np.arange(len(n)), n)
    rows = first[owner] + np.arange(len(owner)) - np.repeat(np.cumsum(n) - n, n)
    all_boxes = Rows(store, everything.shard[owner], rows)
    assert owner.tolist() == found.box_owner
    torch.testing.assert_close(
        all_boxes.take("box_image", np.zeros(len(rows), np.int64)).float(), boxes, atol=2e-3, rtol=2e-3
    )
    torch.testing.assert_close(all_boxes.take("box_text").float(), phrases, atol=2e-3, rtol=2e-3)
    assert [key.rpartition("/")[2] for key in everything[:]] == [key.rpartition("/")[2] for key in found.keys]


@pytest.mark.parametrize(("value", "text"), [(1e5, "texts have values up to"), (float("nan"), "of 1 of 1 texts are")])
def test_values_that_half_precision_cannot_hold_are_refused(world: World, value: float, text: str) -> None:
    loaded = load_model(world.tower)
    torch.nn.init.constant_(loaded.model.textual.ln_final.bias, value)  # type: ignore[union-attr,arg-type]
    config = FeaturesConfig(model=str(world.tower), shards="unused", output="unused")
    embedder = Embedder(loaded=loaded, config=config, device=torch.device("cpu"))
    with pytest.raises(NotFiniteError, match=text):
        embedder.texts(["a dog"])


def test_projected_features_are_those_of_the_joint_space(world: World, tmp_path: Path) -> None:
    assert world.write(tmp_path / "out", "projected=true") == 0
    model, found = load_model(world.tower).model, read(world)
    store = FeatureStore(str(tmp_path / "out"), frozenset())
    with torch.no_grad():
        expected = model.image_features(found.images)
    got = store.locate(np.arange(store.n_samples)).take("image", np.zeros(store.n_samples, np.int64))
    torch.testing.assert_close(got.float(), expected, atol=2e-3, rtol=2e-3)


def test_views_are_random_crops_that_depend_on_the_seed_alone(world: World, tmp_path: Path) -> None:
    column = table(world.features)["image"].combine_chunks().flatten().to_numpy().reshape(25, 2, -1)
    assert (column[:, 0] != column[:, 1]).any(1).mean() > 0.8  # of pictures of 16 px, some crops are the whole
    for name, seed in (("same", 0), ("other", 1)):
        assert world.write(tmp_path / name, *FEATURES, f"seed={seed}") == 0
    same, other = (table(tmp_path / name)["image"].combine_chunks().flatten().to_numpy() for name in ("same", "other"))
    assert same.tobytes() == column.tobytes()
    assert other.reshape(column.shape)[:, 0].tobytes() == column[:, 0].tobytes()
    assert (other.reshape(column.shape)[:, 1] != column[:, 1]).any()


def test_an_interrupted_command_or_a_lost_file_goes_on_and_gives_the_same_files(world: World, tmp_path: Path) -> None:
    output = tmp_path / "out"
    shutil.copytree(world.features, output)
    before = contents(output)
    (output / "_manifests" / "00001.json").unlink()
    (output / "features" / "00001.arrow").write_bytes(b"half")
    (output / "features" / "00002.arrow").unlink()
    untouched = output / "features" / "00000.arrow"
    changed = untouched.stat().st_mtime_ns
    assert world.write(output, *FEATURES) == 0
    assert contents(output) == before
    assert untouched.stat().st_mtime_ns == changed


def test_a_repeated_command_may_name_the_tower_by_another_path_but_not_by_another_precision(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    shutil.copytree(world.features, output)
    monkeypatch.chdir(world.tower.parents[1])
    other = World(tmp_path)
    other.tower, other.shards = Path("tower"), world.shards
    assert other.write(output, *FEATURES) == 0
    assert contents(output) == contents(world.features)
    assert other.write(output, *FEATURES, "precision=bf16") == 2
    assert "other settings" in capsys.readouterr().err


def test_features_of_other_settings_are_not_mixed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(world.features)
    assert world.write(world.features, "views=3", "tokens=true") == 2
    assert "other settings" in capsys.readouterr().err
    assert contents(world.features) == before


def test_shards_that_changed_since_are_noticed_and_a_damaged_manifest_is_named(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = World(tmp_path)
    other.tower = world.tower
    shutil.copytree(world.shards, other.shards)
    assert other.write(tmp_path / "out") == 0
    manifest = tmp_path / "out" / "_manifests" / "00001.json"
    manifest.write_text("{")
    assert other.write(tmp_path / "out") == 2
    assert "remove it, and repeat the command" in capsys.readouterr().err
    manifest.unlink()
    assert other.write(tmp_path / "out") == 0
    shard = sorted(other.shards.glob("*.tar"))[0]
    shard.write_bytes(shard.read_bytes().replace(b"cat 3", b"dog 3"))  # of the same size, without a hash
    assert other.write(tmp_path / "out") == 2
    assert "other sources" in capsys.readouterr().err


def with_a_broken_picture(world: World, tmp_path: Path, shard: int, key: str) -> World:
    """The world with shards in which the picture of a sample is no picture."""
    shutil.copytree(world.shards, tmp_path / "shards")
    path = sorted((tmp_path / "shards").glob("*.tar"))[shard]
    with tarfile.open(path) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    with tarfile.open(path, "w") as tar:
        for member, data in members:
            broken = b"x" * len(data) if member.name == f"{key}.child.jpg" else data
            tar.addfile(member, io.BytesIO(broken))
    other = World(tmp_path)
    other.tower = world.tower
    return other


def test_a_bad_sample_is_counted_by_its_reason(world: World, tmp_path: Path) -> None:
    other = with_a_broken_picture(world, tmp_path, 0, "0000")
    assert other.write(tmp_path / "out") == 0
    manifest = json.loads((tmp_path / "out" / "_manifests" / "00000.json").read_text())
    assert manifest["bad"] == {"undecodable_image": 1}
    assert manifest["read"] == manifest["files"]["features/00000.arrow"]["rows"] + 1 == 25


def test_the_share_of_bad_samples_is_that_of_all_files(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = with_a_broken_picture(world, tmp_path, 1, "0063")  # the last of 64 samples
    rows = "rows_per_shard=63"
    assert other.write(tmp_path / "out", rows, "max_bad_share=0.01") == 2
    assert "1 of 64 samples are bad" in capsys.readouterr().err
    assert other.write(tmp_path / "out", rows, "max_bad_share=0.02") == 0
    manifest = json.loads((tmp_path / "out" / "_manifests" / "00001.json").read_text())
    assert (manifest["read"], manifest["bad"]) == (1, {"undecodable_image": 1})
    store = FeatureStore(str(tmp_path / "out"), frozenset())
    assert (store.n_samples, len(store.locate(np.arange(63)).take("image", np.zeros(63, np.int64)))) == (63, 63)


@pytest.mark.parametrize("others", [(), ("patches=true", "views=2")])
def test_a_dry_run_predicts_the_bytes_and_writes_nothing(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, others: tuple[str, ...]
) -> None:
    caplog.set_level("INFO")
    assert world.write(tmp_path / "out", "dry_run=true", *others) == 0
    assert "dry run of 64 samples: all 64 will take about" in caplog.text
    found = re.search(r"([\d.]+) MB \(3 files of at most 25 samples\)", caplog.text)
    assert found
    assert not (tmp_path / "out").exists()
    assert world.write(tmp_path / "out", *others) == 0
    n_bytes = sum(table(tmp_path / "out", number).nbytes for number in range(3))
    assert float(found[1]) == pytest.approx(n_bytes / 1e6, abs=0.006)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("tokens=true word_states=block word_block=9", "word_block"),
        ("output=s3://bucket/x", "give a folder of this machine"),
        ("views=0", "views"),
        ("crop_scale=[0.5, 2]", "crop_scale"),
        ("model=/nowhere", "does not exist"),
    ],
)
def test_a_wrong_setting_is_named(
    world: World, tmp_path: Path, argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert world.write(tmp_path / "out", *re.split(" (?=word)", argument)) == 2
    assert message in capsys.readouterr().err
