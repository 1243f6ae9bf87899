"""Files of weights for open_clip scorers: a pickle is refused by name, and its code is not run."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from hypergrit_common.errors import UserError
from pipeline.stages.score.scorers import load_scorer


class Code:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_a_pickle_is_refused_and_not_run(tmp_path: Path, save: object) -> None:
    path, mark = tmp_path / "clip.pt", tmp_path / "executed"
    save({"a": Code(mark)}, path)  # type: ignore[operator]
    with pytest.raises(UserError, match=r"clip\.pt must contain only tensors") as error:
        load_scorer(f"open_clip:ViT-B-32/{path}", "cpu", 1)
    assert "\n" not in str(error.value)
    assert not mark.exists()
