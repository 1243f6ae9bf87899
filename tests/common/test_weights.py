"""Weight files: shared disks, and strangers' files."""

import os
import pickle
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from common.weights import read_tensors, save_tensors


def test_a_weight_file_has_the_rights_of_any_other_file_and_leaves_no_draft(tmp_path: Path) -> None:
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
def test_a_file_of_torch_is_read_in_every_form_that_trainers_save(tmp_path: Path, content: dict[str, object]) -> None:
    for is_zip in (True, False):
        torch.save(content, tmp_path / "weights.bin", _use_new_zipfile_serialization=is_zip)
        assert_weights(read_tensors(tmp_path / "weights.bin"))


def test_a_safetensors_file_is_read(tmp_path: Path) -> None:
    save_file(WITH_PREFIX, tmp_path / "weights.safetensors")
    assert_weights(read_tensors(tmp_path / "weights.safetensors"))


def test_a_prefix_that_some_names_lack_is_part_of_the_others(tmp_path: Path) -> None:
    torch.save({"module.a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "weights.pt")
    assert read_tensors(tmp_path / "weights.pt").keys() == {"module.a", "b"}


@pytest.mark.parametrize(
    "content",
    [[1, 2], {}, {"model": {}}, {1: torch.ones(1)}, {"a": 1}, {"model": WEIGHTS | {"step": 3}}],
    ids=["list", "nothing", "nothing inside", "numbered", "number", "number inside"],
)
def test_what_holds_no_weights_says_so(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(
        ValueError, match=r"other\.pth holds no state dict, neither at its top nor under model or state_"
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
def test_tensors_that_do_not_hold_their_numbers_are_named(tmp_path: Path, odd: Tensor) -> None:
    torch.save(WEIGHTS | {"odd": odd}, tmp_path / "odd.pth")
    with pytest.raises(ValueError, match=r"odd\.pth has 1 sparse, quantised or empty tensors, such as 'odd'"):
        read_tensors(tmp_path / "odd.pth")


def test_a_file_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    for name in ("no.pth", "no.safetensors"):
        with pytest.raises(FileNotFoundError, match=name):
            read_tensors(tmp_path / name)


class Trap:
    """Unpickling this would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.path), "w")


def test_what_a_pickle_asks_for_is_named_and_never_called(tmp_path: Path) -> None:
    plain, zipped = tmp_path / "plain.pth", tmp_path / "zipped.pth"
    plain.write_bytes(pickle.dumps({"model": Trap(tmp_path / "trap")}))
    torch.save({"model": Trap(tmp_path / "trap")}, zipped)
    for path in (plain, zipped):
        with pytest.raises(ValueError, match=r"d\.pth is not a file of tensors alone|n\.pth is not a file of") as error:
            read_tensors(path)
        assert "trust" not in str(error.value)
    assert "it asks for io.open" in str(error.value)
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04 cut short"])
def test_what_is_no_weight_file_is_refused_in_either_format(tmp_path: Path, content: bytes) -> None:
    for name, said in (
        ("broken.pth", "is not a file of tensors alone"),
        ("broken.safetensors", "is no safetensors file"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} {said}"):
            read_tensors(tmp_path / name)


@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
def test_no_damage_gets_past_the_reader_as_another_error(tmp_path: Path, form: str) -> None:
    path = tmp_path / ("weights.safetensors" if form == "safetensors" else "weights.pt")
    if form == "safetensors":
        save_file(WEIGHTS, path)
    else:
        torch.save(WEIGHTS, path, _use_new_zipfile_serialization=form == "zip")
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :]):
            path.write_bytes(damaged)
            with suppress(ValueError):  # what is damaged inside a tensor cannot be seen
                read_tensors(path)
