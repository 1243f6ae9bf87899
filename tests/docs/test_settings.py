"""Every setting of `run` and `train` has a use: in a job, the demo, a benchmark, or a command or sentence of the docs."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from hypergrit_common.config import Keys, flatten
from hypergrit_common.config_help import list_keys
from pipeline import config as pipeline_config
from trainer import config as trainer_config
from trainer.models.registry import MODELS

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {ROOT / "docs" / "verbs.md", ROOT / "docs" / "schemas.md"}
CARDS = ROOT / "demo" / "weights"
"""The cards of models that were trained here list all settings."""
SETTING = re.compile(r"(?<![\w.])([a-z][\w.]*)=")
IN_CODE = re.compile(r"""(?<=["'`])([a-z][\w.]*)=""")


def texts() -> Iterator[tuple[Path, str]]:
    """The files that show how settings are used."""
    yield from ((ROOT / name, (ROOT / name).read_text(encoding="utf-8")) for name in ("README.md", "Makefile"))
    for folder in ("jobs", "demo", "benchmarks", "docs", "docker"):
        for path in sorted((ROOT / folder).rglob("*")):
            is_text = path.suffix in (".md", ".py", ".sh", ".yaml", ".yml", ".ipynb")
            if is_text and path not in GENERATED and not path.is_relative_to(CARDS):
                yield path, path.read_text(encoding="utf-8")


def settings_in(path: Path, text: str) -> set[str]:
    """The keys that a text sets: `key=` outside Python's calls, and the keys of YAML."""
    found = set((IN_CODE if path.suffix == ".py" else SETTING).findall(text))
    blocks = [text] if path.suffix in (".yaml", ".yml") else re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    for block in blocks:
        values: Any = yaml.safe_load(block)
        found |= flatten(values).keys() if isinstance(values, Mapping) else set()
    return found


def without_use(names: set[str], keys: Keys, used: set[str]) -> set[str]:
    """Those of the settings that nothing sets, by its full or short name or by a key within it."""
    groups = {name[: end.start()] for name in used for end in re.finditer(r"\.", name)}
    short = {long for name, long in keys.short.items() if name in used}
    return names - used - groups - short


def test_every_setting_of_run_and_train_has_a_documented_use() -> None:
    used = {key for path, text in texts() for key in settings_in(path, text)}
    run = {key.name for key in list_keys(pipeline_config.PipelineConfig)}
    train = {key.name for key in list_keys(trainer_config.TrainConfig)}
    train |= {key.name for model in MODELS.values() for key in list_keys(model.config, "model.")}
    unused = without_use(run, pipeline_config.KEYS, used) | without_use(train, trainer_config.KEYS, used)
    assert not unused, "give each a documented use, or make it a constant (hypergrit_common/removed.py)"
