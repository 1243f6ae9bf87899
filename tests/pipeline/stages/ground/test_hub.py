"""Models by hub name, from a local cache in the layout of huggingface_hub, without a network."""

import hashlib
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import torch

from hypergrit_common.errors import UserError
from pipeline.models import HubName, blob_hash, fetch, parse_hub_name
from pipeline.stages.ground.glip.load import load_glip, save_glip
from pipeline.stages.ground.glip.predict import GlipGrounder
from pipeline.stages.ground.hf_grounders import Owlv2
from pipeline.stages.ground.load import score_threshold
from tests.pipeline.stages.ground.glip.tiny import TINY, tiny_model, write_vocab
from tests.pipeline.stages.ground.test_hf import load_grounder, tiny_owlv2

COMMIT = "0123456789abcdef" * 2 + "01234567"
NAME = f"someone/model@{COMMIT}"


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cache folder of someone/model at COMMIT."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "hub" / "models--someone--model" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    return folder


def count_boxes(grounder: object) -> int:
    """Number of boxes that a GLIP grounder finds for "a red dog" in a random image."""
    assert isinstance(grounder, GlipGrounder)
    image = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
    (result,) = grounder.collect(grounder.forward(grounder.prepare([image], ["a red dog"], [[(0, 9)]])))
    return len(result.boxes)


def test_glip_folder_on_the_hub_is_loaded_with_its_own_threshold(snapshot: Path, tmp_path: Path) -> None:
    config = replace(TINY, detect=replace(TINY.detect, score_threshold=0.41))
    save_glip(snapshot, tiny_model(config).state_dict(), config, write_vocab(tmp_path))
    assert count_boxes(load_grounder(NAME))
    assert score_threshold(NAME) == 0.41


def save_released(path: Path) -> None:
    """Write a weight file as the authors of GLIP publish them, without a configuration."""
    state = {f"module.{key}": value for key, value in tiny_model().state_dict().items()}
    torch.save({"model": state}, path)


def test_only_weight_file_of_a_repository_needs_no_name(snapshot: Path) -> None:
    save_released(snapshot / "glip.pth")
    assert load_glip(NAME, TINY).config == TINY


def test_one_of_several_weight_files_is_named_after_the_commit(snapshot: Path) -> None:
    (snapshot / "tiny").mkdir()
    save_released(snapshot / "tiny" / "a.pth")
    (snapshot / "b.pth").write_bytes(b"another")
    assert load_glip(f"{NAME}/tiny/a.pth", TINY).config == TINY
    with pytest.raises(UserError, match=rf"2 weight files; choose one: {NAME}/b\.pth, {NAME}/tiny/a\.pth"):
        load_grounder(NAME)
    with pytest.raises(UserError, match=r"holds no c\.pth"):
        load_grounder(f"{NAME}/c.pth")


def test_damaged_weight_file_of_the_cache_is_refused(snapshot: Path) -> None:
    blobs = snapshot.parents[1] / "blobs"
    blobs.mkdir()
    save_released(blobs / "draft")
    content = (blobs / "draft").read_bytes()
    blob = (blobs / "draft").rename(blobs / hashlib.sha256(content).hexdigest())
    (snapshot / "glip.pth").symlink_to(blob)
    assert load_glip(NAME, TINY).config == TINY
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    blob_hash.cache_clear()
    with pytest.raises(UserError, match=r"is damaged: its SHA-256 is not its name; delete it"):
        load_glip(NAME, TINY)


def test_vocabulary_can_be_in_another_repository(snapshot: Path, tmp_path: Path) -> None:
    save_glip(snapshot, tiny_model().state_dict(), TINY, write_vocab(tmp_path))
    (snapshot / "vocab.txt").unlink()
    with pytest.raises(UserError, match=r"vocab\.txt does not exist"):
        load_grounder(NAME)
    bert = snapshot.parents[2] / "models--someone--bert" / "snapshots" / COMMIT
    bert.mkdir(parents=True)
    write_vocab(bert)
    assert count_boxes(load_grounder(NAME, vocabulary=f"someone/bert@{COMMIT}"))


def test_repository_of_transformers_is_recognized_by_its_config(snapshot: Path) -> None:
    tiny_owlv2(snapshot)
    assert isinstance(load_grounder(NAME), Owlv2)


def test_error_without_a_network_names_the_repository_that_is_not_cached(snapshot: Path) -> None:
    with pytest.raises(UserError, match=r"someone/else@.* hub does not answer"):
        load_grounder(f"someone/else@{COMMIT}")
    with pytest.raises(UserError, match="contains no weight file"):
        load_grounder(NAME)


def test_branch_or_path_outside_the_repository_is_refused(snapshot: Path) -> None:
    with pytest.raises(UserError, match="<40 hex digits>"):
        load_glip("someone/model")
    with pytest.raises(UserError, match="<40 hex digits>"):
        load_grounder("someone/model@main")
    with pytest.raises(UserError, match="inside the repository"):
        parse_hub_name(f"{NAME}/../../other.pth")


def test_hub_names_are_distinguished_from_paths(tmp_path: Path) -> None:
    assert parse_hub_name(f"{NAME}/a/b.pth") == HubName("someone/model", COMMIT, "a/b.pth")
    assert parse_hub_name(str(tmp_path)) is None
    assert parse_hub_name("/no/such/glip.pth") is None


def test_a_name_of_a_file_that_leads_out_of_the_cache_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **options: object) -> str:
        raise ValueError(f"Invalid pointer path {options['revision']}\nmore")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(UserError, match=rf"cannot be fetched from the hub: Invalid pointer path {COMMIT}; check"):
        fetch(HubName("someone/model", COMMIT), ["*.json"])
