"""Shards of the pipeline and a small GLIP, shared by the tests of training. Tests must not change them."""

from pathlib import Path

import pytest

from pipeline.config import WriteConfig
from pipeline.output.write.stage import write_shard
from pipeline.stages.ground.glip.load import save_glip
from pipeline.stages.ground.glip.text import Prompter
from tests.pipeline.output.write.shards import PROVENANCE, dropped_row, jpeg, kept_row, plan, table
from tests.pipeline.stages.ground.glip.tiny import TINY, tiny_model, write_vocab


@pytest.fixture(scope="session")
def pipeline_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of the pipeline: two shards, each with two usable rows and a dropped one."""
    folder = tmp_path_factory.mktemp("output")
    for index in (1, 2):
        rows = [kept_row(10), dropped_row(11), kept_row(12) | {"image": jpeg(200, 300), "width": 200, "height": 300}]
        write_shard(table(rows), plan(index, 3), WriteConfig(image_bytes=True), str(folder), PROVENANCE)
    return folder


@pytest.fixture(scope="session")
def glip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GLIP to fine-tune."""
    folder = tmp_path_factory.mktemp("glip")
    save_glip(folder, tiny_model().state_dict(), TINY, write_vocab(folder))
    return folder


@pytest.fixture
def tiny_prompter(glip_folder: Path) -> Prompter:
    return Prompter(glip_folder / "vocab.txt", TINY.text)
