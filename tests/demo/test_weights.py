"""The weights of the miniature models are those that their card describes."""

import hashlib
import re
from pathlib import Path

WEIGHTS = Path(__file__).parents[2] / "demo" / "weights"


def test_the_card_has_the_hash_of_each_file_of_weights_and_of_each_vocabulary() -> None:
    card = (WEIGHTS / "MODEL_CARD.md").read_text("utf-8")
    named = {path: digest for digest, path in re.findall(r"^    ([0-9a-f]{64})  (\S+)$", card, re.MULTILINE)}
    files = [path for kind in ("*.safetensors", "*.txt") for path in WEIGHTS.rglob(kind)]
    found = {str(path.relative_to(WEIGHTS)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert named == found
