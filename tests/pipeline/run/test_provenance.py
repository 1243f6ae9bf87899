"""Provenance: hashes of models, resolved thresholds, versions."""

from pathlib import Path

from pipeline.config import load_config
from pipeline.run.provenance import folder_hash, make_provenance


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
