"""Figures of texts from data sets: matplotlib must not read them as formulas."""

from pathlib import Path

import numpy as np
import pytest

from trainer.evaluation.plots import draw_confusion, draw_disk, draw_paths, shorten

TEXT = r"$\from $10"


@pytest.mark.parametrize(
    "draw",
    [
        lambda path: draw_paths({TEXT: [TEXT, TEXT]}, "step", path),
        lambda path: draw_disk({"points": np.zeros((1, 2))}, path, {"points": [r"a $\or a $"]}),
        lambda path: draw_confusion([[1]], [r"$10 \to10{ $20"], path),
    ],
    ids=["paths", "disk", "confusion"],
)
def test_texts_with_dollar_signs_are_no_formulas(draw, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    draw(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_texts_are_shortened_to_one_line() -> None:
    assert shorten("a\n red\tkite") == "a red kite"
    assert shorten("a red kite", 6) == "a red…"
    assert shorten("$5", 6) == r"\$5"
