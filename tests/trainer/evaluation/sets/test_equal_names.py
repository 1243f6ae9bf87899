"""Classes with equal names in classnames.txt: one warning names them."""

from pathlib import Path

import pytest

from tests.hypergrit_common.test_image_types import encoded
from trainer.evaluation.sets.base import read_own_set


def test_equal_names_of_classes_are_named_in_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "own" / "birds"
    for name in ("a", "b", "c", "d"):
        (folder / name).mkdir(parents=True)
        (folder / name / "0.png").write_bytes(encoded("PNG"))
    (folder / "classnames.txt").write_text("crane\nowl\ncrane\nwren\n")
    for _ in range(2):
        read_own_set(tmp_path, "birds")
    found = [record.getMessage() for record in caplog.records if "same name" in record.getMessage()]
    assert found == [f"{folder / 'classnames.txt'}: classes have the same name: 'crane' (2 times); give each its own"]
