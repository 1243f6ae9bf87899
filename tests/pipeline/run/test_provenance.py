"""Provenance: hashes of models, resolved thresholds, versions."""

import shutil
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from pipeline.config import load_config
from pipeline.models import check_model
from pipeline.run.provenance import folder_hash, make_provenance
from pipeline.stages.parse.config import parser_path


def hash_of(folder: Path, name: str, content: bytes) -> str:
    """The hash of a new folder with one file."""
    folder.mkdir()
    (folder / name).write_bytes(content)
    return folder_hash(str(folder))


def test_the_hash_of_a_folder_depends_on_names_and_contents_but_not_on_its_path(tmp_path: Path) -> None:
    first = hash_of(tmp_path / "a", "model.safetensors", b"one")
    assert hash_of(tmp_path / "b", "model.safetensors", b"one") == first
    assert hash_of(tmp_path / "c", "model.safetensors", b"two") != first
    assert hash_of(tmp_path / "d", "other.safetensors", b"one") != first


def test_a_calibrated_threshold_of_the_model_is_recorded_like_a_configured_one() -> None:
    calibrated, configured = (
        make_provenance(load_config(["input=in", "output=out", *more])) for more in ((), ("score.min_score=0.7",))
    )
    assert configured["thresholds"]["min_score"] == 0.7
    assert 0 < calibrated["thresholds"]["min_score"] < 0.7
    assert len(calibrated["models"]["grounder"]["sha256"]) == 64


def test_every_recorded_package_is_installed() -> None:
    packages = make_provenance(load_config(["input=in", "output=out"]))["packages"]
    assert "absent" not in packages.values()


def test_the_files_of_the_parser_are_recorded_by_their_hash(tmp_path: Path) -> None:
    parser = make_provenance(load_config(["input=in", "output=out"]))["models"]["parser"]
    folder = Path(parser_path("en_hypergrit_web"))
    assert (folder / "config.cfg").is_file()
    assert parser["name"] == "en_hypergrit_web"
    assert parser["sha256"] == folder_hash(str(folder))
    copy = tmp_path / "other"
    shutil.copytree(folder, copy)
    copied = make_provenance(load_config(["input=in", "output=out", f"parse.model={copy}"]))["models"]["parser"]
    assert copied["sha256"] == parser["sha256"]
    (copy / "tokenizer").write_bytes(b"damaged")
    folder_hash.cache_clear()
    changed = make_provenance(load_config(["input=in", "output=out", f"parse.model={copy}"]))["models"]["parser"]
    assert changed["sha256"] != parser["sha256"]
    with pytest.raises(UserError, match=r"parser: .* has other files than where the job was started"):
        check_model("parser", str(copy), parser["sha256"])
    none = ["grounder=none", "scorer=none", "parse.model=none"]
    assert "sha256" not in make_provenance(load_config(["input=in", "output=out", *none]))["models"]["parser"]
