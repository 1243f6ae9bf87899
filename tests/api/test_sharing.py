"""Sharing of models: folders and repositories of the Hugging Face hub, without a network."""

from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import pytest
import torch

from hypergrit_common.errors import UserError
from hypergrit_common.json_file import read_object
from tests.api.test_inference import TEXTS, pictures, saved
from trainer import Model, load_model
from trainer.inference.hub import CARD, FILES, PARTS, write_card


@pytest.fixture
def model(tmp_path: Path) -> Model:
    folder = saved(tmp_path / "trained", "phyclip") / "model"
    write_card(folder, {"retrieval/text_to_image/recall@1": 0.25})
    return load_model(folder, device="cpu")


def assert_same(first: Model, second: Model) -> None:
    assert (first.name, first.module.config, first.preprocess) == (second.name, second.module.config, second.preprocess)
    assert torch.equal(first.encode_text(TEXTS), second.encode_text(TEXTS))
    assert torch.equal(first.encode_image(pictures()), second.encode_image(pictures()))


def test_a_saved_model_loads_with_its_record(model: Model, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "copy", license="cc-by-4.0")
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {CARD, *PARTS} - {"tokenizer.json"}
    loaded = Model.from_pretrained(tmp_path / "copy", device="cpu")
    assert_same(loaded, model)
    assert loaded.record == {"evaluation": {"retrieval/text_to_image/recall@1": 0.25}}
    card = (tmp_path / "copy" / "README.md").read_text()
    assert "license: cc-by-4.0" in card
    assert "0.2500" in card


def test_half_precision_halves_the_file_and_rounds_the_points(model: Model, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "full")
    model.save_pretrained(tmp_path / "half", half=True)
    full, half = ((tmp_path / name / "model.safetensors").stat().st_size for name in ("full", "half"))
    assert half < 0.7 * full
    loaded = Model.from_pretrained(tmp_path / "half", device="cpu")
    assert {parameter.dtype for parameter in loaded.module.parameters()} == {torch.float32}
    points, expected = loaded.encode_text(TEXTS), model.encode_text(TEXTS)
    assert not torch.equal(points, expected)
    torch.testing.assert_close(points, expected, rtol=0, atol=0.01)


def test_urls_in_the_record_of_a_saved_model_have_no_secrets(model: Model, tmp_path: Path) -> None:
    model.record["training"] = {"data": {"shards": "s3://ann:pw@bucket/a.tar?sig=secret"}}
    model.save_pretrained(tmp_path / "copy")
    written = (tmp_path / "copy" / "config.json").read_text() + (tmp_path / "copy" / "README.md").read_text()
    assert "bucket/a.tar" in written
    assert "pw" not in read_object(tmp_path / "copy" / "config.json")["record"]["training"]["data"]["shards"]
    assert "secret" not in written


def test_a_folder_that_cannot_be_written_is_named(model: Model, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file cannot be written"):
        model.save_pretrained(tmp_path / "file")


def test_a_cached_repository_loads_offline(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="someone/model is not on this machine and cannot be fetched from the hub"):
        Model.from_pretrained("someone/model", device="cpu")
    commit = "0123456789abcdef" * 2 + "01234567"
    repository = tmp_path / "hub" / "models--someone--model"
    model.save_pretrained(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    assert_same(Model.from_pretrained("someone/model", device="cpu"), model)
    assert_same(Model.from_pretrained("someone/model", revision=commit, device="cpu"), model)


def test_only_the_files_of_a_model_are_downloaded(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def snapshot_download(name: str, **others: Any) -> str:
        asked.update(others, name=name)
        model.save_pretrained(tmp_path / "fetched")
        return str(tmp_path / "fetched")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert_same(Model.from_pretrained("someone/model", "v1", token="t", device="cpu"), model)
    assert asked == {"name": "someone/model", "revision": "v1", "token": "t", "allow_patterns": list(FILES)}
    assert not any(name.endswith((".bin", ".pt", ".py", ".pkl")) for name in FILES)


@pytest.mark.parametrize("name", ["no/such/folder", "../model", "model", "http://host/model"])
def test_a_name_that_is_no_repository_is_an_error(name: str) -> None:
    with pytest.raises(UserError, match="does not exist on this machine; give a folder, or OWNER/NAME"):
        Model.from_pretrained(name)


class Hub:
    """Replaces HfApi: records the calls and the files."""

    calls: list[tuple[str, dict[str, Any]]]
    files: dict[str, bytes]

    def __init__(self, token: str | None = None) -> None:
        Hub.calls, Hub.files = [("token", {"token": token})], {}

    def create_repo(self, repo_id: str, **others: Any) -> str:
        if repo_id == "other/taken":
            raise ConnectionError("403 Forbidden\ndetails")
        Hub.calls.append(("create", {"repo_id": repo_id, **others}))
        return f"https://hub/{repo_id}"

    def upload_folder(self, repo_id: str, folder_path: Path, allow_patterns: list[str], **others: Any) -> None:
        assert set(allow_patterns) == set(FILES)
        Hub.files = {path.name: path.read_bytes() for path in folder_path.iterdir()}


def test_a_pushed_model_is_the_one_that_loads(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    assert model.push_to_hub("me/mine", token="t", private=True, license="mit") == "https://hub/me/mine"
    assert Hub.calls == [
        ("token", {"token": "t"}),
        ("create", {"repo_id": "me/mine", "private": True, "exist_ok": True}),
    ]
    (tmp_path / "pulled").mkdir()
    for name, content in Hub.files.items():
        (tmp_path / "pulled" / name).write_bytes(content)
    assert_same(Model.from_pretrained(tmp_path / "pulled", device="cpu"), model)
    assert b"license: mit" in Hub.files["README.md"]
    with pytest.raises(UserError, match="other/taken cannot be uploaded to the hub: 403 Forbidden; check the name"):
        model.push_to_hub("other/taken")
    with pytest.raises(UserError, match="'mine' is not the name of a repository; give OWNER/NAME"):
        model.push_to_hub("mine")


def test_a_wrong_license_or_record_writes_nothing(model: Model, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no identifier of a license"):
        model.save_pretrained(tmp_path / "copy", license="a b")
    model.record = {"training": {"data": Path("shards")}}
    with pytest.raises(UserError, match="the record of the model is no JSON"):
        model.save_pretrained(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
