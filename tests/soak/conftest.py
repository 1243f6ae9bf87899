"""Fixtures of the soak tests: input scenes, and uninterrupted runs to compare with."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from demo.world.layout import WorldConfig
from demo.world.scenes import DEMO_SEEDS, make_scene
from pipeline import grit
from pipeline.images import encode_jpeg
from pipeline.write.tar import TarWriter
from tests.soak.processes import run
from trainer import train

N_SCENES = 12


@dataclass(frozen=True)
class Reference:
    """The output of an uninterrupted run, and the seconds it took."""

    output: Path
    seconds: float


@pytest.fixture(scope="session")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tar of demo scenes."""
    folder = tmp_path_factory.mktemp("tars")
    with (folder / "00000.tar").open("wb") as file, TarWriter(file) as tar:
        for i in range(N_SCENES):
            scene = make_scene(DEMO_SEEDS[i], "openmoji", WorldConfig(width=384, height=288))
            tar.add_sample(f"{i:03d}", [("jpg", encode_jpeg(scene.image)), ("txt", scene.caption.encode())])
    return folder


@pytest.fixture(scope="session")
def pipeline_reference(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """An uninterrupted pipeline job."""
    output = tmp_path_factory.mktemp("pipeline") / "output"
    return Reference(output, run(grit.main, pipeline_arguments(tars, output), output.with_suffix(".log")))


@pytest.fixture(scope="session")
def training_reference(pipeline_reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """An uninterrupted training run on the shards of the pipeline job."""
    output = tmp_path_factory.mktemp("training") / "run"
    arguments = training_arguments(pipeline_reference.output / "train", output)
    return Reference(output, run(train.main, arguments, output.with_suffix(".log")))


def pipeline_arguments(tars: Path, output: Path) -> list[str]:
    """Arguments of a job of four shards with the miniature models, in one process and without network access."""
    return [f"input={tars}", f"output={output}", "rows_per_shard=3", "ray.runner=local"]


def training_arguments(shards: Path, output: Path) -> list[str]:
    """Arguments of a run of 24 steps of a very small HyCoCLIP with a checkpoint every 6 steps."""
    return [
        "model_name=hycoclip",
        f"shards={shards}",
        f"output={output}",
        "tokenizer=demo/weights/clip/merges.txt",
        "device=cpu",
        "precision=fp32",
        "batch_size=4",
        "data.workers=1",
        "optim.steps=24",
        "optim.warmup_steps=4",
        "save.every=6",
        "log.every=1",
        "log.tensorboard=false",
        "model.embed_dim=16",
        "model.image.size_px=16",
        "model.image.kwargs={embed_dim: 32, depth: 2, num_heads: 2, patch_size: 8}",
        "model.text.vocab_size=1364",
        "model.text.width=32",
        "model.text.layers=2",
        "model.text.heads=2",
    ]
