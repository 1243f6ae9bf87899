"""Weight files: shared disks, and strangers' files."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from common.weights import load_tensors, save_tensors


def test_a_weight_file_has_the_rights_of_any_other_file_and_leaves_no_draft(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save_tensors({"a": torch.arange(3)}, tmp_path / "model.safetensors")
    finally:
        os.umask(before)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o640
    assert load_file(tmp_path / "model.safetensors")["a"].tolist() == [0, 1, 2]


def test_what_a_pickle_asks_for_is_named_and_never_called(tmp_path: Path) -> None:
    torch.save({"model": os.system}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match=r"not a file of tensors alone \(it asks for posix\.system\)") as error:
        load_tensors(tmp_path / "evil.pt")
    assert "trust" not in str(error.value)


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
def test_no_damage_gets_past_the_reader_as_another_error(tmp_path: Path, is_zip: bool) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"a": torch.arange(3.0), "b": {"c": torch.ones(2)}}, path, _use_new_zipfile_serialization=is_zip)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :]):
            path.write_bytes(damaged)
            with suppress(ValueError):  # what is damaged inside a tensor cannot be seen
                load_tensors(path, mmap=True)
