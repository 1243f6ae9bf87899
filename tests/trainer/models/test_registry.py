"""Imports of the models' settings."""

from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from trainer.models.registry import ENTRIES, use_model


@pytest.mark.parametrize(
    ("first", "last", "config"),
    [
        ("", "class Mine(CLIP): pass", "ModelConfig"),
        ("", "class Mine(HyCoCLIP): pass", "HyCoCLIPConfig"),
        ("from __future__ import annotations", "class Mine(HyCoCLIP):\n    config: Own", "Own"),
        ("", "class Mine(HyCoCLIP):\n    config: 'Missing'", ""),
        ("", "class Mine(PHyCLIP):\n    config: Own", "Refused"),
    ],
)
def test_the_settings_of_a_class_of_the_user_are_those_of_its_annotation(
    first: str, last: str, config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"mine_{config.lower()}:Mine"
    (tmp_path / f"mine_{config.lower()}.py").write_text(f"""{first}
from dataclasses import dataclass
from trainer.models.clip import CLIP
from trainer.models.config import HyCoCLIPConfig
from trainer.models.hycoclip import HyCoCLIP
from trainer.models.phyclip import PHyCLIP
@dataclass(frozen=True, kw_only=True)
class Own(HyCoCLIPConfig):
    # a setting
    more: float = 1.0
{last}
""")
    monkeypatch.syspath_prepend(tmp_path)
    if config == "Refused":
        with pytest.raises(UserError, match=r"lacks those of PHyCLIP; let Own be a subclass of PHyCLIPConfig"):
            use_model(name)
    elif config:
        use_model(name)
        assert ENTRIES.pop(name).config.__name__ == config
    else:
        with pytest.raises(UserError, match=r"annotations of Mine cannot be read: name 'Missing'"):
            use_model(name)
