"""Models by hub name, from a cache laid out as huggingface_hub lays it out; no network."""

from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import torch

from common.errors import UserError
from pipeline.ground.glip.load import load_glip, save_glip
from pipeline.ground.glip.predict import GlipGrounder
from pipeline.ground.hf import Owlv2
from pipeline.ground.hub import HubName, parse_hub_name
from pipeline.ground.load import load_grounder, score_threshold
from tests.pipeline.ground.glip.tiny import TINY, tiny_model, write_vocab
from tests.pipeline.ground.test_hf import tiny_owlv2

COMMIT = "0123456789abcdef" * 2 + "01234567"
NAME = f"someone/model@{COMMIT}"


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a fetched commit of someone/model has."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "hub" / "models--someone--model" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    return folder


def boxes(grounder: object) -> int:
    assert isinstance(grounder, GlipGrounder)
    image = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
    (answer,) = grounder.collect(grounder.forward(grounder.prepare([image], ["a red dog"], [[(0, 9)]])))
    return len(answer.boxes)


def test_a_glip_folder_on_the_hub_is_a_grounder_with_its_own_threshold(snapshot: Path, tmp_path: Path) -> None:
    config = replace(TINY, detect=replace(TINY.detect, score_threshold=0.41))
    save_glip(snapshot, tiny_model(config).state_dict(), config, write_vocab(tmp_path))
    assert boxes(load_grounder(NAME, "cpu", 0.0, "caption"))
    assert score_threshold(NAME) == 0.41


def released(path: Path) -> None:
    """A file as GLIP's authors publish them: no configuration beside it."""
    state = {f"module.{key}": value for key, value in tiny_model().state_dict().items()}
    torch.save({"model": state}, path)


def test_the_one_weight_file_of_a_repository_needs_no_name(snapshot: Path) -> None:
    released(snapshot / "glip.pth")
    assert load_glip(NAME, TINY).config == TINY


def test_one_of_several_weight_files_is_named_behind_the_commit(snapshot: Path) -> None:
    (snapshot / "tiny").mkdir()
    released(snapshot / "tiny" / "a.pth")
    (snapshot / "b.pth").write_bytes(b"another")
    assert load_glip(f"{NAME}/tiny/a.pth", TINY).config == TINY
    with pytest.raises(UserError, match=rf"2 weight files; say which: {NAME}/b\.pth, {NAME}/tiny/a\.pth"):
        load_grounder(NAME, "cpu", 0.0, "caption")
    with pytest.raises(UserError, match=r"holds no c\.pth"):
        load_grounder(f"{NAME}/c.pth", "cpu", 0.0, "caption")


def test_the_vocabulary_may_come_from_another_repository(snapshot: Path, tmp_path: Path) -> None:
    save_glip(snapshot, tiny_model().state_dict(), TINY, write_vocab(tmp_path))
    (snapshot / "vocab.txt").unlink()
    with pytest.raises(UserError, match=r"vocab\.txt does not exist"):
        load_grounder(NAME, "cpu", 0.0, "caption")
    bert = snapshot.parents[2] / "models--someone--bert" / "snapshots" / COMMIT
    bert.mkdir(parents=True)
    write_vocab(bert)
    assert boxes(load_grounder(NAME, "cpu", 0.0, "caption", vocabulary=f"someone/bert@{COMMIT}"))


def test_a_repository_of_transformers_is_told_by_its_config(snapshot: Path) -> None:
    tiny_owlv2(snapshot)
    assert isinstance(load_grounder(NAME, "cpu", 0.0, "caption"), Owlv2)


def test_what_was_never_fetched_is_named_without_a_network(snapshot: Path) -> None:
    with pytest.raises(UserError, match=r"someone/else@.* cannot be fetched"):
        load_grounder(f"someone/else@{COMMIT}", "cpu", 0.0, "caption")
    with pytest.raises(UserError, match="holds no weight file"):
        load_grounder(NAME, "cpu", 0.0, "caption")


def test_a_branch_or_a_path_outside_the_repository_is_refused(snapshot: Path) -> None:
    with pytest.raises(UserError, match="<40 hex digits>"):
        load_grounder("someone/model@main", "cpu", 0.0, "caption")
    with pytest.raises(UserError, match="inside the repository"):
        parse_hub_name(f"{NAME}/../../other.pth")


def test_names_and_paths_are_told_apart(tmp_path: Path) -> None:
    assert parse_hub_name(f"{NAME}/a/b.pth") == HubName("someone/model", COMMIT, "a/b.pth")
    assert parse_hub_name(str(tmp_path)) is None
    assert parse_hub_name("/no/such/glip.pth") is None
