"""Weight files on a disk that others share."""

import os
from pathlib import Path

import torch
from safetensors.torch import load_file

from common.weights import save_tensors


def test_a_weight_file_has_the_rights_of_any_other_file_and_leaves_no_draft(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save_tensors({"a": torch.arange(3)}, tmp_path / "model.safetensors")
    finally:
        os.umask(before)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o640
    assert load_file(tmp_path / "model.safetensors")["a"].tolist() == [0, 1, 2]
