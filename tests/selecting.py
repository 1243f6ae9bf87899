"""Settings of a model folder that would make transformers load code of somebody else."""

import json
from pathlib import Path


def select_code(path: Path, key: str) -> None:
    """Set a key of a config.json, such as `vision_config.attn_implementation`, to a kernel of a hub."""
    config = json.loads(path.read_text())
    *groups, name = key.split(".")
    inner = config
    for group in groups:
        inner = inner[group]
    inner[name] = "someone/kernel"
    path.write_text(json.dumps(config))
