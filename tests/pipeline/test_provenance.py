"""What must agree before a finished shard is kept: the same things hash alike, others do not."""

from pathlib import Path

from pipeline.config import load_config
from pipeline.provenance import folder_hash, make_provenance


def weights(folder: Path, name: str, content: bytes) -> str:
    """The hash of a folder that holds one file."""
    folder.mkdir()
    (folder / name).write_bytes(content)
    return folder_hash(str(folder))


def test_a_models_hash_is_that_of_its_files_names_and_contents_wherever_it_lies(tmp_path: Path) -> None:
    first = weights(tmp_path / "a", "model.safetensors", b"one")
    assert weights(tmp_path / "b", "model.safetensors", b"one") == first
    assert weights(tmp_path / "c", "model.safetensors", b"two") != first
    assert weights(tmp_path / "d", "other.safetensors", b"one") != first


def test_a_threshold_that_the_model_brings_along_is_recorded_as_one_that_was_given() -> None:
    own, given = (
        make_provenance(load_config(["input=in", "output=out", *more])) for more in ((), ("score.min_score=0.7",))
    )
    assert given["thresholds"]["min_score"] == 0.7
    assert 0 < own["thresholds"]["min_score"] < 0.7
    assert len(own["models"]["grounder"]["sha256"]) == 64


def test_no_package_of_the_environment_is_missing() -> None:
    packages = make_provenance(load_config(["input=in", "output=out"]))["packages"]
    assert "absent" not in packages.values()
