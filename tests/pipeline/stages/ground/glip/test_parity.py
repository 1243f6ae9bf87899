"""Parity with the authors' numbers, and with the keys and shapes of the released files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.stages.ground.glip.config import CONFIGS
from pipeline.stages.ground.glip.load import IGNORABLE
from pipeline.stages.ground.glip.model import Glip
from tests.parity.glip import DATA, main, run


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.parametrize("case", ["glip_t_a", "glip_t"])
def test_every_tensor_equals_the_authors(case: str) -> None:
    results = run(DATA / f"{case}.npz")
    assert len(results) > 70
    assert [result for result in results if not result[1] <= result[2]] == []


def manifest(path: Path) -> dict[str, tuple[int, ...]]:
    """Keys and shapes of a released file, without derived buffers."""
    lines = (line.split("\t") for line in path.read_text().splitlines() if line and not line.startswith("#"))
    entries = {key.removeprefix("module."): tuple(map(int, shape.split("x"))) for key, shape, _ in lines}
    return {key: shape for key, shape in entries.items() if not IGNORABLE.search(key)}


@pytest.mark.parametrize("name", ["glip_t_a", "glip_t", "glip_l"])
def test_state_dict_has_the_released_keys_and_shapes(name: str) -> None:
    with torch.device("meta"):
        model = Glip(CONFIGS[name])
    assert {key: tuple(value.shape) for key, value in model.state_dict().items()} == manifest(
        DATA / f"manifest_{name}.txt"
    )


CASE = DATA / "glip_t_a.npz"


def altered(path: Path, *, without: tuple[str, ...] = (), **meta: object) -> Path:
    """Write a copy of a case without some arrays or with other values of `meta`; a value of None removes the key."""
    with np.load(CASE) as file:
        arrays = {name: file[name] for name in file.files if name not in without}
    if "meta" in arrays:
        values = json.loads(str(arrays["meta"])) | meta
        arrays["meta"] = np.array(json.dumps({key: value for key, value in values.items() if value is not None}))
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"without": ("meta",)}, "no array 'meta'"),
        ({"without": ("det.score",)}, "no array 'det.score'"),
        ({"seed": None}, "`meta` lacks seed"),
        ({"config": "yolo"}, "'yolo' is not a configuration of GLIP"),
        ({"ids": [101] * 300}, "`ids` are not a prompt"),
        ({"ids": [10**6]}, "`ids` are not a prompt"),
        ({"height": 0}, "no pixels"),
    ],
)
def test_an_incomplete_or_wrong_case_is_an_error_that_names_the_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: dict[str, Any], message: str
) -> None:
    assert main([str(altered(tmp_path / "case.npz", **wrong))]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"no zip", CASE.read_bytes()[:5000]])
def test_a_file_that_is_truncated_or_not_an_npz_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "cut.npz").write_bytes(content)
    assert main([str(tmp_path / "cut.npz")]) == 2
    assert "it is not an .npz of plain arrays" in capsys.readouterr().err
