"""A frozen model and the features of its towers, made once."""

import json
from pathlib import Path

import pytest

from tests.trainer.data.samples import Files, write_shards
from tests.trainer.small_run import SAMPLES_PER_SHARD, overrides, run, small_sample
from trainer.features.command import main

FEATURES = ("views=2", "tokens=true", "patches=true")


class World:
    """Paths of a trained model, of the shards, and of the features that were made of them."""

    def __init__(self, root: Path) -> None:
        self.root, self.tower, self.shards, self.features = (
            root,
            root / "tower" / "model",
            root / "shards",
            root / "features",
        )

    def write(self, output: Path, *others: str) -> int:
        """Run `hypergrit features`."""
        arguments = [f"shards={self.shards}", f"model={self.tower}", f"output={output}", "device=cpu", "workers=0"]
        return main([*arguments, "rows_per_shard=25", *others])

    def training(self, output: Path, *others: str) -> list[str]:
        """The command line of a head's training."""
        return [
            *(item for item in overrides(output) if not item.startswith(("shards=", "model.", "tokenizer="))),
            f"data.features={self.features}",
            "model.embed_dim=16",
            "model.image.kwargs={hidden: 24}",
            "model.text.kwargs={hidden: 24}",
            *others,
        ]


def sample(number: int) -> Files:
    """A sample of small runs with two or three labels of a taxonomy; every eighth has none."""
    files = small_sample(number)
    middle = None if number % 3 else f"set {number % 5}"
    levels = ["animal", middle, f"cat {number}"] if number % 8 else []
    return files | {"json": json.dumps(json.loads(files["json"]) | {"levels": levels}).encode()}


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A small CLIP, and features with two views and the states of tokens and patches."""
    found = World(tmp_path_factory.mktemp("heads"))
    write_shards(found.shards, SAMPLES_PER_SHARD, sample)
    assert run(found.tower.parent, "model_name=clip", "steps=3", "optim.warmup_steps=1") == 0
    assert found.write(found.features, *FEATURES) == 0
    return found
