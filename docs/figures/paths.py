"""Folders from which the figures are drawn."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
DEMO: Final = ROOT / "out" / "demo"
TRUTH: Final = ROOT / "out" / "demo_input" / "truth.json"
TRAINING: Final = ROOT / "out" / "train_demo" / "hycoclip"
PHOTOGRAPHS: Final = DOCS / "figures" / "photographs"
