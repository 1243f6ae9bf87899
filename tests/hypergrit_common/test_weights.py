"""Weight files: permissions, the layouts that trainers save, damaged and malicious files."""

import os
import pickle
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from hypergrit_common.errors import UserError
from hypergrit_common.model_files import LOADING, SELECTING, check_settings
from hypergrit_common.weights import read_tensors, save_tensors
from tests.memory import memory_below


def test_a_weight_file_has_the_permissions_of_the_umask_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save_tensors({"a": torch.arange(3)}, tmp_path / "model.safetensors")
    finally:
        os.umask(before)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o640
    assert read_tensors(tmp_path / "model.safetensors")["a"].tolist() == [0, 1, 2]


WEIGHTS = {"a": torch.arange(3.0), "b.c": torch.ones(2)}
WITH_PREFIX = {f"module.{key}": value for key, value in WEIGHTS.items()}


def assert_weights(read: dict[str, Tensor]) -> None:
    assert {key: value.tolist() for key, value in read.items()} == {"a": [0, 1, 2], "b.c": [1, 1]}


@pytest.mark.parametrize(
    "content",
    [
        WEIGHTS,
        WITH_PREFIX,
        {"model": WITH_PREFIX, "iteration": 7},
        {"epoch": 3, "state_dict": WEIGHTS, "optimizer": {}},
    ],
    ids=["bare", "ddp", "model", "state_dict"],
)
def test_a_torch_file_is_read_in_every_layout_that_trainers_save(tmp_path: Path, content: dict[str, object]) -> None:
    for is_zip in (True, False):
        torch.save(content, tmp_path / "weights.bin", _use_new_zipfile_serialization=is_zip)
        assert_weights(read_tensors(tmp_path / "weights.bin"))


def test_a_safetensors_file_is_read(tmp_path: Path) -> None:
    save_file(WITH_PREFIX, tmp_path / "weights.safetensors")
    assert_weights(read_tensors(tmp_path / "weights.safetensors"))


def test_a_ddp_prefix_is_kept_unless_all_names_have_it(tmp_path: Path) -> None:
    torch.save({"module.a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "weights.pt")
    assert read_tensors(tmp_path / "weights.pt").keys() == {"module.a", "b"}


def test_a_lightning_checkpoint_is_read_without_the_entries_beside_its_model(tmp_path: Path) -> None:
    inside = {f"model.{name}": value for name, value in WEIGHTS.items()} | {"loss.scale": torch.ones(1)}
    content = {"state_dict": inside, "epoch": 3, "pytorch-lightning_version": "2.4.0"}
    torch.save(content, tmp_path / "last.ckpt")
    assert_weights(read_tensors(tmp_path / "last.ckpt"))
    torch.save({"state_dict": inside, "epoch": 3}, tmp_path / "other.ckpt")
    assert read_tensors(tmp_path / "other.ckpt").keys() == inside.keys()


@pytest.mark.parametrize(
    "content",
    [[1, 2], {}, {"model": {}}, {1: torch.ones(1)}, {"a": 1}, {"model": WEIGHTS | {"step": 3}}],
    ids=["list", "nothing", "nothing inside", "numbered", "number", "number inside"],
)
def test_a_file_without_weights_is_an_error(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(
        ValueError, match=r"other\.pth holds no state dict, neither at its top level nor under model or state_"
    ):
        read_tensors(tmp_path / "other.pth")


@pytest.mark.parametrize(
    "odd",
    [
        torch.eye(2).to_sparse(),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        torch.empty(2, device="meta"),
    ],
    ids=["sparse", "quantised", "meta"],
)
def test_sparse_quantised_and_meta_tensors_are_errors_that_name_them(tmp_path: Path, odd: Tensor) -> None:
    torch.save(WEIGHTS | {"odd": odd}, tmp_path / "odd.pth")
    with pytest.raises(ValueError, match=r"odd\.pth has 1 sparse, quantised or meta tensors, such as 'odd'"):
        read_tensors(tmp_path / "odd.pth")


def test_a_small_torch_file_of_many_numbers_or_compressed_parts_is_refused_before_they_are_in_memory(
    tmp_path: Path,
) -> None:
    torch.save({"a": torch.zeros(1).expand(3000, 3000)}, tmp_path / "repeated.pth")
    torch.save({f"{n}": WEIGHTS["a"] for n in range(3)}, tmp_path / "stored.pth")
    with zipfile.ZipFile(tmp_path / "stored.pth") as stored, zipfile.ZipFile(tmp_path / "zip.pth", "w", 8) as file:
        for item in stored.infolist():
            file.writestr(
                item.filename, b"\x80\x02X\x40\x42\x0f\x00" + b"a" * 1_000_000 + b"." if "pkl" in item.filename else b""
            )
    with pytest.raises(ValueError, match=r"repeated\.pth has tensors of 36,000,000 bytes that repeat its few numbers"):
        read_tensors(tmp_path / "repeated.pth")
    with (
        memory_below(500_000),
        pytest.raises(ValueError, match=r"zip\.pth must contain only tensors, but it is tr"),
    ):
        read_tensors(tmp_path / "zip.pth")
    assert len(read_tensors(tmp_path / "stored.pth")) == 3  # tied weights


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    for name in ("no.pth", "no.safetensors"):
        with pytest.raises(FileNotFoundError, match=name):
            read_tensors(tmp_path / name)


class Trap:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.path), "w")


def test_functions_in_a_pickle_are_named_and_never_called(tmp_path: Path) -> None:
    plain, zipped = tmp_path / "plain.pth", tmp_path / "zipped.pth"
    plain.write_bytes(pickle.dumps({"model": Trap(tmp_path / "trap")}))
    torch.save({"model": Trap(tmp_path / "trap")}, zipped)
    for path in (plain, zipped):
        with pytest.raises(ValueError, match=r"(plain|zipped)\.pth must contain only tensors") as error:
            read_tensors(path)
        assert "trust" not in str(error.value)
    assert "it refers to io.open" in str(error.value)
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04 cut short"])
def test_other_contents_are_errors_in_either_format(tmp_path: Path, content: bytes) -> None:
    for name, message in (
        ("broken.pth", "must contain only tensors"),
        ("broken.safetensors", "is not a safetensors file"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} {message}"):
            read_tensors(tmp_path / name)


@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
def test_damaged_files_raise_no_other_error_than_value_error(tmp_path: Path, form: str) -> None:
    path = tmp_path / ("weights.safetensors" if form == "safetensors" else "weights.pt")
    if form == "safetensors":
        save_file(WEIGHTS, path)
    else:
        torch.save(WEIGHTS, path, _use_new_zipfile_serialization=form == "zip")
    intact = path.read_bytes()
    for i in range(0, len(intact), 7):
        for damaged in (intact[:i], intact[:i] + bytes([intact[i] ^ 0x41]) + intact[i + 1 :]):
            path.write_bytes(damaged)
            with suppress(ValueError):  # damage inside a tensor cannot be detected
                read_tensors(path)


@pytest.mark.parametrize("key", sorted(SELECTING))
@pytest.mark.parametrize("place", ["{}", "vision_config.{}", "text_config.backbone_config.{}", "layers.1.{}"])
def test_a_key_that_selects_code_is_refused_at_any_depth(key: str, place: str) -> None:
    value: Any = {key: "someone/kernel"}
    for name in reversed(place.split(".")[:-1]):
        value = [{}, value] if name == "1" else {name: value}
    with pytest.raises(UserError, match=rf"^m/config\.json: {place.format(key)}='someone/kernel' is not allowed"):
        check_settings(value, "m/config.json")


@pytest.mark.parametrize("kind", LOADING)
def test_a_network_of_timm_within_another_one_is_refused(kind: str) -> None:
    with pytest.raises(UserError, match=rf"^a\.json: layers\.0\.model_type='{kind}' is not allowed"):
        check_settings({"layers": [{"model_type": kind, "architecture": "local-dir:/srv/x"}]}, "a.json")


def test_settings_without_effect_are_no_mistake(tmp_path: Path) -> None:
    harmless = {
        "_attn_implementation": "sdpa",
        "quantization_config": None,
        "use_pretrained_backbone": False,
        "auto_map": {"AutoModel": "code.Model"},
    }
    check_settings({"vision_config": harmless, "_name_or_path": "a/b"}, "config.json")
