"""Settings that no version had, as if they were removed."""

from types import MappingProxyType

import pytest

from hypergrit_common.config import Keys

INVENTED = MappingProxyType({
    "colour": "red", "download.colour": None, "garden.trees.number": 3, "garden.fence": [1, 2], "model.colour": 0.5,
})  # fmt: skip
"""Full key -> default. Without the others, the group `garden` is empty; no version has it."""

YAML = "colour: red\ndownload: {colour: null}\ngarden: {trees: {number: 3}, fence: [1, 2]}\nmodel: {colour: 0.5}\n"
"""The lines of a saved configuration that had them at their defaults."""


def invent(monkeypatch: pytest.MonkeyPatch, keys: Keys) -> None:
    """Let `keys` have INVENTED as removed too."""
    monkeypatch.setitem(vars(keys), "removed", {**keys.removed, **INVENTED})
