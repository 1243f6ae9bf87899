"""docs/hierarchy.ipynb: it runs in a fresh kernel, its saved outputs are current, and it names no machine."""

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import PIL.Image
import pytest

from docs.figures.notebook import NOTEBOOK, executed
from hypergrit_common.json_file import read_object

pytestmark = pytest.mark.rest

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / "demo" / "weights" / "hycoclip"
NUMBER = re.compile(r"[-+]?\d+\.\d+")
ROUNDING = 0.02  # numbers are printed with two decimals; another CPU may round the last one differently


@pytest.fixture(scope="module")
def saved() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture(scope="module")
def fresh() -> Any:
    return executed(NOTEBOOK)  # raises an error if a cell fails


def texts(cell: Any) -> str:
    """The text that a cell prints and returns."""
    outputs = cell.get("outputs", [])
    return "".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)


def pictures(cell: Any) -> list[tuple[int, int]]:
    """The sizes of the PNG pictures of a cell."""
    data = [output.get("data", {}).get("image/png") for output in cell.get("outputs", [])]
    return [PIL.Image.open(io.BytesIO(base64.b64decode(png))).size for png in data if png]


def assert_equal_up_to_rounding(found: str, expected: str) -> None:
    assert NUMBER.sub("#", found) == NUMBER.sub("#", expected)
    numbers, others = ([float(number) for number in NUMBER.findall(text)] for text in (found, expected))
    assert numbers == pytest.approx(others, abs=ROUNDING)


@pytest.mark.slow
def test_the_saved_outputs_are_those_of_a_fresh_kernel(saved: Any, fresh: Any) -> None:
    assert len(saved.cells) == len(fresh.cells)
    for old, new in zip(saved.cells, fresh.cells, strict=True):
        assert_equal_up_to_rounding(texts(new), texts(old))
        assert pictures(new) == pictures(old)
        if new.cell_type == "code":
            assert old.execution_count == new.execution_count
            assert not [output for output in new.outputs if output.get("name") == "stderr"]


def test_another_number_or_word_is_noticed() -> None:
    assert_equal_up_to_rounding("0.31 a dog", "0.32 a dog")
    for stale in ("0.41 a dog", "0.31 a cat", "a dog"):
        with pytest.raises(AssertionError):
            assert_equal_up_to_rounding("0.31 a dog", stale)


def test_the_notebook_draws_the_scene_and_two_hierarchies(saved: Any) -> None:
    sizes = [size for cell in saved.cells for size in pictures(cell)]
    assert sizes[0] == (224, 224)
    assert [min(size) > 600 for size in sizes[1:]] == [True, True]
    assert NOTEBOOK.stat().st_size < 300_000


def test_the_notebook_names_no_machine(saved: Any) -> None:
    assert set(saved.metadata) == {"kernelspec", "language_info"}
    assert not any(cell.metadata for cell in saved.cells)
    text = json.dumps([[cell.source, texts(cell)] for cell in saved.cells])
    assert not re.search(r"/(?:work|home|root|tmp|Users|usr)/|site-packages|localhost", text)


def test_the_card_of_the_weights_tells_how_they_were_made(saved: Any) -> None:
    card = (WEIGHTS / "README.md").read_text("utf-8")
    record = read_object(WEIGHTS / "config.json")["record"]
    for part in (
        "license: cc-by-sa-4.0",
        "python -m demo.train_demo --model hycoclip",
        record["version"],
        "| steps | 2000 |",
    ):
        assert part in card
    assert f"{record['evaluation']['zero_shot/concepts/accuracy']:.4f}" in card
    assert not re.search(r"/(?:work|home|root|tmp)/", card + json.dumps(record))
    assert (WEIGHTS / "model.safetensors").stat().st_size < 3_500_000
